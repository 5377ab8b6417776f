// What an estimate made of codes is summed up from: weights of scores, tile by tile, and of the
// values that they are of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "index/codes/codes_index.h"
#include "index/codes/value_codes.h"
#include "index/common/row_tail.h"

namespace topkv {

/// Keys scored at a time.
inline constexpr std::int64_t code_tile = 512;

/// What is known of one query's scores, from code and ceiling.
///
/// A code leaves an error in a score, of known variance s² over all keys; masses are the means of
/// exp(score) over such errors, taken as normal, that leave the score below the ceiling:
///
///   exp(score + s²/2) F((x - s²) / s) / F(x / s),   x = ceiling - score, F the normal distribution
///
/// (Where scores are capped: exp(min(score, ceiling)).)
class ScoreEstimate {
 public:
  /// deviation: s, the standard deviation of a code's error.
  void set(float ceiling, double deviation);

  /// s² / 2
  float correction() const { return correction_; }

  /// Whether correct() changes scores up to so much.
  bool changes(float high) const;
  /// log of the mean mass, less s² / 2, in place of each score; count: at most code_tile.
  void correct(float* scores, std::int64_t count) const;

 private:
  static constexpr int entries = 64;

  float shift(double x) const;

  float ceiling_ = 0;
  float correction_ = 0;
  double reach_ = 0, first_ = 0, step_ = 0;
  float table_[entries];
};

/// Has a query's codes give scaled scores that are finite. Returns the standard deviation of a
/// code's error; 0 where scores are capped, which it says little of.
double weigh_scaled(const KeyCoder& coder, const float* query, float scale, float softcap,
                    SlotWeights& weights);

/// Of one query, over some keys.
struct CodeSums {
  float high = empty_lse;   ///< the largest score of a code
  float total = 0;          ///< of the weights exp(score - high)
  float squares = 0;        ///< of these
  std::vector<float> axes;  ///< the weights of the values that have the bit of each axis

  void reset(std::int64_t lanes);
  /// Weights are relative to this score from now on, if it is larger.
  void raise(float score);
  void add(CodeSums& other);
  /// Overwrites the partial with what was summed up; nothing: with the empty one.
  void give(const ValueCoder& coder, float correction, PartialView estimate,
            TailNoise& noise) const;
};

/// x[at] = -inf for those of the positions, ascending, that lie in [first, first + count).
void leave_out(std::span<const std::int64_t> positions, std::int64_t first, std::int64_t count,
               float* x);
/// Likewise for those outside a range, and those from count on up to a whole number of
/// value_blocks.
void leave_outside(PositionRange range, std::int64_t first, std::int64_t count, float* x);

/// Asks memory for what will be read soon.
void prefetch(std::span<const std::uint8_t> bytes);

/// Adds keys first to first + count - 1 (first: a multiple of value_block) to the sums of each
/// query: scores[q * code_tile + i], -inf for those that are left out, which it overwrites. highs:
/// the largest of each query's. codes: of all values; unused where the coder has none.
void add_tile(const ValueCoder& coder, const std::uint8_t* codes, std::int64_t first,
              std::int64_t count, std::span<const ScoreEstimate> estimates, float* scores,
              std::span<const float> highs, std::span<CodeSums> sums);

}  // namespace topkv
