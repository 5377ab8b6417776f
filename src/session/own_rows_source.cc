#include "src/session/own_rows_source.h"

#include <algorithm>

#include "src/core/threads/stopwatch.h"

namespace topkv {

void OwnRowsSource::contribute(Step& step) {
  each_block(step, [&](std::int64_t first, const TokenQueries& block) {
    const PartialView found = step.part(step.host.exact, first, block.tokens);
    if (between_) attend_between(step.layer(), block, found);
    attend(step.layer(), block, found);
  });
}

void OwnRowsSource::attend_between(std::int64_t layer, const TokenQueries& queries,
                                   PartialView out) {
  if (queries.tokens == 1) return;
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head) {
    heads_.copy_queries(layer, head, queries);
    heads_[head].selector.reset(queries.tokens * session_.shape.group());
    select_between(layer, head, queries);
  }
  heads_.attend_selected(layer, queries.tokens, out);
}

void OwnRowsSource::select_between(std::int64_t layer, std::int64_t head,
                                   const TokenQueries& queries) {
  const std::int64_t before = plain_rows(layer, queries.first).end;
  HeadStep& step = heads_[head];
  for (std::int64_t i = 0; i < step.count(); ++i) {
    const std::int64_t token = step.query_ids[static_cast<std::size_t>(i)] / session_.shape.group();
    const PositionRange range = plain_rows(layer, queries.first + token);
    step.selector.take(session_.segments.size() - 1, i, {std::max(before, range.begin), range.end});
  }
}

void OwnRowsSource::attend(std::int64_t layer, const TokenQueries& queries, PartialView out) {
  const Segment& segment = session_.segments.back();
  const PositionRange range = plain_rows(layer, queries.first);
  if (range.size() <= 0) return;
  const Stopwatch attending;
  spans_.clear();
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head)
    spans_.push_back({segment.rows(layer, head).part(range), segment.first + range.begin});
  partial_.reset(out.heads, out.head_dim);
  attend_tokens(session_.shape, queries, {}, spans_.data(), partial_.view());
  merge(out, partial_.view());
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
