#include "src/device/tail_figures.h"

#include <cmath>

namespace topkv {

void add_head(PartialView all, PartialView tail, const TailNoise& noise, TailFigures& to) {
  ++to.heads;
  const double share =
      *tail.lse == empty_lse ? 0 : std::exp(static_cast<double>(*tail.lse) - *all.lse);
  to.exact_mass += 1 - share;
  if (share == 0) return;
  double size = 0;
  double apart = 0;
  for (std::int64_t i = 0; i < all.head_dim; ++i) {
    const double o = all.out[i];
    const double t = tail.out[i];
    size += o * o;
    apart += (t - o) * (t - o);
  }
  const double squared = noise.weights * (noise.spread + apart) + noise.values;
  if (size > 0) to.error += share * std::sqrt(squared / size);
}

}  // namespace topkv
