#include "src/core/math/finite_rows.h"

#include <cstring>

namespace topkv {
namespace {

/// Whether some of `count` numbers, each so many bytes behind the last, have an exponent of ones.
template <class Bits, Bits exponent>
bool any_not_finite(const std::byte* data, std::int64_t count, std::int64_t stride) {
  unsigned any = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * stride, sizeof bits);
    any |= static_cast<unsigned>((bits & exponent) == exponent);
  }
  return any != 0;
}

constexpr auto f32_not_finite = any_not_finite<std::uint32_t, 0x7f800000U>;
constexpr auto bf16_not_finite = any_not_finite<std::uint16_t, 0x7f80U>;
constexpr auto f16_not_finite = any_not_finite<std::uint16_t, 0x7c00U>;

/// Whether one of so many vectors is not finite.
bool any_not_finite_of(const KeyView& vectors) {
  const std::int64_t elements = vectors.count * vectors.dim;
  const std::int64_t blocks = vectors.count * ((vectors.dim + 31) / 32);
  switch (vectors.dtype) {
    case DType::f32:
      return f32_not_finite(vectors.data, elements, 4);
    case DType::f16:
      return f16_not_finite(vectors.data, elements, 2);
    case DType::bf16:
      return bf16_not_finite(vectors.data, elements, 2);
    case DType::q8:
      return f16_not_finite(vectors.data, blocks, vector_bytes(DType::q8, 32));
    case DType::q4:
      return f16_not_finite(vectors.data, blocks, vector_bytes(DType::q4, 32)) ||
             f16_not_finite(vectors.data + 2, blocks, vector_bytes(DType::q4, 32));
  }
  return false;
}

}  // namespace

std::int64_t first_not_finite_row(const KeyView& vectors) {
  if (!any_not_finite_of(vectors)) return -1;
  for (std::int64_t i = 0; i < vectors.count; ++i)
    if (any_not_finite_of(vectors.part({i, i + 1}))) return i;
  return -1;
}

}  // namespace topkv
