#include <fmt/format.h>

#include <algorithm>

#include "src/attention/prefetch_rows.h"
#include "src/attention/running_softmax.h"
#include "src/core/math/dot.h"
#include "topkv/attention.h"
#include "topkv/error.h"

namespace topkv {

void attend_rows(const float* queries, const RowsView& rows,
                 std::span<const std::int64_t> positions, float scale, PartialView out,
                 float softcap) {
  if (out.head_dim != rows.dim()) {
    throw InvalidArgument(fmt::format("attend_rows: queries of {} elements over rows of {}",
                                      out.head_dim, rows.dim()));
  }
  constexpr std::int64_t scored = 8;  // rows whose keys meet the queries while memory brings others
  const auto score = [&](std::int64_t begin, std::int64_t n, float* scores, std::int64_t stride) {
    const std::int64_t* at = &positions[static_cast<std::size_t>(begin)];
    const auto ask = [&](std::int64_t first, const KeyView& half) {
      for (std::int64_t i = first; i < std::min(first + scored, n); ++i)
        prefetch_half_row(half.key(at[i]), half.stride_bytes);
    };
    ask(0, rows.keys);
    for (std::int64_t i = 0; i < n; i += scored) {
      ask(i + scored, rows.keys);
      ask(i, rows.values);
      dot_gather(queries, out.heads, rows.keys, at + i, std::min(scored, n - i), scores + i,
                 stride);
    }
  };
  attend_tiles(rows, positions, scale, softcap, out, score);
}

}  // namespace topkv
