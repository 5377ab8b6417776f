// What sessions gave, compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace test {

/// [layers]: what a Feed gives of each. NaN: not given.
using Outs = std::vector<std::vector<float>>;

/// The largest difference; of what only one of them has, infinity.
inline double largest_difference(const Outs& a, const Outs& b) {
  double most = 0;
  for (std::size_t l = 0; l < a.size(); ++l) {
    for (std::size_t i = 0; i < a[l].size(); ++i) {
      if (std::isnan(a[l][i]) && std::isnan(b[l][i])) continue;
      const double off = std::abs(a[l][i] - b[l][i]);
      most = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(most, off);
    }
  }
  return most;
}

}  // namespace test
