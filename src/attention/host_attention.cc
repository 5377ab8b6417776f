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
  constexpr std::int64_t scored = 8;  // rows at a time
  const auto count = static_cast<std::int64_t>(positions.size());
  std::int64_t asked = 0;
  const auto score = [&](std::int64_t begin, std::int64_t n, float* scores, std::int64_t stride) {
    const std::int64_t* at = &positions[static_cast<std::size_t>(begin)];
    for (std::int64_t i = 0; i < n; i += scored) {
      for (const auto end = std::min(begin + i + rows_ahead, count); asked < end; ++asked)
        prefetch_row(rows, positions[static_cast<std::size_t>(asked)]);
      dot_gather(queries, out.heads, rows.keys, at + i, std::min(scored, n - i), scores + i,
                 stride);
    }
  };
  attend_tiles(rows, positions, scale, softcap, out, score);
}

}  // namespace topkv
