#include "src/model/weights/check_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "src/core/math/convert.h"
#include "src/core/threads/threads.h"
#include "src/model/weights/safetensors_file.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t block = 4096;  // elements that are widened at a time

void widen(const std::byte* data, DType dtype, std::int64_t first, std::int64_t count, float* out) {
  to_float(data + first * bytes_of(dtype), dtype, count, out);
}

/// count: none.
std::int64_t first_bad(const std::byte* data, DType dtype, std::int64_t count) {
  std::atomic<std::int64_t> first = count;
  parallel_for_alone((count + block - 1) / block, 16, [&](std::int64_t begin, std::int64_t end) {
    std::array<float, block> values{};
    for (std::int64_t at = begin * block; at < std::min(count, end * block); at += block) {
      if (at >= first) return;
      const std::int64_t some = std::min(block, count - at);
      widen(data, dtype, at, some, values.data());
      const std::int64_t bad = first_not_finite(values.data(), some);
      if (bad < 0) continue;
      std::int64_t known = first;
      while (at + bad < known && !first.compare_exchange_weak(known, at + bad)) {
      }
      return;
    }
  });
  return first;
}

}  // namespace

void check_finite(const std::byte* data, DType dtype, std::span<const std::int64_t> shape,
                  const std::string& what) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  const std::int64_t bad = first_bad(data, dtype, count);
  if (bad == count) return;
  float value = 0;
  widen(data, dtype, bad, 1, &value);
  std::vector<std::int64_t> place(shape.size());
  std::int64_t rest = bad;
  for (std::size_t i = shape.size(); i-- > 0; rest /= shape[i]) place[i] = rest % shape[i];
  throw FileError(
      fmt::format("{} has {} at {}; expected finite weights: the file is damaged (fetch it again), "
                  "or its source model is",
                  what, value, shown_shape(place)));
}

}  // namespace topkv
