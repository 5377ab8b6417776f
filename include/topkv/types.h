// Element types and the shape of an attention stack.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace topkv {

/// Element type of stored rows and of tensors handed in.
enum class DType : std::uint8_t { f32, f16, bf16 };

/// Bytes of one element.
std::int64_t bytes_of(DType dtype);

/// "f32", "f16" or "bf16".
std::string_view name_of(DType dtype);

/// The inverse of name_of. Throws InvalidArgument naming the choices.
DType parse_dtype(std::string_view name);

/// A token id of a model's vocabulary.
using Token = std::int32_t;

/// Half-open range of token positions [begin, end).
struct PositionRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end > begin ? end - begin : 0; }
  bool contains(std::int64_t position) const { return position >= begin && position < end; }
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

  std::int64_t group() const { return q_heads / kv_heads; }
  float softmax_scale() const;
  std::int64_t window_of(std::int64_t layer) const {
    return sliding_window.empty() ? 0 : sliding_window[static_cast<std::size_t>(layer)];
  }
  /// Throws InvalidArgument when a size is not positive, q_heads is no multiple of kv_heads, scale
  /// or softcap is negative or not finite, or sliding_window has another length than layers.
  void check() const;
};

}  // namespace topkv
