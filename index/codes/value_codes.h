// Codes of values: one bit for each of the axes along which the values of a head vary most, which
// chooses one of two levels. The levels lie near the ends of what is there, and a value between
// them gets the nearer one more often, so that it is met on average (stochastic rounding; Gray &
// Stockham 1993, "Dithered quantizers"): errors average out in a sum over many values also where
// text repeats and values are alike, which the nearest level would miss by the same error each
// time. Of one value more is lost (for normal values 3.6 times the variance along an axis, 0.36
// with the nearest of the best two levels), and what lies beyond the levels stays there.
//
// Sums of weighted values are what codes are for: only the sum of the weights of the values that
// have a bit is needed of each axis. Four values' bits of an axis lie in one nibble, so that a
// table of the 16 sums of their four weights serves all axes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "index/codes/code_axes.h"
#include "topkv/view.h"

namespace topkv {

/// What was learned of one head's values. Const members are safe from many threads.
class ValueCoder {
 public:
  ValueCoder() = default;

  /// Learns from values sampled evenly out of all. bits: of one code; more than the values have
  /// dims are not used. 0: there are no codes, and every value is taken for the mean of all of
  /// them, none left out. REQUIRES: values.count > 0. Throws InvalidArgument when a value is not
  /// finite.
  ValueCoder(const KeyView& values, std::int64_t bits);

  /// Bytes of the codes of four values: half as many as axes, up to a multiple of 16. Axis a is the
  /// lower nibble of byte a, or the upper one of byte a - lanes().
  std::int64_t lanes() const { return lanes_; }
  /// Of an axis, among the sums of all.
  std::int64_t place_of_sum(std::int64_t axis) const { return 2 * (axis % lanes_) + axis / lanes_; }
  /// Of codes of so many bits.
  static constexpr std::int64_t lanes_for(std::int64_t bits) {
    return ((bits + 1) / 2 + 15) / 16 * 16;
  }
  /// Axes that have a bit.
  std::int64_t bits() const { return static_cast<std::int64_t>(low_.size()); }
  const CodeAxes& axes() const { return axes_; }
  /// The two levels of each axis that has a bit.
  std::span<const float> low() const { return low_; }
  std::span<const float> high() const { return high_; }
  /// The chance that decides an axis is (seed_of(value) * seed_of_axis(axis)) % 2^32
  /// (choose_upper).
  static std::uint32_t seed_of(std::int64_t value);
  static std::uint32_t seed_of_axis(std::int64_t axis) { return seed_of(~axis); }
  /// That the codes of so many values take.
  std::int64_t bytes_for(std::int64_t values) const;
  std::int64_t memory() const;

  /// For a file, of values of so many dims in codes of so many bits.
  void fields(std::int64_t dim, std::int64_t bits, Archive& archive);

  /// Writes the codes of values first to first + count - 1 among those of all values, which were 0.
  /// A code depends on the value and its number alone.
  /// Throws InvalidArgument when a value is not finite.
  void encode(const KeyView& values, std::int64_t first, std::int64_t count,
              std::uint8_t* codes) const;

  /// The value that the code at a position stands for: [dim].
  void decode(const std::uint8_t* codes, std::int64_t position, float* value) const;

  /// The mean of values whose weights sum up to `total` in all, and to sums[place_of_sum(a)] for
  /// those that have the bit of axis a: [lanes, 2]. value: [dim].
  void mean_of(const float* sums, float total, float* value) const;

  /// The squared distance, on average, of what codes stand for from its mean, and of a value from
  /// what its code stands for.
  float variance() const { return variance_; }
  float error_variance() const { return error_variance_; }

  /// What decode() is made of: value = base + Σ_a (bit of axis a) axes_a. Infinite beyond float32.
  /// axes: [bits(), dim]; base: [dim].
  void linear(float* axes, float* base) const;

 private:
  CodeAxes axes_;
  std::int64_t lanes_ = 0;
  std::vector<float> low_, high_;
  float variance_ = 0;
  float error_variance_ = 0;
};

/// Values whose codes lie together, as [values / 4, lanes].
inline constexpr std::int64_t value_block = 64;
/// So many values, up to a whole number of blocks.
constexpr std::int64_t whole_value_blocks(std::int64_t values) {
  return (values + value_block - 1) / value_block * value_block;
}
/// Values that a tile has at most: sums of 8 bits fit into 16.
inline constexpr std::int64_t value_tile = 1024;

/// Of the weights of a tile's values, and of their squares.
struct WeightSums {
  float total = 0;
  float squares = 0;
};

/// weights[i] = exp(scores[i] - high), for `count` values, at most value_tile and a multiple of
/// value_block; off by at most 1e-6 of it. sums: of each block. REQUIRES: no score above high.
void weigh_scores(const float* scores, std::int64_t count, float high, float* weights,
                  WeightSums* sums);

/// What round_weights gives.
struct RoundedWeights {
  float unit = 0;   ///< what 1 stands for
  float total = 0;  ///< of the rounded weights, in units of weights
};

/// Whole numbers of 6 to 8 bits for the weights of some blocks of a tile, weights[i] * factors[its
/// block] each; what rounding leaves is carried to later ones. blocks: bit b for block b of the
/// tile; out: [those, value_block]. REQUIRES: `largest` above 0, and no weight times its factor
/// above it.
RoundedWeights round_weights(const float* weights, std::uint32_t blocks, const float* factors,
                             float largest, std::uint8_t* out);

/// Some blocks of a tile, for one query.
struct WeightedTile {
  std::uint32_t blocks = 0;               ///< as for round_weights
  const std::uint8_t* weights = nullptr;  ///< by round_weights
  float unit = 1;
  float* sums = nullptr;  ///< [lanes, 2]
};

/// Adds to the sum of each axis, at ValueCoder::place_of_sum, the unit times the rounded
/// weights of those values of the blocks that have its bit, for each query. codes: of the tile.
void sum_values(const std::uint8_t* codes, std::int64_t lanes,
                std::span<const WeightedTile> queries);

}  // namespace topkv
