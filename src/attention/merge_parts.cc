#include "src/attention/merge_parts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "src/core/vector_math.h"
#include "src/core/weighted_sum.h"

namespace topkv {

void merge_parts(PartialView into, PartialView parts) {
  thread_local std::vector<float> weights;
  thread_local std::vector<std::int64_t> numbers;
  const std::int64_t count = parts.heads / into.heads;
  const std::int64_t d = into.head_dim;
  weights.resize(static_cast<std::size_t>(count));
  numbers.resize(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), std::int64_t{0});
  for (std::int64_t h = 0; h < into.heads; ++h) {
    for (std::int64_t i = 0; i < count; ++i) {
      weights[static_cast<std::size_t>(i)] = parts.lse[i * into.heads + h];
    }
    const float high = std::max(into.lse[h], max_of(weights.data(), count));
    if (high == empty_lse) continue;
    const float before = std::exp(into.lse[h] - high);
    const float sum = before + exp_shifted(weights.data(), count, high);
    scale_by(weights.data(), count, 1 / sum);
    scale_by(into.out + h * d, d, before / sum);
    add_weighted(
        {reinterpret_cast<const std::byte*>(parts.out + h * d), DType::f32,
         into.heads * d * bytes_of(DType::f32), d, numbers.data(), count, weights.data(), count, 1},
        into.out + h * d);
    into.lse[h] = high + std::log(sum);
  }
}

}  // namespace topkv
