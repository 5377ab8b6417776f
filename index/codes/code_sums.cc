#include "index/codes/code_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "index/common/scratch.h"
#include "src/core/math/find_above_threshold.h"
#include "src/core/math/vector_math.h"

namespace topkv {
namespace {

constexpr float negligible = 25;  // the blocks of a thread that are this far below add 1e-6 at most
// A block with less than a share of the sum of weights waits until that much waits with it. A
// thread sums up 1024 blocks before it begins anew: with this share, all blocks are read where
// weights are even.
constexpr float least_share = 1.0F / 2048;
// Even weights read all values of this many parts, and no more of longer contexts. (Over 256 Ki
// tokens, reading one part of four made the bundled model's error 0.0503 in place of 0.0487.)
constexpr std::int64_t parts_read = all_read / sum_keys;
// Until that much is summed up, the share is one of the sum that is expected. No more than this
// part of the sum so far waits for it, so that some blocks are read whatever was expected.
constexpr float waits_at_first = 1.0F / 16;
constexpr float largest_score = 1e30F;  // of hostile keys: their differences stay finite
constexpr double largest_deviation = 1e6;

/// log of the normal distribution, between points 1/32 apart: two of them give value and slope, and
/// a cubic through these is within 1e-9.
class LogNormal {
 public:
  LogNormal() {
    for (int i = 0; i < points; ++i) {
      const double z = least + i * step;
      values_[i] = std::log(0.5 * std::erfc(-z / std::sqrt(2.0)));
      slopes_[i] = std::exp(-z * z / 2 - half_log_two_pi - values_[i]) * step;
    }
  }

  double operator()(double z) const {
    const double at = (z - least) / step;
    if (at >= points - 1) return 0;
    if (at < 0) {
      const double w = 1 / (z * z);
      return -z * z / 2 - std::log(-z) - half_log_two_pi + std::log1p(-w + 3 * w * w);
    }
    const int i = static_cast<int>(at);
    const double u = at - i;
    const double rise = values_[i + 1] - values_[i];
    const double first = slopes_[i] - rise;
    const double second = rise - slopes_[i + 1];
    return values_[i] + u * (rise + (1 - u) * ((1 - u) * first + u * second));
  }

 private:
  static constexpr double least = -16;
  static constexpr double step = 1.0 / 32;
  static constexpr int points = 24 * 32 + 1;  // up to 8
  static constexpr double half_log_two_pi = 0.91893853320467274178;

