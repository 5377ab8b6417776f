// Codes of keys: a few bytes that stand for a key well enough to score it.
//
// Per KV head, keys are centred and rotated into their principal axes; each axis gets 0, 1, 2 or 4
// bits by reverse water-filling (Cover & Thomas, Elements of Information Theory, §10.3: most
// variance, most bits, many axes none), and is quantised by levels that are the means of their
// cells (Lloyd 1982; Max 1960). A score is then a sum of table entries: q·k is about q·mean plus,
// for each axis that has bits, (Uᵀq)_i times the level of the key's code.
//
// Whatever their widths, codes are read four bits at a time: a *nibble* holds one axis of 4 bits,
// two of 2, or four of 1, and each query makes a table of 16 sums for each nibble. The tables are
// kept in 8 bits, so that one instruction looks up the nibbles of up to 64 keys (André et al. 2015,
// "Cache locality is not enough", §4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "index/code_axes.h"
#include "topkv/key_index.h"

namespace topkv {

/// Keys whose codes lie together, as [bytes, code_block]: byte b of each key, then the next. Nibble
/// 2b is in the lower half of byte b.
inline constexpr std::int64_t code_block = 64;

/// Tables of one query: the score of a key is about offset + step * the sum of its entries, off by
/// at most step / 2 for each nibble.
struct CodeTables {
  std::vector<std::uint8_t> entries;  ///< [nibbles, 16]
  float offset = 0;
  float step = 0;
};

/// What was learned of one head's keys. Const members are safe from many threads.
class KeyCoder {
 public:
  KeyCoder() = default;

  /// Learns from keys sampled evenly out of all. bytes: of one code, at most 128; fewer are used
  /// when 4 bits for every dim do not fill them. REQUIRES: keys.count > 0. Throws
  /// InvalidArgument when a key is not finite.
  KeyCoder(const KeyView& keys, std::int64_t bytes);

  /// Of one code.
  std::int64_t bytes() const { return bytes_; }
  /// That the codes of so many keys take.
  std::int64_t bytes_for(std::int64_t keys) const {
    return (keys + code_block - 1) / code_block * code_block * bytes_;
  }
  std::int64_t memory() const;

  /// Writes the codes of keys first to first + count - 1 among those of all keys.
  /// residuals: [count], the squared distance of each key from what its code stands for; infinite
  /// beyond float32.
  /// Throws InvalidArgument when a key is not finite.
  void encode(const KeyView& keys, std::int64_t first, std::int64_t count, std::uint8_t* codes,
              float* residuals) const;

  /// The key that the code at a position stands for: [dim].
  void decode(const std::uint8_t* codes, std::int64_t position, float* key) const;

  /// For scores with a query, which are scaled down by a power of 2 when they would not fit into
  /// float32. Allocates only when it grows.
  void make_tables(const float* query, CodeTables& tables) const;

  /// The mean of the squared error of a score: Σ (Uᵀq)_i² times the variance that quantising leaves
  /// in axis i, all of it where an axis has no bits.
  float error_variance(const float* query) const;

 private:
  /// Where an axis stands in a code.
  struct Field {
    std::int64_t nibble = 0;
    int shift = 0;
    int bits = 0;
    std::int64_t level = 0;  ///< of its 2^bits levels, the first in levels_
  };

  void share_bits(std::int64_t bits);
  void place_fields();
  void find_levels(const std::vector<float>& sample);

  CodeAxes axes_;
  std::int64_t bytes_ = 0;
  std::vector<float> left_;    // [dim], what the levels leave of the variance along each axis
  std::vector<Field> fields_;  // of the first axes, those with bits
  std::vector<float> levels_;  // ascending, axis by axis
};

/// scores[i]: that of key first + i. codes: of all keys, each of so many bytes; first: a multiple
/// of code_block; count: any.
void score_codes(const std::uint8_t* codes, std::int64_t bytes, const CodeTables& tables,
                 std::int64_t first, std::int64_t count, float* scores);

}  // namespace topkv
