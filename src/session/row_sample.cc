#include "src/session/row_sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "index/common/scratch.h"
#include "src/core/math/dot.h"
#include "src/core/math/random_draws.h"
#include "src/core/math/vector_math.h"
#include "src/core/math/weighted_sum.h"

namespace topkv {
namespace {

// Rows of the first sample: a share of all rows, and no fewer than `least_first`. Rows of large
// weight are rare, and a small sample misses them.
constexpr std::int64_t first_share = 256;
constexpr std::int64_t least_first = 128;
// Rows of the second sample: enough for the central limit theorem. It grows by this at least, and
// by this part of itself, so that few rounds follow each other.
constexpr std::int64_t least_second = 32;
constexpr std::int64_t least_growth = 8;
constexpr std::int64_t summed_at_once = 256;

double squared_length(const std::vector<double>& x) {
  double sum = 0;
  for (const double of : x) sum += of * of;
  return sum;
}

/// Sums over sampled rows, relative to exp(high).
struct SampleSums {
  std::int64_t count = 0;
  double high = 0;             // the largest score
  double weight = 0;           // of weights,
  double squares = 0;          // of their squares,
  double value_squares = 0;    // of the squared lengths of weighted values,
  std::vector<double> values;  // and of weighted values

  void clear(std::int64_t dim) {
    count = 0;
    high = weight = squares = value_squares = 0;
    values.assign(static_cast<std::size_t>(dim), 0);
  }
  /// Turns the sums into sums relative to exp(shift).
  double unit(double shift) const { return count == 0 ? 0 : std::exp(high - shift); }
};

struct SampleMemory {
  std::vector<std::int64_t> skipped;  // rows of the range that are known or sampled, ascending
  std::vector<std::int64_t> before;   // per skipped row: the rows before it that are not skipped
  std::vector<std::uint64_t> marks;
  std::vector<std::int64_t> drawn;
  std::vector<float> scores, value;
  std::vector<double> whole;
  SampleSums first, second;
  Partial part;
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

/// Adds rows to the sums.
void add_rows(const SampledQuery& of, const std::vector<std::int64_t>& rows,
              SampleMemory& workspace, SampleSums& sums) {
  const auto count = std::ssize(rows);
  auto& scores = workspace.scores;
  scores.resize(rows.size());
  dot_gather(of.query, 1, of.rows.keys, rows.data(), count, scores.data(), count);
  scale_by(scores.data(), count, of.scale);
  if (of.softcap > 0) soft_cap(scores.data(), count, of.softcap);
  const double high = max_of(scores.data(), count);
  if (sums.count == 0) sums.high = high;
  if (high > sums.high) {
    const double unit = sums.unit(high);
    sums.high = high;
    sums.weight *= unit;
    sums.squares *= unit * unit;
    sums.value_squares *= unit * unit;
    for (double& of_values : sums.values) of_values *= unit;
  }
  exp_shifted(scores.data(), count, static_cast<float>(sums.high));
  auto& value = workspace.value;
  // Sums in float32 are of few rows.
  for (std::int64_t begin = 0; begin < count; begin += summed_at_once) {
    const std::int64_t here = std::min(summed_at_once, count - begin);
    value.assign(sums.values.size(), 0);
    add_weighted({of.rows.values, rows.data() + begin, here, scores.data() + begin, here, 1},
                 value.data());
    for (std::size_t d = 0; d < value.size(); ++d) sums.values[d] += value[d];
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double w = scores[i];
    sums.weight += w;
    sums.squares += w * w;
    sums.value_squares += w * w * dot_stored(of.rows.values, rows[i], rows[i]);
  }
  sums.count += count;
}

/// Each of the rows with the weight of `stands_for` rows.
void put_partial(const SampleSums& sums, double stands_for, PartialView out) {
  for (std::size_t d = 0; d < sums.values.size(); ++d)
    out.out[d] = static_cast<float>(sums.values[d] / sums.weight);
  *out.lse = static_cast<float>(sums.high + std::log(sums.weight * stands_for));
}

/// Returns how many of `others` other rows the second sample needs, by all rows that were sampled.
/// known: the partial over all other rows of the query.
std::int64_t wanted_rows(const Guarantee& bound, PartialView known, std::int64_t others,
                         SampleMemory& workspace) {
  const SampleSums& first = workspace.first;
  const SampleSums& second = workspace.second;
  const auto rest = static_cast<double>(others);
  double top = std::max<double>(first.high, *known.lse);
  if (second.count > 0) top = std::max(top, second.high);
  const double unit = first.unit(top);
  const double second_unit = second.unit(top);
  // Without a second sample the first one stands for the other rows, too.
  const auto drawn = static_cast<double>(second.count == 0 ? first.count : second.count);
  const double each = second.count == 0 ? unit * (1 + rest / drawn) : unit;
  const double second_each = second_unit * rest / drawn;
  // All rows, as far as they are known.
  const double before = std::exp(*known.lse - top);
  const double whole_weight = before + each * first.weight + second_each * second.weight;
  auto& whole = workspace.whole;
  whole.resize(first.values.size());
  double sum_square = 0;  // of the sampled rows' weighted values
  for (std::size_t d = 0; d < whole.size(); ++d) {
    whole[d] = before * known.out[d] + each * first.values[d] + second_each * second.values[d];
    sum_square += std::pow(unit * first.values[d] + second_unit * second.values[d], 2);
  }
  const auto n = static_cast<double>(first.count + second.count);
  const auto variance = [&](double of_first, double of_second, double square_of_sum) {
    const double squared = unit * unit * of_first + second_unit * second_unit * of_second;
    return std::max(squared - square_of_sum / n, 0.0) / (n - 1);
  };
  const double weight_variance =
      variance(first.squares, second.squares,
               std::pow(unit * first.weight + second_unit * second.weight, 2));
  const double value_variance = variance(first.value_squares, second.value_squares, sum_square);
  const double noise = second.count == 0 ? 1 / drawn + 1 / rest : 1 / drawn - 1 / rest;
  const double whole_square = squared_length(whole) - rest * rest * value_variance * noise;

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
    if (!(square > 0 && repeated < std::numeric_limits<double>::infinity())) return others;
    most = std::max(most, repeated / (1 + repeated / rest));
  }
  return std::min(static_cast<std::int64_t>(std::ceil(most)), others);
}

}  // namespace

SampledRows attend_sample(const SampledQuery& of, const Guarantee& bound, PartialView known,
                          PartialView out) {
  const Scratch<SampleMemory> memory;
  SampleMemory& workspace = *memory;
  std::vector<std::int64_t>& skipped = workspace.skipped;
  SampleSums& first = workspace.first;
  SampleSums& second = workspace.second;
  std::fill_n(out.out, out.head_dim, 0.0F);
  *out.lse = empty_lse;
  const auto skip_taken = [&] {
    skipped.clear();
    for (const std::int64_t row : of.taken) {
      if (of.range.contains(row)) skipped.push_back(row);
    }
  };
  skip_taken();
  const std::int64_t count = of.range.size() - std::ssize(skipped);
  if (count == 0) return {};

  RandomDraws draws(of.seed);
  const auto sample = [&](std::int64_t more, SampleSums& sums) {
    auto& drawn = workspace.drawn;
    const OtherRows left(of.range, skipped, workspace.before);
    draw_distinct(draws, more, left.count(), workspace.marks, drawn);
    left.to_positions(drawn);
    add_rows(of, drawn, workspace, sums);
    const auto middle = skipped.insert(skipped.end(), drawn.begin(), drawn.end());
    std::inplace_merge(skipped.begin(), middle, skipped.end());
  };
  const std::int64_t first_rows = std::max(least_first, count / first_share);
  const std::int64_t others = count - first_rows;
  bool all = others <= least_second;
  first.clear(out.head_dim);
  second.clear(out.head_dim);
  if (!all) sample(first_rows, first);
  while (!all) {
    const std::int64_t wanted = wanted_rows(bound, known, others, workspace);
    if (second.count > 0 && wanted <= second.count) break;
    const std::int64_t more =
        std::max({wanted - second.count, second.count / least_growth, least_second});
    all = second.count + more >= others;
    if (!all) sample(more, second);
  }
  if (all) {
    skip_taken();
    OtherRows(of.range, skipped, workspace.before).all(workspace.drawn);
    attend_rows(of.query, of.rows, workspace.drawn, of.scale, out, of.softcap);
    return {count, true};
  }
  put_partial(first, 1, out);
  workspace.part.reset(1, out.head_dim);
  const PartialView estimate = workspace.part.view();
  put_partial(second, static_cast<double>(others) / static_cast<double>(second.count), estimate);
  merge(out, estimate);
  return {first.count + second.count, false};
}

}  // namespace topkv