  double values_[points];
  double slopes_[points];
};

}  // namespace

void ScoreEstimate::set(float ceiling, double deviation) {
  ceiling_ = ceiling;
  const double variance = deviation * deviation;
  correction_ = static_cast<float>(variance / 2);
  reach_ = variance + 4 * deviation;  // F is 1 beyond
  first_ = -8 * deviation;
  step_ = (reach_ - first_) / (entries - 1);
  static const LogNormal log_normal;
  for (int i = 0; step_ > 0 && ceiling <= largest_score && i < entries; ++i) {
    const double t = (first_ + i * step_) / deviation;
    table_[i] = static_cast<float>(log_normal(t - deviation) - log_normal(t));
  }
}

bool ScoreEstimate::changes(float high) const {
  return ceiling_ <= largest_score && high > ceiling_ - static_cast<float>(reach_);
}

void ScoreEstimate::correct(TileScores tile) const {
  for (std::int64_t b = 0; b < tile.blocks(); ++b) {
    if (!changes(tile.highs[b])) continue;
    float* scores = tile.scores + b * code_block;
    std::int32_t near[code_block];
    const std::int64_t found =
        find_above(scores, code_block, ceiling_ - static_cast<float>(reach_), near);
    for (std::int64_t i = 0; i < found; ++i) {
      float& score = scores[near[i]];
      score = score + shift(static_cast<double>(ceiling_) - score);
    }
    tile.update(b);
  }
}

/// log(F((x - s²) / s) / F(x / s))
float ScoreEstimate::shift(double x) const {
  if (step_ == 0) return static_cast<float>(std::min(0.0, x));
  const double at = (x - first_) / step_;
  if (at <= 0) return table_[0] + static_cast<float>(x - first_);  // falls as x from here
  const int i = std::min(static_cast<int>(at), entries - 2);
  return table_[i] + static_cast<float>(at - i) * (table_[i + 1] - table_[i]);
}

double weigh_scaled(const KeyCoder& coder, const float* query, float scale, float softcap,
                    SlotWeights& weights) {
  coder.weigh_slots(query, weights);
  for (float* step : {&weights.step, &weights.table_step})
    *step = std::min(*step * scale, largest_score / 262144);  // sums are below
  for (float* offset : {&weights.offset, &weights.table_offset})
    *offset = std::clamp(*offset * scale, -largest_score, largest_score);
  if (softcap > 0) return 0;
  const double deviation = scale * std::sqrt(coder.error_variance(query));
  return deviation < largest_deviation ? deviation : largest_deviation;  // NaN, beyond float32
}

void CodeSums::reset(std::int64_t lanes, std::int64_t keys, float sum_expected) {
  expected = sum_expected;
  const std::int64_t parts = (keys + sum_keys - 1) / sum_keys;
  share = least_share * std::max(1.0F, static_cast<float>(parts) / parts_read);
  high = empty_lse;
  total = squares = waiting = read = read_squares = 0;
  axes.assign(static_cast<std::size_t>(2 * lanes), 0.0F);
}

void CodeSums::raise(float score) {
  if (score <= high) return;
  const float shrink = std::exp(high - score);
  for (float* sum : {&total, &waiting, &read}) *sum *= shrink;
  for (float* sum : {&squares, &read_squares}) *sum *= shrink * shrink;
  scale_by(axes.data(), std::ssize(axes), shrink);
  high = score;
}

void CodeSums::add(CodeSums& other) {
  if (other.high == empty_lse) return;
  raise(other.high);
  other.raise(high);
  total += other.total;
  squares += other.squares;
  read += other.read;
  read_squares += other.read_squares;
  add_to(axes.data(), other.axes.data(), std::ssize(axes));
}

void CodeSums::give(const ValueCoder& coder, float correction, PartialView estimate,
                    TailNoise& noise) const {
  if (high == empty_lse) {
    std::fill_n(estimate.out, estimate.head_dim, 0.0F);
    *estimate.lse = empty_lse;
    noise = {};
    return;
  }
  coder.mean_of(axes.data(), read, estimate.out);
  *estimate.lse = high + std::log(total) + correction;
  const float square = squares / (total * total);
  const float read_square = coder.lanes() > 0 ? read_squares / (read * read) : square;
  const float variance = std::expm1(std::min(2 * correction, largest_tail_variance));
  // Blocks that stand for others add to the error what they differ by from these.
  const float of_sample = std::max(read_square - square, 0.0F) * coder.variance();
  noise = {square * variance, read_square * coder.error_variance() + of_sample, coder.variance()};
}

float TileScores::high() const { return *std::max_element(highs, highs + blocks()); }

void TileScores::update(std::int64_t block) {
  highs[block] = max_of(scores + block * code_block, code_block);
}

void TileScores::cap(float softcap) {
  soft_cap(scores, blocks() * code_block, softcap);  // whole vectors: alike
  for (std::int64_t b = 0; b < blocks(); ++b) update(b);
}

void TileScores::leave_out(std::int64_t i) {
  const std::int64_t block = i / code_block;
  const bool was_highest = scores[i] >= highs[block];
  scores[i] = empty_lse;
  if (was_highest) update(block);
}

void TileScores::leave_out(std::span<const std::int64_t> positions) {
  auto at = std::lower_bound(positions.begin(), positions.end(), first);
  for (; at != positions.end() && *at < first + count; ++at) leave_out(*at - first);
}

void TileScores::leave_outside(PositionRange range) {
  const std::int64_t end = blocks() * code_block;
  const std::int64_t from = std::clamp<std::int64_t>(range.begin - first, 0, count);
  const std::int64_t to = std::max(from, std::clamp<std::int64_t>(range.end - first, 0, count));
  if (from == 0 && to == end) return;
  std::fill(scores, scores + from, empty_lse);
  std::fill(scores + to, scores + end, empty_lse);
  for (std::int64_t b = 0; b < blocks(); ++b) {
    if (b * code_block < from || (b + 1) * code_block > to) update(b);
  }
}

void prefetch(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t line = 64;
  for (std::size_t i = 0; i < bytes.size(); i += line) __builtin_prefetch(bytes.data() + i);
}

WeightedTile CodeSums::add(const TileScores& tile, std::span<float> weights,
                           std::span<std::uint8_t> rounded, bool has_values) {
  WeightedTile to_read{.weights = rounded.data(), .sums = axes.data()};
  const float of_tile = tile.high();
  if (of_tile < high - negligible || of_tile == empty_lse) return to_read;
  raise(of_tile);
  const std::int64_t blocks = tile.blocks();
  const auto counts = [&](std::int64_t b) { return tile.highs[b] >= high - negligible; };
  WeightSums sums[tile_blocks];
  for (std::int64_t b = 0; b < blocks;) {
    std::int64_t end = b;
    while (end < blocks && counts(end)) ++end;
    if (end > b) {
      const std::int64_t at = b * code_block;
      weigh_scores(tile.scores + at, (end - b) * code_block, high,
                   &weights[static_cast<std::size_t>(at)], sums + b);
    }
    b = end + 1;
  }
  WeightSums all;
  const float foreseen = share * std::exp(expected - high);
  float factors[tile_blocks];
  float largest = 0;
  for (std::int64_t b = 0; b < blocks; ++b) {
    all.total += sums[b].total;
    all.squares += sums[b].squares;
    const float so_far = total + all.total;
    const float most = std::max(share * so_far, std::min(foreseen, waits_at_first * so_far));
    const bool light = !has_values || sums[b].total < most;
    if (light) waiting += sums[b].total;
    if (!has_values || (light && waiting < most)) continue;
    if (!counts(b)) continue;  // of keys that are left out, perhaps
    factors[b] = light ? most / sums[b].total : 1;
    if (light) waiting -= most;
    largest = std::max(largest, factors[b] * std::exp(tile.highs[b] - high));
    read_squares += factors[b] * factors[b] * sums[b].squares;
    to_read.blocks |= std::uint32_t{1} << b;
  }
  total += all.total;
  squares += all.squares;
  if (to_read.blocks == 0) return to_read;
  const RoundedWeights whole =
      round_weights(weights.data(), to_read.blocks, factors, largest, rounded.data());
  to_read.unit = whole.unit;
  read += whole.total;
  return to_read;
}

void add_tile(const ValueCoder& coder, const std::uint8_t* codes,
              std::span<const ScoreEstimate> estimates, std::span<TileScores> tile,
              std::span<CodeSums> sums) {
  if (tile.empty()) return;
  struct Workspace {
    std::vector<float> weights;          // [code_tile]
    std::vector<std::uint8_t> rounded;   // [queries, code_tile]
    std::vector<WeightedTile> weighted;  // per query that reads values
  };
  const Scratch<Workspace> workspace;
  auto& [weights, rounded, weighted] = *workspace;
  weights.resize(code_tile);
  rounded.resize(sums.size() * code_tile);
  weighted.clear();
  const std::int64_t lanes = coder.lanes();
  const std::uint8_t* values = codes + tile[0].first / 4 * lanes;
  for (std::size_t q = 0; q < sums.size(); ++q) {
    estimates[q].correct(tile[q]);
    const WeightedTile to_read = sums[q].add(
        tile[q], weights, std::span(rounded).subspan(q * code_tile, code_tile), lanes > 0);
    if (to_read.blocks == 0) continue;
    weighted.push_back(to_read);
    constexpr std::int64_t of_four = value_block / 4;
    for (std::uint32_t blocks = to_read.blocks; blocks != 0; blocks &= blocks - 1) {
      const std::uint8_t* block = values + std::countr_zero(blocks) * of_four * lanes;
      prefetch({block, static_cast<std::size_t>(of_four * lanes)});
    }
  }
  sum_values(values, lanes, weighted);
}

}  // namespace topkv
