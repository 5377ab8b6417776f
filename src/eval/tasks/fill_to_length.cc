#include "src/eval/tasks/fill_to_length.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "topkv/error.h"

namespace topkv {

std::int64_t most_units(std::int64_t room, std::int64_t least, std::int64_t step,
                        const std::function<std::int64_t(std::int64_t)>& tokens_of) {
  const std::int64_t first = tokens_of(least);
  if (first > room) {
    throw InvalidArgument(fmt::format(
        "the least text of the task takes {} tokens and {} are left for it beside question and "
        "answer; use a longer length",
        first, room));
  }
  // Steps beyond least: `low` fit, `high` do not (0: not known yet). Where the line through what is
  // known meets the room is tried next, now and then the middle instead: lines may bend.
  std::int64_t low = 0;
  std::int64_t high = 0;
  std::int64_t low_tokens = first;
  std::int64_t high_tokens = 0;
  double slope = std::max(1.0, static_cast<double>(first) / static_cast<double>(least)) *
                 static_cast<double>(step);  // tokens of a step
  for (int tries = 0; high == 0 || high - low > 1; ++tries) {
    const double beyond = static_cast<double>(room - low_tokens) / slope;
    std::int64_t next = low + std::max<std::int64_t>(1, static_cast<std::int64_t>(beyond));
    if (high != 0 && tries % 3 == 2) next = low + (high - low) / 2;
    if (high != 0) next = std::clamp(next, low + 1, high - 1);
    const std::int64_t tokens = tokens_of(least + next * step);
    if (tokens <= room) {
      low = next;
      low_tokens = tokens;
      // Without an upper end the last one found tells the slope; rather too flat than too steep.
      if (high == 0)
        slope =
            std::max(1e-3, static_cast<double>(tokens - first) / static_cast<double>(next) * 0.999);
    } else {
      high = next;
      high_tokens = tokens;
    }
    if (high != 0) {
      slope = std::max(
          1e-3, static_cast<double>(high_tokens - low_tokens) / static_cast<double>(high - low));
    }
  }
  return least + low * step;
}

}  // namespace topkv
