#include "src/session/position_mass.h"

#include <algorithm>

#include "src/core/math/dot.h"
#include "src/core/math/vector_math.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t rows_at_once = 1024;  // of a range, in one task

/// Turns inner products into softmax weights.
void to_weights(const AttentionShape& shape, float lse, float* scores, std::int64_t count) {
  scale_by(scores, count, shape.softmax_scale());
  if (shape.softcap > 0) soft_cap(scores, count, shape.softcap);
  exp_shifted(scores, count, lse);
}

}  // namespace

void PositionMass::begin_call() {
  for (const std::int64_t position : weighed_) call_[static_cast<std::size_t>(position)] = 0;
  weighed_.clear();
}

void PositionMass::begin(Step& step) {
  first_ = session_.position(step.layer()) + step.skipped;
  const auto tokens = static_cast<std::size_t>(step.tensors.tokens);
  const std::size_t queries = tokens * static_cast<std::size_t>(session_.shape.q_heads);
  if (step.tensors.lse == nullptr) {
    lse_.resize(queries);
    step.tensors.lse = lse_.data();
  }
  // What a step of many tokens leaves is not kept.
  found_.resize(queries * session_.segments.size());
  ranges_.resize(tokens);
  for (Rows& of : found_) of.rows.clear();
  for (std::vector<Range>& of : ranges_) of.clear();
}

PositionMass::Rows& PositionMass::rows_of(std::int64_t token, std::int64_t q_head,
                                          std::size_t segment) {
  const auto query = static_cast<std::size_t>(token * session_.shape.q_heads + q_head);
  return found_[query * session_.segments.size() + segment];
}

void PositionMass::add(std::int64_t position, std::int64_t q_head, std::size_t segment,
                       std::span<const std::int64_t> rows) {
  std::vector<std::int64_t>& to = rows_of(position - first_, q_head, segment).rows;
  to.insert(to.end(), rows.begin(), rows.end());
}

void PositionMass::add(std::int64_t position, std::size_t segment, const PositionRange& rows) {
  if (rows.size() > 0)
    ranges_[static_cast<std::size_t>(position - first_)].push_back({segment, rows});
}

void PositionMass::take_queries(const Step& step) {
  if (!session_.shape.attends_all(step.layer())) return;
  const float* from = step.queries.query(0, 0);
  const std::int64_t count = step.tensors.tokens * session_.shape.q_heads * session_.shape.head_dim;
  queries_.assign(from, from + count);
}

void PositionMass::end(const Step& step) {
  const std::int64_t layer = step.layer();
  if (!session_.shape.attends_all(layer)) return;
  for (std::int64_t token = 0; token < step.tensors.tokens; ++token) {
    check_stop();
    const float* lse = step.tensors.lse + token * session_.shape.q_heads;
    add_always_attended(layer, token);
    for (const Range& range : ranges_[static_cast<std::size_t>(token)])
      weigh(layer, token, range, lse);
    weigh_found(layer, token, lse);
  }
}

/// Sinks and window, or all rows of a dense layer.
void PositionMass::add_always_attended(std::int64_t layer, std::int64_t token) {
  const CausalWindow visible = session_.spec.always_attended(layer);
  const std::int64_t position = first_ + token;
  const std::int64_t window = visible.begin(position);
  for (std::size_t s = 0; s < session_.segments.size(); ++s) {
    const Segment& segment = session_.segments[s];
    const PositionRange all{segment.first, segment.first + segment.tokens(layer)};
    for (const PositionRange& range :
         {PositionRange{0, std::min(visible.sinks, window)}, PositionRange{window, position + 1}}) {
      const PositionRange part = range.within(all);
      add(position, s, {part.begin - all.begin, part.end - all.begin});
    }
  }
}

void PositionMass::weigh(std::int64_t layer, std::int64_t token, const Range& range,
                         const float* lse) {
  const AttentionShape& shape = session_.shape;
  const Segment& segment = session_.segments[range.segment];
  const std::int64_t count = range.rows.size();
  range_weights_.assign(static_cast<std::size_t>(count), 0);
  const std::int64_t tasks = (count + rows_at_once - 1) / rows_at_once;
  parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    thread_local std::vector<float> weights;
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t first = task * rows_at_once;
      const std::int64_t rows = std::min(rows_at_once, count - first);
      weights.resize(static_cast<std::size_t>(shape.group() * rows));
      for (std::int64_t head = 0; head < shape.q_heads; head += shape.group()) {
        const RowsView view =
            segment.rows(layer, head / shape.group())
                .part({range.rows.begin + first, range.rows.begin + first + rows});
        dot_block(
            &queries_[static_cast<std::size_t>((token * shape.q_heads + head) * shape.head_dim)],
            shape.group(), view.keys, weights.data(), rows);
        for (std::int64_t g = 0; g < shape.group(); ++g) {
          float* of_head = &weights[static_cast<std::size_t>(g * rows)];
          to_weights(shape, lse[head + g], of_head, rows);
          for (std::int64_t i = 0; i < rows; ++i)
            range_weights_[static_cast<std::size_t>(first + i)] += of_head[i];
        }
      }
    }
  });
  for (std::int64_t i = 0; i < count; ++i)
    add_weight(segment.first + range.rows.begin + i, range_weights_[static_cast<std::size_t>(i)]);
}

void PositionMass::weigh_found(std::int64_t layer, std::int64_t token, const float* lse) {
  const AttentionShape& shape = session_.shape;
  const auto each = [&](std::int64_t head, const auto& use) {
    for (std::size_t s = 0; s < session_.segments.size(); ++s) {
      Rows& of = rows_of(token, head, s);
      if (!of.rows.empty()) use(session_.segments[s], of);
    }
  };
  parallel_for(shape.q_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      each(head, [&](const Segment& segment, Rows& of) {
        const std::int64_t count = std::ssize(of.rows);
        of.weights.resize(of.rows.size());
        dot_gather(
            &queries_[static_cast<std::size_t>((token * shape.q_heads + head) * shape.head_dim)], 1,
            segment.rows(layer, head / shape.group()).keys, of.rows.data(), count,
            of.weights.data(), count);
        to_weights(shape, lse[head], of.weights.data(), count);
      });
    }
  });
  for (std::int64_t head = 0; head < shape.q_heads; ++head) {
    each(head, [&](const Segment& segment, const Rows& of) {
      for (std::size_t i = 0; i < of.rows.size(); ++i)
        add_weight(segment.first + of.rows[i], of.weights[i]);
    });
  }
}

void PositionMass::add_weight(std::int64_t position, double weight) {
  if (weight == 0) return;
  const auto at = static_cast<std::size_t>(position);
  if (call_.size() <= at) call_.resize(at + 1);
  if (call_[at] == 0) weighed_.push_back(position);
  call_[at] += weight;
}

void PositionMass::end_call() {
  if (sums_.size() < call_.size()) sums_.resize(call_.size());
  for (const std::int64_t position : weighed_)
    sums_[static_cast<std::size_t>(position)] += call_[static_cast<std::size_t>(position)];
  begin_call();
}

void PositionMass::truncate(std::int64_t tokens) {
  if (std::ssize(sums_) > tokens) sums_.resize(static_cast<std::size_t>(tokens));
}

std::vector<double> PositionMass::sums(std::int64_t tokens) const {
  std::vector<double> sums = sums_;
  sums.resize(static_cast<std::size_t>(tokens));
  return sums;
}

}  // namespace topkv
