#include "src/device/tail_figures.h"

#include <cmath>

namespace topkv {

TailShare tail_share(PartialView all, PartialView tail, const TailNoise& noise) {
  TailShare of;
  double apart = 0;
  for (std::int64_t i = 0; i < all.head_dim; ++i) {
    const double o = all.out[i];
    const double t = tail.out[i];
    of.size += o * o;
    apart += (t - o) * (t - o);
  }
  if (*tail.lse == empty_lse) return of;
  of.share = std::exp(static_cast<double>(*tail.lse) - *all.lse);
  of.squared = of.share * of.share * (noise.weights * (noise.spread + apart) + noise.values);
  return of;
}

void join_tails(PartialView tail, TailNoise& noise, PartialView other, const TailNoise& of_other) {
  float apart = 0;
  for (std::int64_t i = 0; i < tail.head_dim; ++i) {
    const float x = tail.out[i] - other.out[i];
    apart += x * x;
  }
  if (*other.lse == empty_lse) return;
  const float before = *tail.lse;
  merge(tail, other);
  noise = joined(std::exp(before - *tail.lse), noise, of_other, apart);
}

void add_head(PartialView all, PartialView tail, const TailNoise& noise, TailFigures& to) {
  const TailShare of = tail_share(all, tail, noise);
  ++to.heads;
  to.exact_mass += 1 - of.share;
  if (of.size > 0) to.error += std::sqrt(of.squared / of.size);
}

}  // namespace topkv
