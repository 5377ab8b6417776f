#include "src/session/head_queries.h"

#include <algorithm>
#include <numeric>

#include "src/core/io/faults.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"
#include "src/session/position_mass.h"

namespace topkv {

void QueriesByHead::copy_queries(const StepBlock& block, std::int64_t head) {
  const TokenQueries& queries = block.queries;
  HeadQueries& of_head = (*this)[head];
  const std::int64_t group = session_.shape.group();
  const std::int64_t d = session_.shape.head_dim;
  const std::int64_t count = queries.tokens * group;
  of_head.query_ids.resize(static_cast<std::size_t>(count));
  std::iota(of_head.query_ids.begin(), of_head.query_ids.end(), 0);
  of_head.queries.resize(static_cast<std::size_t>(count * d));
  for (auto& allowed : of_head.allowed) allowed.assign(static_cast<std::size_t>(count), {});
  const auto searched = std::span(session_.segments).first(session_.searched_segments);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t token = i / group;
    const float* q = queries.query(token, head * group + i % group);
    std::copy(q, q + d, &of_head.queries[static_cast<std::size_t>(i * d)]);
    for (std::size_t s = 0; s < searched.size(); ++s) {
      of_head.allowed[s][static_cast<std::size_t>(i)] =
          session_.between(searched[s], block.layer(), queries.first + token);
    }
  }
}

QueryBlock QueriesByHead::block(std::int64_t head, std::span<const PositionRange> allowed) const {
  const HeadQueries& of_head = (*this)[head];
  const std::int64_t group = session_.shape.group();
  bool whole = of_head.count() % group == 0;
  for (std::int64_t i = 0; whole && i < of_head.count(); ++i) {
    const std::int64_t first = of_head.query_ids[static_cast<std::size_t>(i / group * group)];
    whole =
        first % group == 0 && of_head.query_ids[static_cast<std::size_t>(i)] == first + i % group;
  }
  return {.data = of_head.queries.data(),
          .count = of_head.count(),
          .dim = session_.shape.head_dim,
          .allowed = allowed,
          .group = whole ? group : 1,
          .scale = session_.shape.softmax_scale(),
          .tokens = whole ? std::max<std::int64_t>(of_head.count() / group, 1) : 1};
}

std::int64_t QueriesByHead::place(std::int64_t head, std::int64_t query) const {
  const std::int64_t group = session_.shape.group();
  const std::int64_t i = (*this)[head].query_ids[static_cast<std::size_t>(query)];
  return i / group * session_.shape.q_heads + head * group + i % group;
}

void QueriesByHead::attend_selected(const StepBlock& block) {
  reach_fault("session.attend");
  const Stopwatch attending;
  const AttentionShape& shape = session_.shape;
  const std::int64_t d = shape.head_dim;
  const float scale = shape.softmax_scale();
  // One task per query head: with few KV heads there would be too few tasks for the cores.
  const std::int64_t layer = block.layer();
  const std::int64_t per_head = block.queries.tokens * shape.group();
  for (HeadQueries& of_head : heads_) of_head.retrieved.reset(per_head, d);
  parallel_for(shape.kv_heads * per_head, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t head = task / per_head;
      const std::int64_t i = task % per_head;
      check_stop();
      HeadQueries& of_head = (*this)[head];
      if (i >= of_head.count()) continue;
      const float* q = &of_head.queries[static_cast<std::size_t>(i * d)];
      const PartialView target = block.host.exact.part(place(head, i));
      const PartialView part = of_head.retrieved.view().part(i);
      for (std::size_t s = 0; s < session_.segments.size(); ++s) {
        const std::vector<std::int64_t>& positions = of_head.selector.of(s, i);
        if (positions.empty()) continue;
        attend_rows(q, session_.segments[s].rows(layer, head), positions, scale, part,
                    shape.softcap);
        merge(target, part);
      }
    }
  });
  for (const HeadQueries& of_head : heads_) {
    for (std::int64_t i = 0; i < of_head.count(); ++i)
      session_.stats.rows_retrieved += of_head.selector.rows(i, session_.searched_segments);
  }
  if (session_.mass != nullptr) note_selected(block);
  session_.times(layer).attend += attending.seconds();
}

void QueriesByHead::note_selected(const StepBlock& block) {
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head) {
    for (std::int64_t i = 0; i < (*this)[head].count(); ++i) {
      const std::int64_t at = place(head, i);
      for (std::size_t s = 0; s < session_.segments.size(); ++s) {
        session_.mass->add(block.queries.first + at / session_.shape.q_heads,
                           at % session_.shape.q_heads, s, (*this)[head].selector.of(s, i));
      }
    }
  }
}

}  // namespace topkv
