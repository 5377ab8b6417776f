#include "src/session/own_rows_source.h"

#include <algorithm>

#include "src/core/threads/stopwatch.h"

namespace topkv {

void OwnRowsSource::contribute(Step& step) {
  each_block(step, [&](const StepBlock& block) {
    if (between_) attend_between(block);
    attend(block);
  });
}

void OwnRowsSource::attend_between(const StepBlock& block) {
  const std::int64_t tokens = block.queries.tokens;
  if (tokens == 1) return;
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head) {
    heads_.copy_queries(block, head);
    heads_[head].selector.reset(tokens * session_.shape.group());
    select_between(block, head);
  }
  heads_.attend_selected(block);
}

void OwnRowsSource::select_between(const StepBlock& block, std::int64_t head) {
  const std::int64_t layer = block.layer();
  const std::int64_t before = plain_rows(layer, block.queries.first).end;
  HeadQueries& of_head = heads_[head];
  for (std::int64_t i = 0; i < of_head.count(); ++i) {
    const std::int64_t token =
        of_head.query_ids[static_cast<std::size_t>(i)] / session_.shape.group();
    const PositionRange range = plain_rows(layer, block.queries.first + token);
    of_head.selector.take(session_.segments.size() - 1, i,
                          {std::max(before, range.begin), range.end});
  }
}

void OwnRowsSource::attend(const StepBlock& block) {
  const std::int64_t layer = block.layer();
  const Segment& segment = session_.segments.back();
  const PositionRange range = plain_rows(layer, block.queries.first);
  if (range.size() <= 0) return;
  const Stopwatch attending;
  spans_.clear();
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head)
    spans_.push_back({segment.rows(layer, head).part(range), segment.first + range.begin});
  partial_.reset(block.host.exact.heads, block.host.exact.head_dim);
  attend_tokens(session_.shape, block.queries, {}, spans_, partial_.view());
  merge(block.host.exact, partial_.view());
  session_.times(layer).tail += attending.seconds();
}

PositionRange OwnRowsSource::plain_rows(std::int64_t layer, std::int64_t position) const {
  const PositionRange all = session_.between(session_.segments.back(), layer, position);
  return {std::clamp(codes_.tokens(), all.begin, all.end), all.end};
}

PositionRange OwnRowsSource::coded_rows(std::int64_t layer, std::int64_t position) const {
  const PositionRange all = session_.between(session_.segments.back(), layer, position);
  return {all.begin, std::clamp(codes_.tokens(), all.begin, all.end)};
}

}  // namespace topkv
