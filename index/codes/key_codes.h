// Codes of keys: a few bytes that stand for a key well enough to score it.
//
// Per KV head, keys are centred and rotated into their principal axes; each axis gets 0, 2 or 4
// bits by reverse water-filling (Cover & Thomas, Elements of Information Theory, §10.3: most
// variance, most bits, many axes none). Levels are evenly spaced, low + step * code (the uniform
// quantiser: Max 1960, table II), with low and step fitted to the keys by least squares: errors
// have a mean of 0 and do not correlate with the code, so that they average out in a sum over many
// keys.
//
// A code is made of *slots* of 2 bits: slot j of 4 * bytes lies in byte j % bytes, at bit
// 2 * (j / bytes) and above, which is *field* j / bytes of that byte. An axis of 2 bits takes one
// slot, one of 4 bits two: a high one, worth 4 steps, and a low one, worth 1. A score is thus
// linear in slots: q·k is about an offset plus, for each slot, a coefficient times its value from 0
// to 3.
//
// A query's coefficients are kept in 8 bits, so that a processor with AVX-512 VNNI multiplies four
// slots of a key and adds them up in one instruction. Other processors look up what two slots, half
// a byte, add to a score: a table of 16 entries of 8 bits (André, Kermarrec & Le Scouarnec 2015,
// "Cache locality is not enough: high-performance nearest neighbor search with product
// quantization fast scan").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "index/codes/code_axes.h"
#include "index/codes/code_loops.h"
#include "topkv/key_index.h"

namespace topkv {

/// Keys whose codes lie together, as [bytes, code_block]: byte b of each key, then the next.
inline constexpr std::int64_t code_block = 64;

/// What one query makes of codes, in the two forms that processors read.
struct SlotWeights {
  /// [bytes / 4, 4 (fields), 4 (bytes)], bytes rounded up to a multiple of 4; missing ones have 0.
  /// The score of a key is about offset + step * Σ_j coefficient_j (the value of slot j), off by at
  /// most 3/4 step for each slot.
  std::vector<std::int8_t> coefficients;
  float offset = 0;
  float step = 0;
  /// [bytes, 2 (the lower half of a byte, then the upper), 16], of the processors that read tables:
  /// the score of a key is about table_offset + table_step * the sum of the entries of its halves,
  /// off by less than table_step for each. The entries of bytes b and bytes - 1 - b, of which one
  /// varies much and one little, add up to at most 255.
  std::vector<std::uint8_t> tables;
  float table_offset = 0;
  float table_step = 0;
};

/// What was learned of one head's keys. Const members are safe from many threads.
class KeyCoder {
 public:
  KeyCoder() = default;

  /// Learns from keys sampled evenly out of all. bytes: of one code, at most 128; fewer are used
  /// when 4 bits for every dim do not fill them. REQUIRES: keys.count > 0. Throws
  /// InvalidArgument when a key is not finite.
  KeyCoder(const KeyView& keys, std::int64_t bytes);

  /// 2 bits of the code of an axis.
  struct Slot {
    std::int64_t axis = 0;
    int shift = 0;  ///< in the code of the axis: 0 or 2
    std::int64_t position = 0;
  };

  /// Of one code.
  std::int64_t bytes() const { return bytes_; }
  const CodeAxes& axes() const { return axes_; }
  /// Of the first axes, those with bits.
  std::span<const EvenLevels> levels() const { return levels_; }
  /// Those that are used.
  std::span<const Slot> slots() const { return slots_; }
  /// Where a slot lies in a code.
  std::int64_t byte_of(const Slot& slot) const { return slot.position % bytes_; }
  int bit_of(const Slot& slot) const { return static_cast<int>(slot.position / bytes_ * 2); }
  /// That the codes of so many keys take.
  std::int64_t bytes_for(std::int64_t keys) const {
    return (keys + code_block - 1) / code_block * code_block * bytes_;
  }
  /// Where, among the codes of all keys, those of keys first to first + count - 1 lie; first: a
  /// multiple of code_block.
  std::span<const std::uint8_t> of_keys(const std::uint8_t* codes, std::int64_t first,
                                        std::int64_t count) const {
    return {codes + first * bytes_, static_cast<std::size_t>(bytes_for(count))};
  }
  std::int64_t memory() const;

  /// For a file, of keys of so many dims in codes of so many bytes.
  void fields(std::int64_t dim, std::int64_t bytes, Archive& archive);

  /// Writes the codes of keys first to first + count - 1 among those of all keys.
  /// residuals: [count], the squared distance of each key from what its code stands for; infinite
  /// beyond float32.
  /// Throws InvalidArgument when a key is not finite.
  void encode(const KeyView& keys, std::int64_t first, std::int64_t count, std::uint8_t* codes,
              float* residuals) const;

  /// The key that the code at a position stands for: [dim].
  void decode(const std::uint8_t* codes, std::int64_t position, float* key) const;

  /// For scores with a query, which are scaled down by a power of 2 when they would not fit into
  /// float32; a query that is not finite scores 0. Allocates only when it grows.
  void weigh_slots(const float* query, SlotWeights& weights) const;

  /// The mean of the squared error of a score: Σ (Uᵀq)_i² times the variance that quantising leaves
  /// in axis i, all of it where an axis has no bits.
  float error_variance(const float* query) const;

  /// What scores are made of: a score is q·middle + Σ_j (q·slots_j) (the value of slot j - 1.5),
  /// and error_variance(q) is Σ_i (q·errors_i)². A slot that is not used has zeros, and is 0 in all
  /// codes. Infinite beyond float32.
  /// slots: [4 * bytes, dim]; middle: [dim]; errors: [dim, dim].
  void linear(float* slots, float* middle, float* errors) const;

 private:
  std::vector<int> share_bits() const;
  void learn_levels(const std::vector<int>& share, const std::vector<float>& sample);
  void place_slots();
  static EvenLevels fit_levels(const std::vector<float>& sorted, EvenLevels levels);

  /// What 1 in a slot adds along its axis.
  float weight(const Slot& slot) const {
    return levels_[static_cast<std::size_t>(slot.axis)].step * static_cast<float>(1 << slot.shift);
  }

  CodeAxes axes_;
  std::int64_t bytes_ = 0;
  std::vector<float> left_;  // [dim], what the levels leave of the variance along each axis
  std::vector<EvenLevels> levels_;
  std::vector<Slot> slots_;
};

/// Makes the tables of a query, if this processor reads tables. slots: [4 * bytes], what 1 in the
/// slot at bits 2 i of byte b adds to a score, at 4 b + i. table_offset: of slots alone.
void make_tables(const float* slots, std::int64_t bytes, SlotWeights& weights);

/// scores[q * stride + i]: of key first + i with query q. codes: of all keys, each of so many
/// bytes; first: a multiple of code_block; count: any. highs: [queries, stride / code_block], the
/// quotient rounded up, the largest score of each block of keys. ahead: memory brings the codes of
/// the keys from first + ahead on meanwhile, for the next call; 0 for calls that do not read in
/// order.
void score_codes(const std::uint8_t* codes, std::int64_t bytes,
                 std::span<const SlotWeights> queries, std::int64_t first, std::int64_t count,
                 float* scores, std::int64_t stride, float* highs, std::int64_t ahead = 0);

}  // namespace topkv
