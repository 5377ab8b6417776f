// How far one vector is from another.
#pragma once

#include <cmath>
#include <cstdint>

namespace topkv {

/// |a - b| / |b|; 0 if b is 0.
inline double relative_error(const float* a, const float* b, std::int64_t count) {
  double off = 0;
  double size = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    off += d * d;
    size += static_cast<double>(b[i]) * b[i];
  }
  return size > 0 ? std::sqrt(off / size) : 0;
}

}  // namespace topkv
