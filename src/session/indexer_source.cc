#include "src/session/indexer_source.h"

#include "src/core/threads/stopwatch.h"

namespace topkv {

void IndexerSource::contribute(Step& step) {
  const Stopwatch watch;
  const std::int64_t layer = step.layer();
  const RowStore& context = session_.segments[0].states->rows();
  const IndexerAttention::Work work =
      session_.indexer.attend(step.tensors, step.queries,
                              {.before = &context, .store = session_.own->rows()}, step.host.exact);
  session_.stats.rows_retrieved += work.rows;
  session_.count_search(layer, work.choosing_seconds);
  session_.times(layer).attend += watch.seconds() - work.choosing_seconds;
}

}  // namespace topkv
