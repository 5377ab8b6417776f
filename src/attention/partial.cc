#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/core/math/vector_math.h"
#include "topkv/attention.h"
#include "topkv/error.h"

namespace topkv {

void Partial::reset(std::int64_t heads, std::int64_t head_dim) {
  heads_ = 0;  // should there be no memory: it never tells of more than there is
  out_.assign(static_cast<std::size_t>(heads * head_dim), 0.0F);
  lse_.assign(static_cast<std::size_t>(heads), empty_lse);
  heads_ = heads;
  head_dim_ = head_dim;
}

void merge(PartialView into, PartialView other) {
  if (into.heads != other.heads || into.head_dim != other.head_dim) {
    throw InvalidArgument(fmt::format("cannot merge a partial of {} heads x {} into one of {} x {}",
                                      other.heads, other.head_dim, into.heads, into.head_dim));
  }
  for (std::int64_t h = 0; h < into.heads; ++h) {
    if (other.lse[h] == empty_lse) continue;
    float* out = into.out + h * into.head_dim;
    const float* more = other.out + h * into.head_dim;
    if (into.lse[h] == empty_lse) {  // also avoids -inf - -inf
      std::copy(more, more + into.head_dim, out);
      into.lse[h] = other.lse[h];
      continue;
    }
    const float high = std::max(into.lse[h], other.lse[h]);
    const float lse = high + std::log(std::exp(into.lse[h] - high) + std::exp(other.lse[h] - high));
    scale_by(out, into.head_dim, std::exp(into.lse[h] - lse));
    add_scaled(out, std::exp(other.lse[h] - lse), more, into.head_dim);
    into.lse[h] = lse;
  }
}

}  // namespace topkv
