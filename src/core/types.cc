#include "topkv/types.h"

#include <fmt/format.h>

#include <cmath>

#include "topkv/error.h"

namespace topkv {

std::int64_t bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
  }
  return "unknown";
}

DType parse_dtype(std::string_view name) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (name == name_of(dtype)) return dtype;
  }
  throw InvalidArgument(
      fmt::format("unknown element type '{}'; known are f32, f16 and bf16", name));
}

float AttentionShape::softmax_scale() const {
  return scale != 0.0F ? scale : 1.0F / std::sqrt(static_cast<float>(head_dim));
}

void AttentionShape::check() const {
  const auto positive = [](std::int64_t value, const char* what) {
    if (value < 1) {
      throw InvalidArgument(
          fmt::format("attention shape: {} is {}; it must be at least 1", what, value));
    }
  };
  positive(layers, "layers");
  positive(q_heads, "q_heads");
  positive(kv_heads, "kv_heads");
  positive(head_dim, "head_dim");
  if (q_heads % kv_heads != 0) {
    throw InvalidArgument(fmt::format(
        "attention shape: {} query heads cannot share {} KV heads evenly", q_heads, kv_heads));
  }
  if (!std::isfinite(scale) || scale < 0) {
    throw InvalidArgument(
        fmt::format("attention shape: scale is {}; it must be positive, or 0 for "
                    "1/sqrt(head_dim)",
                    scale));
  }
  if (!std::isfinite(softcap) || softcap < 0) {
    throw InvalidArgument(
        fmt::format("attention shape: softcap is {}; it must be positive, or 0 for none", softcap));
  }
  if (!sliding_window.empty() && static_cast<std::int64_t>(sliding_window.size()) != layers) {
    throw InvalidArgument(
        fmt::format("attention shape: sliding_window has {} entries for {} layers",
                    sliding_window.size(), layers));
  }
  for (const std::int64_t window : sliding_window) {
    if (window < 0) {
      throw InvalidArgument(
          fmt::format("attention shape: a sliding window of {} tokens; use 0 for none", window));
    }
  }
}

}  // namespace topkv
