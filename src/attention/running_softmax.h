// Attention over rows, a tile of them at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "src/core/math/vector_math.h"
#include "src/core/math/weighted_sum.h"
#include "topkv/attention.h"
#include "topkv/view.h"

namespace topkv {

/// Of out.heads query heads over rows at some positions: a running softmax over tiles of them
/// (FlashAttention's recurrence). score(first, count, scores, stride) writes
/// scores[head * stride + i], query · key of position number first + i.
template <class Score>
void attend_tiles(const RowsView& rows, std::span<const std::int64_t> positions, float scale,
                  float softcap, PartialView out, const Score& score) {
  constexpr std::int64_t tile = 64;
  thread_local std::vector<float> scores;
  thread_local std::vector<float> high;
  scores.resize(static_cast<std::size_t>(out.heads * tile));
  high.assign(static_cast<std::size_t>(out.heads), empty_lse);
  std::fill_n(out.out, out.heads * out.head_dim, 0.0F);
  std::fill_n(out.lse, out.heads, 0.0F);  // the sum of exponentials until the end
  const auto count = static_cast<std::int64_t>(positions.size());
  for (std::int64_t begin = 0; begin < count; begin += tile) {
    const std::int64_t n = std::min(tile, count - begin);
    score(begin, n, scores.data(), tile);
    for (std::int64_t h = 0; h < out.heads; ++h) {
      float* s = &scores[static_cast<std::size_t>(h * tile)];
      scale_by(s, n, scale);
      if (softcap > 0) soft_cap(s, n, softcap);
      const float new_high = std::max(high[static_cast<std::size_t>(h)], max_of(s, n));
      const float shrink = std::exp(high[static_cast<std::size_t>(h)] - new_high);
      if (begin > 0) scale_by(out.out + h * rows.dim(), rows.dim(), shrink);
      out.lse[h] = out.lse[h] * shrink + exp_shifted(s, n, new_high);
      high[static_cast<std::size_t>(h)] = new_high;
    }
    add_weighted({rows.values, &positions[static_cast<std::size_t>(begin)], n, scores.data(), tile,
                  out.heads},
                 out.out);
  }
  for (std::int64_t h = 0; h < out.heads; ++h) {
    float* of_head = out.out + h * rows.dim();
    if (out.lse[h] > 0) {
      scale_by(of_head, rows.dim(), 1.0F / out.lse[h]);
      out.lse[h] = high[static_cast<std::size_t>(h)] + std::log(out.lse[h]);
    } else {  // no rows, or scores beyond float32
      std::fill_n(of_head, rows.dim(), 0.0F);
      out.lse[h] = empty_lse;
    }
  }
}

}  // namespace topkv
