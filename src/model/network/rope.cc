#include "src/model/network/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/core/threads/threads.h"

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

/// Where pairs begin and end to be stretched: the pairs that make beta_fast and beta_slow turns in
/// the original length (Peng et al. 2023, eq. 17 solved for the pair), as transformers bounds them.
struct YarnRamp {
  double low, high;

  YarnRamp(double theta, double dim, const RopeScaling& scaling) {
    const auto pair_of = [&](double turns) {
      return dim * std::log(scaling.original_max_position / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(theta));
    };
    low = pair_of(scaling.beta_fast);
    high = pair_of(scaling.beta_slow);
    if (scaling.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, dim - 1);
    if (low == high) high += 0.001;
  }
  /// 0: the pair is kept; 1: its frequency is divided by factor.
  double at(double pair) const { return std::clamp((pair - low) / (high - low), 0.0, 1.0); }
};

}  // namespace

RopeTable::RopeTable(double theta, std::int64_t rotary_dim, const RopeScaling& scaling)
    : attention_factor_(static_cast<float>(scaling.attention_factor)) {
  using Kind = RopeScaling::Kind;
  const auto dim = static_cast<double>(rotary_dim);
  if (scaling.kind == Kind::dynamic) theta *= scaling.theta_factor;
  for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
    const auto pair = static_cast<double>(i);
    double frequency = std::pow(theta, -2.0 * pair / dim);
    switch (scaling.kind) {
      case Kind::none:
      case Kind::dynamic:
        break;
      case Kind::linear:
        frequency /= scaling.factor;
        break;
      case Kind::llama3:
        frequency = llama3_scaled(frequency, scaling);
        break;
      case Kind::yarn: {
        const double stretched = YarnRamp(theta, dim, scaling).at(pair);
        frequency *= stretched / scaling.factor + (1 - stretched);
        break;
      }
      case Kind::longrope:
      case Kind::frequency_factors:
        frequency /= scaling.pair_factors[static_cast<std::size_t>(i)];
        break;
    }
    frequencies_.push_back(static_cast<float>(frequency));
  }
}

RopeAngles RopeTable::angles(std::int64_t first, std::int64_t tokens) {
  return angles_of(
      tokens, [first](std::int64_t t) { return first + t; }, [](std::int64_t) { return 1.0; });
}

RopeAngles RopeTable::angles(std::span<const std::int64_t> positions, double factor) {
  return angles_of(
      std::ssize(positions), [&](std::int64_t t) { return positions[static_cast<std::size_t>(t)]; },
      [factor](std::int64_t) { return factor; });
}

RopeAngles RopeTable::angles(std::span<const std::int64_t> positions, const QueryGrowth& growth) {
  return angles_of(
      std::ssize(positions), [&](std::int64_t t) { return positions[static_cast<std::size_t>(t)]; },
      [&](std::int64_t position) { return growth.at(position); });
}

template <class PositionOf, class FactorOf>
RopeAngles RopeTable::angles_of(std::int64_t tokens, const PositionOf& position_of,
                                const FactorOf& factor_of) {
  const auto half = static_cast<std::int64_t>(frequencies_.size());
  cos_.resize(static_cast<std::size_t>(tokens * half));
  sin_.resize(static_cast<std::size_t>(tokens * half));
  // Alone: a caller may hold a device's lock.
  parallel_for_alone(tokens, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t position = position_of(t);
      const float on_both = attention_factor_ * static_cast<float>(factor_of(position));
      for (std::int64_t i = 0; i < half; ++i) {
        // The product is rounded to float32, as transformers does and so as models are trained.
        const float angle =
            static_cast<float>(position) * frequencies_[static_cast<std::size_t>(i)];
        const auto at = static_cast<std::size_t>(t * half + i);
        cos_[at] = static_cast<float>(std::cos(double{angle})) * on_both;
        sin_[at] = static_cast<float>(std::sin(double{angle})) * on_both;
      }
    }
  });
  return {cos_.data(), sin_.data()};
}

}  // namespace topkv
