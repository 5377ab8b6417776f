#include "src/model/rope.h"

#include <cmath>
#include <numbers>

#include "src/core/threads.h"

namespace topkv {
namespace {

/// Long wavelengths are stretched by factor, short ones kept, those between blended.
double llama3_scaled(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double low = scaling.original_max_position / scaling.low_freq_factor;
  const double high = scaling.original_max_position / scaling.high_freq_factor;
  if (wavelength > low) return frequency / scaling.factor;
  if (wavelength < high) return frequency;
  const double smooth = (scaling.original_max_position / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

}  // namespace

RopeTable::RopeTable(const ModelConfig& config) {
  const std::int64_t dim = config.attention.head_dim;
  for (std::int64_t i = 0; i < dim / 2; ++i) {
    double frequency =
        std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    if (config.rope_scaling.kind == RopeScaling::Kind::linear)
      frequency /= config.rope_scaling.factor;
    if (config.rope_scaling.kind == RopeScaling::Kind::llama3) {
      frequency = llama3_scaled(frequency, config.rope_scaling);
    }
    frequencies_.push_back(static_cast<float>(frequency));
  }
}

RopeAngles RopeTable::angles(std::int64_t first, std::int64_t tokens) {
  const auto half = static_cast<std::int64_t>(frequencies_.size());
  cos_.resize(static_cast<std::size_t>(tokens * half));
  sin_.resize(static_cast<std::size_t>(tokens * half));
  parallel_for(tokens, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t i = 0; i < half; ++i) {
        // The product is rounded to float32, as transformers does and so as models are trained.
        const float angle =
            static_cast<float>(first + t) * frequencies_[static_cast<std::size_t>(i)];
        cos_[static_cast<std::size_t>(t * half + i)] = static_cast<float>(std::cos(double{angle}));
        sin_[static_cast<std::size_t>(t * half + i)] = static_cast<float>(std::sin(double{angle}));
      }
    }
  });
  return {cos_.data(), sin_.data()};
}

}  // namespace topkv
