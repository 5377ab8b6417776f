// Element types and the shape of an attention stack.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace topkv {

/// How vectors are stored. Tensors handed in are f32, f16 or bf16, an element behind the other;
/// rows may also be q8 or q4, which hold blocks of 32 elements (the last one padded with zeros) in
/// the manner of GGML's q8_0 and q4_1:
///   q8  34 bytes: a scale s (f16) and 32 codes c (int8); an element is s * c
///   q4  20 bytes: a scale s and a least value m (f16), 32 codes c of 4 bits (byte i has those of
///       elements i, low, and i + 16, high); an element is m + s * c
/// Elements of keys are those times the scales of their channels (KeyView::channels), if any, plus
/// their bias (KeyView::bias), if any.
enum class DType : std::uint8_t { f32, f16, bf16, q8, q4 };

/// Whether elements are stored in blocks: q8 and q4.
constexpr bool in_blocks(DType dtype) { return dtype == DType::q8 || dtype == DType::q4; }

/// Bytes of one element. REQUIRES: not in_blocks.
std::int64_t bytes_of(DType dtype);

/// Bytes of a stored vector of `dim` elements.
std::int64_t vector_bytes(DType dtype, std::int64_t dim);

/// "f32", "f16", "bf16", "q8" or "q4".
std::string_view name_of(DType dtype);

/// The inverse of name_of. Throws InvalidArgument naming the choices.
DType parse_dtype(std::string_view name);

/// How the two halves of rows are stored.
struct KvDType {
  DType keys = DType::bf16;
  DType values = DType::bf16;

  KvDType() = default;
  KvDType(DType both) : keys(both), values(both) {}  // NOLINT: one for both is the usual case
  KvDType(DType of_keys, DType of_values) : keys(of_keys), values(of_values) {}

  bool operator==(const KvDType& other) const {
    return keys == other.keys && values == other.values;
  }

  /// "q8" where both are the same, else "q8/q4": keys, then values.
  std::string name() const;
  /// The inverse of name. Throws InvalidArgument naming the choices.
  static KvDType parse(std::string_view name);
  /// Bytes of K and V of one token and KV head.
  std::int64_t row_bytes(std::int64_t head_dim) const {
    return vector_bytes(keys, head_dim) + vector_bytes(values, head_dim);
  }
};

/// A token id of a model's vocabulary.
using Token = std::int32_t;

/// Half-open range of token positions [begin, end).
struct PositionRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end > begin ? end - begin : 0; }
  bool contains(std::int64_t position) const { return position >= begin && position < end; }
  /// What both hold; may be empty.
  PositionRange within(const PositionRange& other) const {
    return {begin > other.begin ? begin : other.begin, end < other.end ? end : other.end};
  }
};

/// What every layer of a model's attention has in common, and in which layers only a sliding
/// window is attended. The query heads that share a KV head are its *group* (GQA): query head h
/// belongs to KV head h / group().
struct AttentionShape {
  std::int64_t layers = 0;
  std::int64_t q_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  /// Factor on q·k before the softmax; 0 means 1/sqrt(head_dim).
  float scale = 0.0F;
  /// A scaled score s becomes softcap * tanh(s / softcap) before the softmax (Gemma 2 report, 2024,
  /// section 2); 0: scores stay as they are.
  float softcap = 0.0F;
  /// Per layer: how many last tokens it attends (itself included), 0 for all of them.
  /// Empty: every layer attends all tokens.
  std::vector<std::int64_t> sliding_window = {};
  /// Dual chunk attention (An et al. 2024, arXiv 2402.17463, section 3): positions are in chunks of
  /// so many, and a token meets the keys of its own chunk, of the chunk before and of those before
  /// that with a query of its own each (AttentionStep). 0: with one query for all.
  std::int64_t chunk_len = 0;

  std::int64_t group() const { return q_heads / kv_heads; }
  float softmax_scale() const;
  std::int64_t window_of(std::int64_t layer) const {
    return sliding_window.empty() ? 0 : sliding_window[static_cast<std::size_t>(layer)];
  }
  /// Throws InvalidArgument when a size is not positive, q_heads is no multiple of kv_heads, scale
  /// or softcap is negative or not finite, sliding_window has another length than layers, or
  /// chunk_len is negative, or is given where a layer has a sliding window.
  void check() const;
};

}  // namespace topkv
