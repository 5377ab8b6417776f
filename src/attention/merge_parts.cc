#include "src/attention/merge_parts.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/core/math/vector_math.h"
#include "src/core/math/weighted_sum.h"

namespace topkv {

void merge_parts(PartialView into, PartialView parts) {
  thread_local std::vector<float> weights;
  thread_local std::vector<std::int64_t> numbers;
  const std::int64_t count = parts.heads / into.heads;
  const std::int64_t d = into.head_dim;
  for (std::int64_t h = 0; h < into.heads; ++h) {
    weights.clear();
    numbers.clear();
    for (std::int64_t i = 0; i < count; ++i) {
      const float lse = parts.lse[i * into.heads + h];
      if (lse == empty_lse) continue;
      weights.push_back(lse);
      numbers.push_back(i);
    }
    if (numbers.empty()) continue;
    const auto n = std::ssize(numbers);
    const float high = std::max(into.lse[h], max_of(weights.data(), n));
    const float before = std::exp(into.lse[h] - high);
    const float sum = before + exp_shifted(weights.data(), n, high);
    scale_by(weights.data(), n, 1 / sum);
    if (before > 0) {
      scale_by(into.out + h * d, d, before / sum);
    } else {
      std::fill_n(into.out + h * d, d, 0.0F);
    }
    const KeyView of_head{reinterpret_cast<const std::byte*>(parts.out + h * d), DType::f32, n, d,
                          into.heads * d * bytes_of(DType::f32)};
    add_weighted({of_head, numbers.data(), n, weights.data(), n, 1}, into.out + h * d);
    into.lse[h] = high + std::log(sum);
  }
}

}  // namespace topkv
