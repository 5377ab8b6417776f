#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/attention/prefetch_rows.h"
#include "src/core/dot.h"
#include "src/core/vector_math.h"
#include "src/core/weighted_sum.h"
#include "topkv/attention.h"
#include "topkv/error.h"

namespace topkv {
void attend_rows(const float* queries, const RowsView& rows,
                 std::span<const std::int64_t> positions, float scale, PartialView out,
                 float softcap) {
  if (out.head_dim != rows.dim) {
    throw InvalidArgument(
        fmt::format("attend_rows: queries of {} elements over rows of {}", out.head_dim, rows.dim));
  }
  constexpr std::int64_t tile = 64;
  constexpr std::int64_t scored = 8;  // rows whose keys meet the queries while memory brings others
  thread_local std::vector<float> scores;
  thread_local std::vector<float> high;
  scores.resize(static_cast<std::size_t>(out.heads * tile));
  high.assign(static_cast<std::size_t>(out.heads), empty_lse);
  std::fill_n(out.out, out.heads * out.head_dim, 0.0F);
  std::fill_n(out.lse, out.heads, 0.0F);  // the sum of exponentials until the end
  const auto count = static_cast<std::int64_t>(positions.size());

  // A running softmax over tiles of positions (FlashAttention's recurrence).
  for (std::int64_t begin = 0; begin < count; begin += tile) {
    const std::int64_t n = std::min(tile, count - begin);
    const auto some =
        positions.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n));
    const std::int64_t* at = some.data();
    const auto ask = [&](std::int64_t first, const auto& half) {
      for (std::int64_t i = first; i < std::min(first + scored, n); ++i)
        prefetch_half_row(half(at[i]), rows.dim * bytes_of(rows.dtype));
    };
    const auto key = [&](std::int64_t position) { return rows.key(position); };
    const auto value = [&](std::int64_t position) { return rows.value(position); };
    ask(0, key);
    for (std::int64_t i = 0; i < n; i += scored) {
      ask(i + scored, key);
      ask(i, value);
      dot_gather(queries, out.heads, rows.dim, rows.key_data, rows.dtype, rows.stride_bytes, at + i,
                 std::min(scored, n - i), scores.data() + i, tile);
    }
    for (std::int64_t h = 0; h < out.heads; ++h) {
      float* s = &scores[static_cast<std::size_t>(h * tile)];
      scale_by(s, n, scale);
      if (softcap > 0) soft_cap(s, n, softcap);
      const float new_high = std::max(high[h], max_of(s, n));
      const float shrink = std::exp(high[h] - new_high);  // 0 for the first tile
      scale_by(out.out + h * rows.dim, rows.dim, shrink);
      out.lse[h] = out.lse[h] * shrink + exp_shifted(s, n, new_high);
      high[h] = new_high;
    }
    add_weighted({rows.value_data, rows.dtype, rows.stride_bytes, rows.dim, at, n, scores.data(),
                  tile, out.heads},
                 out.out);
  }
  for (std::int64_t h = 0; h < out.heads; ++h) {
    float* of_head = out.out + h * rows.dim;
    if (out.lse[h] > 0) {
      scale_by(of_head, rows.dim, 1.0F / out.lse[h]);
      out.lse[h] = high[h] + std::log(out.lse[h]);
    } else {  // no rows, or scores beyond float32
      std::fill_n(of_head, rows.dim, 0.0F);
      out.lse[h] = empty_lse;
    }
  }
}

}  // namespace topkv
