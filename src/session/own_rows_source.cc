#include "src/session/own_rows_source.h"

#include <algorithm>

#include "src/core/threads/stopwatch.h"
#include "src/session/position_mass.h"

namespace topkv {

void OwnRowsSource::contribute(Step& step) {
  each_block(step, [&](const StepBlock& block) {
    if (between_) attend_between(block);
    attend(block);
  });
}

bool OwnRowsSource::attends_alone(const StepBlock& block) const {
  return block.step.queries.tokens <= few_step_tokens;
}

void OwnRowsSource::attend_between(const StepBlock& block) {
  const std::int64_t tokens = block.queries.tokens;
  if (tokens == 1 || attends_alone(block)) return;
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head) {
    heads_.copy_queries(block, head);
    heads_[head].selector.reset(tokens * session_.shape.group());
    select_between(block, head);
  }
  heads_.attend_selected(block);
}

void OwnRowsSource::select_between(const StepBlock& block, std::int64_t head) {
  if (attends_alone(block)) return;
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
  const std::int64_t tokens = attends_alone(block) ? 1 : block.queries.tokens;
  partial_.reset(block.host.exact.heads, block.host.exact.head_dim);
  for (std::int64_t t = 0; t < block.queries.tokens; t += tokens) {
    const std::int64_t heads = tokens * session_.shape.q_heads;
    attend(block.layer(), block.queries.part(t, tokens),
           partial_.view().part(t * session_.shape.q_heads, heads),
           block.host.exact.part(t * session_.shape.q_heads, heads));
  }
}

void OwnRowsSource::attend(std::int64_t layer, const TokenQueries& queries, PartialView partial,
                           PartialView into) {
  const Segment& segment = session_.segments.back();
  const PositionRange range = plain_rows(layer, queries.first);
  if (range.size() <= 0) return;
  for (std::int64_t t = 0; session_.mass != nullptr && t < queries.tokens; ++t)
    session_.mass->add(queries.first + t, session_.segments.size() - 1, range);
  const Stopwatch attending;
  spans_.clear();
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head)
    spans_.push_back({segment.rows(layer, head).part(range), segment.first + range.begin});
  const auto attend = queries.tokens <= few_step_tokens ? attend_few_tokens : attend_tokens;
  attend(session_.shape, queries, {}, spans_, partial);
  merge(into, partial);
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
