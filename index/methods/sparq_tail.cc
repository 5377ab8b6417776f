#include "index/methods/sparq_tail.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "index/codes/code_axes.h"
#include "index/common/scratch.h"
#include "src/core/math/dot.h"
#include "src/core/math/vector_math.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Σ w² / (Σ w)².
float share_of_squares(std::span<const float> weights) {
  double sum = 0;
  double squares = 0;
  for (const float weight : weights) {
    sum += weight;
    squares += static_cast<double>(weight) * weight;
  }
  return static_cast<float>(squares / (sum * sum));
}

}  // namespace

SparqTail::SparqTail(const SparqIndex& index, const RowsView& rows, const std::stop_token& stop)
    : index_(index), rows_(rows) {
  if (stop.stop_requested()) throw Stopped("sparq: stopped while adding up values");
  if (rows.count() == 0) return;
  const CodeAxes mean = CodeAxes::mean_of(rows.values);
  mean_ = mean.mean();
  spread_ = static_cast<float>(mean.variances()[0]);
}

std::int64_t SparqTail::memory() const {
  return static_cast<std::int64_t>(sizeof *this + mean_.capacity() * sizeof(float));
}

void SparqTail::attend(const QueryBlock& queries,
                       std::span<const std::span<const std::int64_t>> taken,
                       std::span<const float> /*ceilings*/, float scale, float softcap,
                       const TailParts& out) const {
  make_empty(out);
  struct Workspace {
    SparqScores approximate;
    std::vector<float> attended, exact;
  };
  const Scratch<Workspace> workspace;
  auto& [approximate, attended, exact] = *workspace;
  const auto capped = [&](std::vector<float>& scores) {
    if (softcap > 0) soft_cap(scores.data(), std::ssize(scores), softcap);
  };
  // The log-sum-exp; scores become their exponentials, from the largest.
  const auto lse_of = [](float* scores, std::int64_t count) {
    const float high = max_of(scores, count);
    if (high == empty_lse) return empty_lse;
    return high + std::log(exp_shifted(scores, count, high));
  };
  for (std::int64_t first = 0; first < queries.count; first += queries.group) {
    const PositionRange range =
        queries.allowed[static_cast<std::size_t>(first)].within({0, rows_.count()});
    if (range.size() == 0) continue;
    index_.score({queries.query(first), queries.group, queries.dim, scale}, range, approximate);
    capped(approximate.scores);
    for (std::int64_t h = 0; h < queries.group; ++h) {
      float* scores = approximate.scores.data() + h * range.size();
      attended.clear();
      exact.clear();
      for (const std::int64_t position : taken[static_cast<std::size_t>(first + h)]) {
        if (!range.contains(position)) continue;
        attended.push_back(std::exchange(scores[position - range.begin], empty_lse));
        exact.push_back(scale * dot(queries.query(first + h), rows_.keys, position));
      }
      float lse = lse_of(scores, range.size());
      if (lse == empty_lse) continue;  // all are attended
      const float squares = share_of_squares({scores, static_cast<std::size_t>(range.size())});
      if (!attended.empty()) {
        capped(exact);
        lse +=
            lse_of(exact.data(), std::ssize(exact)) - lse_of(attended.data(), std::ssize(attended));
      }
      const PartialView to = out.estimate.part(first + h);
      std::copy(mean_.begin(), mean_.end(), to.out);
      to.lse[0] = lse;
      out.noise[first + h].values = squares * spread_;
    }
  }
}

void SparqTail::fields(Archive& archive) {
  if (rows_.count() == 0) return;
  archive.array(mean_);
  archive.value(spread_);
  archive.check(std::ssize(mean_) == rows_.dim() && spread_ >= 0,
                "its mean does not belong to these values");
}

}  // namespace topkv
