#include "src/session/row_sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "index/common/in_place_keys.h"
#include "index/common/scratch.h"
#include "src/core/math/dot.h"
#include "src/core/math/random_draws.h"
#include "src/core/math/vector_math.h"

namespace topkv {
namespace {

// Rows of the first sample: a share of all rows, and no fewer than `least_first`. Rows of large
// weight are rare, and a small sample misses them.
constexpr std::int64_t first_share = 256;
constexpr std::int64_t least_first = 128;
// Rows of the second sample: enough for the central limit theorem.
constexpr std::int64_t least_second = 32;

struct SampleMemory {
  std::vector<std::int64_t> skipped;  // known rows of the range, ascending
  std::vector<std::int64_t> before;   // per skipped row: the rows before it that are not skipped
  std::vector<std::uint64_t> marks;
  std::vector<std::int64_t> drawn;
  std::vector<float> scores, value;
  std::vector<double> sum, whole;
  Partial first, known;
};

/// The rows of a range without some of them.
class OtherRows {
 public:
  OtherRows(PositionRange range, std::vector<std::int64_t>& skipped,
            std::vector<std::int64_t>& before)
      : range_(range), before_(before) {
    before.clear();
    for (const std::int64_t row : skipped) before.push_back(row - range.begin - std::ssize(before));
  }
  std::int64_t count() const { return range_.size() - std::ssize(before_); }
  /// Turns ascending numbers of these rows into positions.
  void to_positions(std::vector<std::int64_t>& numbers) const {
    auto next = before_.begin();
    for (std::int64_t& number : numbers) {
      next = std::upper_bound(next, before_.end(), number);
      number += range_.begin + (next - before_.begin());
    }
  }
  void all(std::vector<std::int64_t>& positions) const {
    positions.resize(static_cast<std::size_t>(count()));
    for (std::int64_t i = 0; i < count(); ++i) positions[static_cast<std::size_t>(i)] = i;
    to_positions(positions);
  }

 private:
  PositionRange range_;
  std::vector<std::int64_t>& before_;
};

double squared_length(const std::vector<double>& x) {
  double sum = 0;
  for (const double of : x) sum += of * of;
  return sum;
}

/// Attends the first sample, into `out`, and returns how many of `others` other rows the second
/// sample needs. At least `others`: all of them. known: the partial over all other rows of the
/// query.
double wanted_rows(const SampledQuery& of, const Guarantee& bound, PartialView known,
                   std::int64_t others, SampleMemory& workspace, PartialView out) {
  const auto& rows = workspace.drawn;
  const auto count = std::ssize(rows);
  const std::int64_t dim = out.head_dim;
  auto& scores = workspace.scores;
  scores.resize(rows.size());
  dot_gather(of.query, 1, of.rows.keys, rows.data(), count, scores.data(), count);
  scale_by(scores.data(), count, of.scale);
  if (of.softcap > 0) soft_cap(scores.data(), count, of.softcap);
  const double high = max_of(scores.data(), count);
  double weight = 0;         // sums over the sample, relative to exp(high): of weights,
  double squares = 0;        // of their squares,
  double value_squares = 0;  // and of the squared lengths of weighted values
  workspace.value.resize(static_cast<std::size_t>(dim));
  auto& sum = workspace.sum;
  sum.assign(static_cast<std::size_t>(dim), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    widen_key(of.rows.values, rows[i], workspace.value.data());
    const double w = std::exp(scores[i] - high);
    double size = 0;
    for (std::size_t d = 0; d < sum.size(); ++d) {
      const double v = workspace.value[d];
      sum[d] += w * v;
      size += v * v;
    }
    weight += w;
    squares += w * w;
    value_squares += w * w * size;
  }
  for (std::size_t d = 0; d < sum.size(); ++d) out.out[d] = static_cast<float>(sum[d] / weight);
  *out.lse = static_cast<float>(high + std::log(weight));

  // All rows, as far as they are known.
  const auto n = static_cast<double>(count);
  const auto rest = static_cast<double>(others);
  const double top = std::max<double>(high, *known.lse);
  const double unit = std::exp(high - top);
  const double before = std::exp(*known.lse - top);
  const double each = unit * (rest / n + 1);  // the rows for which a row of the sample stands
  const double whole_weight = before + each * weight;
  auto& whole = workspace.whole;
  whole.resize(sum.size());
  for (std::size_t d = 0; d < sum.size(); ++d) whole[d] = before * known.out[d] + each * sum[d];
  const auto variance = [&](double squared, double square_of_sum) {
    return unit * unit * std::max(squared - square_of_sum / n, 0.0) / (n - 1);
  };
  const double weight_variance = variance(squares, weight * weight);
  const double value_variance = variance(value_squares, squared_length(sum));
  const double whole_square =
      squared_length(whole) - rest * rest * value_variance * (1 / n + 1 / rest);

  const double z = normal_bound(bound.delta / 2);
  const double e = bound.epsilon / (2 + bound.epsilon);
  const double factor = z * rest / e;
  double most = 0;
  for (const auto& [variance_of_row, square] :
       {std::pair{weight_variance, whole_weight * whole_weight},
        std::pair{value_variance, whole_square}}) {
    if (variance_of_row == 0) continue;
    const double repeated = factor * factor * variance_of_row / square;
    // Sums that are all noise, or not finite, need all rows.
    if (!(square > 0 && repeated < std::numeric_limits<double>::infinity())) return rest;
    most = std::max(most, repeated / (1 + repeated / rest));
  }
  return most;
}

}  // namespace

SampledRows attend_sample(const SampledQuery& of, const Guarantee& bound, PartialView known,
                          PartialView out) {
  const Scratch<SampleMemory> workspace;
  auto& drawn = workspace->drawn;
  auto& skipped = workspace->skipped;
  skipped.clear();
  for (const std::int64_t row : of.taken) {
    if (of.range.contains(row)) skipped.push_back(row);
  }
  const auto attend = [&](PartialView into) {
    attend_rows(of.query, of.rows, drawn, of.scale, into, of.softcap);
  };
  std::fill_n(out.out, out.head_dim, 0.0F);
  *out.lse = empty_lse;
  const OtherRows rows(of.range, skipped, workspace->before);
  if (rows.count() == 0) return {};
  const std::int64_t first = std::max(least_first, rows.count() / first_share);
  if (first + least_second >= rows.count()) {
    rows.all(drawn);
    attend(out);
    return {rows.count(), true};
  }
  RandomDraws draws(of.seed);
  draw_distinct(draws, first, rows.count(), workspace->marks, drawn);
  rows.to_positions(drawn);
  const std::int64_t others = rows.count() - first;
  const double wanted = wanted_rows(of, bound, known, others, *workspace, out);

  const auto middle = skipped.insert(skipped.end(), drawn.begin(), drawn.end());
  std::inplace_merge(skipped.begin(), middle, skipped.end());
  const OtherRows left(of.range, skipped, workspace->before);
  const bool all = !(wanted < static_cast<double>(others));
  const std::int64_t second =
      all ? others : std::clamp(static_cast<std::int64_t>(std::ceil(wanted)), least_second, others);
  if (second == others) {
    left.all(drawn);
  } else {
    draw_distinct(draws, second, others, workspace->marks, drawn);
    left.to_positions(drawn);
  }
  workspace->first.reset(1, out.head_dim);
  const PartialView sample = workspace->first.view();
  attend(sample);
  *sample.lse +=
      static_cast<float>(std::log(static_cast<double>(others) / static_cast<double>(second)));
  merge(out, sample);
  return {first + second, second == others};
}

}  // namespace topkv
