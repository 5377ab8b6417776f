// The inner loops of coding vectors (key_codes.h, value_codes.h), for the processor at hand.
#pragma once

#include <cstdint>

#include "topkv/view.h"

namespace topkv {

/// out = scale * vector - mean, for vectors first and on: [count, dim]. squares: [count], those of
/// out summed up. mean: [dim]. False when some element is not finite.
bool centre(const KeyView& vectors, std::int64_t first, std::int64_t count, float scale,
            const float* mean, float* out, float* squares);

/// Evenly spaced levels: low + step * code, for codes 0 to `most`. A step of 0: all codes are 0.
struct EvenLevels {
  float low = 0;
  float step = 0;
  int most = 0;

  /// Of the level nearest to x; 0 when x is not a number.
  int code_of(float x) const {
    float at = (x - low) * (step > 0 ? 1 / step : 0);
    at = at > 0 ? at : 0;
    const auto last = static_cast<float>(most);
    return static_cast<int>((at < last ? at : last) + 0.5F);
  }
  float of(int code) const { return low + step * static_cast<float>(code); }
};

/// codes[i]: of the level nearest to x[i]. residuals[i] += (x[i] - that level)² - x[i]².
void nearest_codes(const EvenLevels& levels, const float* x, std::int64_t count,
                   std::uint8_t* codes, float* residuals);

/// bytes[i] |= (codes[i] >> shift & 3) << bit.
void place_slot(const std::uint8_t* codes, std::int64_t count, int shift, int bit,
                std::uint8_t* bytes);

/// bytes[a % lanes] |= 1 << (place + a / lanes * 4) for those of 2 * lanes axes a whose x[a] lies
/// above low[a] + range[a] * chance, where chance is (seed * seeds[a]) % 2^32 as a fraction of
/// 2^32, within (0, 1). lanes: a multiple of 16; place: 0 to 3.
void choose_upper(const float* x, const float* low, const float* range, std::uint32_t seed,
                  const std::uint32_t* seeds, std::int64_t lanes, int place, std::uint8_t* bytes);

}  // namespace topkv
