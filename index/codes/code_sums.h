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
inline constexpr std::int64_t tile_blocks = code_tile / code_block;
/// Keys that a thread sums up at a time.
inline constexpr std::int64_t sum_keys = 65536;
/// Of contexts of more keys, a part of the values is read even if all weights are alike.
inline constexpr std::int64_t all_read = 4 * sum_keys;

/// Scores of one query with the keys first to first + count - 1, at most code_tile of them.
struct TileScores {
  float* scores = nullptr;  ///< of each key; room for whole blocks of code_block
  float* highs = nullptr;   ///< the largest of each block
  std::int64_t first = 0;
  std::int64_t count = 0;

  std::int64_t blocks() const { return (count + code_block - 1) / code_block; }
  float high() const;

  /// Caps all scores (soft_cap).
  void cap(float softcap);
  /// The score of key first + i becomes -inf.
  void leave_out(std::int64_t i);
  /// Likewise for those of the positions, ascending, that are among the keys.
  void leave_out(std::span<const std::int64_t> positions);
  /// Likewise for keys outside a range, and what lies behind the last key in its block.
  void leave_outside(PositionRange range);
  /// Finds the largest score of a block again.
  void update(std::int64_t block);
};

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

  /// log of the mean mass, less s² / 2, in place of each score.
  void correct(TileScores tile) const;

 private:
  static constexpr int entries = 64;

  /// Whether correct() changes scores up to so much.
  bool changes(float high) const;
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
///
/// The weights of all keys are added up, but not all values are read. A block of values that holds
/// little of the weights so far is light, and waits. Once a fixed share of the weights waits, a
/// light block is read and stands for that share; what waits beyond it waits on. Light blocks are
/// so read with a chance that is proportional to their weight (systematic sampling; Madow 1949),
/// and all others are read as they are. The estimate is a mean of values, with weights of 0 and
/// more that add up to 1.
struct CodeSums {
  float share = 0;          ///< of the weights, that waits at the most
  float expected = 0;       ///< log of about the sum of exp(score) of all keys of the part
  float high = empty_lse;   ///< the largest score of a code
  float total = 0;          ///< of the weights exp(score - high)
  float squares = 0;        ///< of these
  float waiting = 0;        ///< of the weights: of blocks that no block that was read stands for
  float read = 0;           ///< of the weights that values were read with
  float read_squares = 0;   ///< of the squares of these
  std::vector<float> axes;  ///< of the weights that the values that have the bit of each axis were
                            ///< read with (ValueCoder::place_of_sum)

  /// keys: of the context, in parts of sum_keys of which each has its sums. expected: -inf: not
  /// known.
  void reset(std::int64_t lanes, std::int64_t keys, float expected = empty_lse);
  /// Weights are relative to this score from now on, if it is larger.
  void raise(float score);
  /// Adds the weights of a tile. weights, rounded: [code_tile], workspaces. has_values: there are
  /// codes of values. Returns what is to be read of the tile's values (sum_values) before the next
  /// call, from `rounded`.
  WeightedTile add(const TileScores& tile, std::span<float> weights,
                   std::span<std::uint8_t> rounded, bool has_values);
  void add(CodeSums& other);
  /// Overwrites the partial with what was summed up; nothing: with the empty one.
  void give(const ValueCoder& coder, float correction, PartialView estimate,
            TailNoise& noise) const;
};

/// Asks memory for what will be read soon.
void prefetch(std::span<const std::uint8_t> bytes);

/// Adds the keys of a tile (TileScores::first: a multiple of value_block) to the sums of each
/// query. Scores are -inf for keys that are left out; they are overwritten. codes: of all values;
/// unused where the coder has none.
void add_tile(const ValueCoder& coder, const std::uint8_t* codes,
              std::span<const ScoreEstimate> estimates, std::span<TileScores> tile,
              std::span<CodeSums> sums);

}  // namespace topkv
