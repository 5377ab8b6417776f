#include "index/key_codes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "index/scratch.h"

namespace topkv {
namespace {

constexpr std::int64_t levels_sample = 16384;  // keys that levels are learned of
constexpr std::int64_t tile = CodeAxes::tile;  // keys encoded at a time
constexpr std::int64_t most_bytes = 128;       // of a code: sums of 8 bits fit into 16
constexpr int fit_rounds = 30;

/// Part of the variance of a normal variable that evenly spaced levels leave (Max 1960, table II).
double left_of_normal(int bits) { return bits == 0 ? 1.0 : bits == 2 ? 0.1188 : 0.01154; }

}  // namespace

KeyCoder::KeyCoder(const KeyView& keys, std::int64_t bytes)
    : bytes_(std::min({bytes, (keys.dim + 1) / 2, most_bytes})) {
  std::vector<float> sample;
  axes_ = CodeAxes(keys, sample);
  learn_levels(share_bits(), sample);
  place_slots();
}

std::int64_t KeyCoder::memory() const {
  return axes_.memory() + static_cast<std::int64_t>(left_.capacity() * sizeof(float) +
                                                    levels_.capacity() * sizeof(EvenLevels) +
                                                    slots_.capacity() * sizeof(Slot));
}

/// Bits of the first axes, those that get some. Reverse water-filling, step by step: the next two
/// bits go where they lower the error most.
std::vector<int> KeyCoder::share_bits() const {
  const std::vector<double>& variances = axes_.variances();
  std::vector<int> share(variances.size(), 0);
  for (std::int64_t slots = 4 * bytes_; slots > 0; --slots) {
    std::size_t best = share.size();
    double most = 0;
    for (std::size_t i = 0; i < share.size(); ++i) {
      if (share[i] == 4) continue;
      const double gain = variances[i] * (left_of_normal(share[i]) - left_of_normal(share[i] + 2));
      if (gain > most) {
        most = gain;
        best = i;
      }
    }
    if (best == share.size()) break;
    share[best] += 2;
  }
  // Variances fall, so those with bits come first.
  share.erase(std::find(share.begin(), share.end(), 0), share.end());
  return share;
}

void KeyCoder::learn_levels(const std::vector<int>& share, const std::vector<float>& sample) {
  const auto values = axes_.spread(sample, std::ssize(share), levels_sample);
  left_.assign(axes_.variances().begin(), axes_.variances().end());
  for (std::size_t axis = 0; axis < share.size(); ++axis) {
    const std::vector<float>& along = values[axis];
    const auto count = static_cast<double>(along.size());
    const double mean = std::accumulate(along.begin(), along.end(), 0.0) / count;
    double squares = 0;
    for (const float x : along) squares += (x - mean) * (x - mean);
    const double deviation = std::sqrt(squares / count);
    const int most = (1 << share[axis]) - 1;
    // The fit finds the best levels near those that it starts from: flat distributions want them
    // close together, those with long tails far apart, on the side of the tail.
    double best = std::numeric_limits<double>::infinity();
    EvenLevels& levels = levels_.emplace_back();
    for (const double reach : {1.0, 1.6, 2.5, 4.0, 8.0, 16.0}) {
      const double low = std::max<double>(along.front(), mean - reach * deviation);
      const double high = std::min<double>(along.back(), mean + reach * deviation);
      const EvenLevels fit = fit_levels(
          along, {static_cast<float>(low), static_cast<float>((high - low) / most), most});
      double sum = 0;
      for (const float x : along) {
        const double off = x - fit.of(fit.code_of(x));
        sum += off * off;
      }
      if (sum < best) {
        best = sum;
        levels = fit;
      }
    }
    left_[axis] = static_cast<float>(best / count);
  }
}

/// Alternates codes, those of the nearest levels, and levels, the line of least squares through
/// (code, value), until both rest. sorted: ascending values.
EvenLevels KeyCoder::fit_levels(const std::vector<float>& sorted, EvenLevels levels) {
  std::vector<double> sums(sorted.size() + 1, 0.0);
  std::partial_sum(sorted.begin(), sorted.end(), sums.begin() + 1, std::plus<double>());
  const auto count = static_cast<double>(sorted.size());
  for (int round = 0; round < fit_rounds; ++round) {
    double codes = 0;
    double squares = 0;
    double products = 0;
    std::size_t begin = 0;
    for (int code = 0; code <= levels.most; ++code) {
      const float border = (levels.of(code) + levels.of(code + 1)) / 2;
      const auto from = sorted.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto to =
          code == levels.most ? sorted.end() : std::lower_bound(from, sorted.end(), border);
      const auto end = static_cast<std::size_t>(to - sorted.begin());
      codes += code * static_cast<double>(end - begin);
      squares += code * code * static_cast<double>(end - begin);
      products += code * (sums[end] - sums[begin]);
      begin = end;
    }
    const double spread = count * squares - codes * codes;
    const double step = spread > 0 ? (count * products - codes * sums.back()) / spread : 0;
    const auto low = static_cast<float>((sums.back() - step * codes) / count);
    const bool rests = low == levels.low && static_cast<float>(step) == levels.step;
    levels.low = low;
    levels.step = static_cast<float>(step);
    if (rests) break;
  }
  return levels;
}

/// Slots of the largest weight come first, in the highest field: a kernel that leaves a field's
/// shift in its value divides the coefficient by 4^field, and then all are of similar size.
void KeyCoder::place_slots() {
  for (std::size_t axis = 0; axis < levels_.size(); ++axis) {
    for (int shift = levels_[axis].most == 15 ? 2 : 0; shift >= 0; shift -= 2) {
      slots_.push_back({.axis = static_cast<std::int64_t>(axis), .shift = shift});
    }
  }
  std::stable_sort(slots_.begin(), slots_.end(),
                   [&](const Slot& a, const Slot& b) { return weight(a) > weight(b); });
  for (std::int64_t i = 0; i < std::ssize(slots_); ++i) {
    slots_[static_cast<std::size_t>(i)].position = (3 - i / bytes_) * bytes_ + i % bytes_;
  }
}

void KeyCoder::encode(const KeyView& keys, std::int64_t first, std::int64_t count,
                      std::uint8_t* codes, float* residuals) const {
  std::vector<float> rows(static_cast<std::size_t>(tile * keys.dim));
  std::vector<float> along(levels_.size() * tile);
  std::vector<std::uint8_t> axis_codes(levels_.size() * tile);
  std::vector<std::uint8_t> bits(static_cast<std::size_t>(bytes_ * tile));
  for (std::int64_t begin = 0; begin < count; begin += tile) {
    const std::int64_t size = std::min(tile, count - begin);
    float* residual = residuals + begin;
    axes_.read(keys, first + begin, size, rows.data(), residual);
    axes_.project(rows.data(), size, std::ssize(levels_), along.data());
    for (std::size_t axis = 0; axis < levels_.size(); ++axis) {
      nearest_codes(levels_[axis], along.data() + axis * tile, size,
                    axis_codes.data() + axis * tile, residual);
    }
    std::fill(bits.begin(), bits.end(), std::uint8_t{0});
    for (const Slot& slot : slots_) {
      place_slot(axis_codes.data() + slot.axis * tile, size, slot.shift, bit_of(slot),
                 bits.data() + byte_of(slot) * tile);
    }
    for (std::int64_t i = 0; i < size; ++i) {
      residual[i] = residual[i] / axes_.scale() / axes_.scale();
      if (!(residual[i] <= std::numeric_limits<float>::max())) {
        residual[i] = std::numeric_limits<float>::infinity();
      }
    }
    for (std::int64_t i = 0; i < size;) {
      const std::int64_t at = first + begin + i;
      const std::int64_t n = std::min(code_block - at % code_block, size - i);
      std::uint8_t* to = codes + at / code_block * code_block * bytes_ + at % code_block;
      for (std::int64_t b = 0; b < bytes_; ++b) {
        std::copy_n(bits.data() + b * tile + i, n, to + b * code_block);
      }
      i += n;
    }
  }
}

void KeyCoder::decode(const std::uint8_t* codes, std::int64_t position, float* key) const {
  const std::uint8_t* code =
      codes + position / code_block * code_block * bytes_ + position % code_block;
  std::copy(axes_.mean().begin(), axes_.mean().end(), key);
  const auto add = [&](std::int64_t axis, float length) {
    const float* direction = axes_.axis(axis);
    for (std::int64_t j = 0; j < axes_.dim(); ++j) key[j] += length * direction[j];
  };
  for (std::size_t axis = 0; axis < levels_.size(); ++axis) {
    add(static_cast<std::int64_t>(axis), levels_[axis].low);
  }
  for (const Slot& slot : slots_) {
    const int value = code[byte_of(slot) * code_block] >> bit_of(slot) & 3;
    add(slot.axis, weight(slot) * static_cast<float>(value));
  }
  for (std::int64_t j = 0; j < axes_.dim(); ++j) key[j] /= axes_.scale();
}

void KeyCoder::make_tables(const float* query, CodeTables& tables) const {
  struct Workspace {
    std::vector<double> along;    // each axis that has bits
    std::vector<double> weights;  // of slots, by their position
  };
  const Scratch<Workspace> workspace;
  auto& [along, weights] = *workspace;
  const auto dot = [&](const float* direction) {
    double sum = 0;
    for (std::int64_t j = 0; j < axes_.dim(); ++j) {
      sum += static_cast<double>(query[j]) * direction[j];
    }
    return sum / axes_.scale();
  };
  double offset = dot(axes_.mean().data());
  along.clear();
  for (std::size_t axis = 0; axis < levels_.size(); ++axis) {
    along.push_back(dot(axes_.axis(static_cast<std::int64_t>(axis))));
    offset += along.back() * levels_[axis].low;
  }
  weights.assign(static_cast<std::size_t>(4 * bytes_), 0.0);
  for (const Slot& slot : slots_) {
    double& to = weights[static_cast<std::size_t>(slot.position)];
    to = along[static_cast<std::size_t>(slot.axis)] * weight(slot);
    offset += 3 * std::min(to, 0.0);
  }
  // Of a nibble, the weights of the lower slot and of the upper one.
  const auto nibbles = static_cast<std::size_t>(2 * bytes_);
  const auto weights_of = [&](std::size_t nibble) {
    const auto bytes = static_cast<std::size_t>(bytes_);
    const double* lower = &weights[nibble % 2 * 2 * bytes + nibble / 2];
    return std::pair(lower[0], lower[bytes]);
  };
  double widest = 0;
  for (std::size_t n = 0; n < nibbles; ++n) {
    const auto [lower, upper] = weights_of(n);
    widest = std::max(widest, 3 * (std::abs(lower) + std::abs(upper)));
  }
  const double step = widest / 255;
  tables.entries.assign(nibbles * 16, 0);
  for (std::size_t n = 0; step > 0 && n < nibbles; ++n) {
    const auto [lower, upper] = weights_of(n);
    const double low = 3 * (std::min(lower, 0.0) + std::min(upper, 0.0));
    for (int x = 0; x < 16; ++x) {
      const double above = lower * (x & 3) + upper * (x >> 2) - low;
      tables.entries[n * 16 + static_cast<std::size_t>(x)] =
          static_cast<std::uint8_t>(above / step + 0.5);
    }
  }
  constexpr double most = std::numeric_limits<float>::max() / 4;
  const double largest = std::abs(offset) + 255 * static_cast<double>(nibbles) * step;
  const double fit = largest > most ? std::exp2(std::floor(std::log2(most / largest))) : 1;
  tables.offset = static_cast<float>(offset * fit);
  tables.step = static_cast<float>(step * fit);
}

float KeyCoder::error_variance(const float* query) const {
  float sum = 0;
  for (std::int64_t axis = 0; axis < axes_.dim(); ++axis) {
    const float weight =
        std::inner_product(query, query + axes_.dim(), axes_.axis(axis), 0.0F) / axes_.scale();
    const float error = weight * std::sqrt(left_[static_cast<std::size_t>(axis)]);
    sum += error * error;
  }
  return sum;
}

void KeyCoder::linear(float* slots, float* middle, float* errors) const {
  const std::int64_t dim = axes_.dim();
  const auto add = [&](std::int64_t axis, float length, float* to) {
    const float* direction = axes_.axis(axis);
    for (std::int64_t j = 0; j < dim; ++j) to[j] += length * direction[j];
  };
  std::fill_n(slots, 4 * bytes_ * dim, 0.0F);
  std::fill_n(errors, dim * dim, 0.0F);
  std::copy(axes_.mean().begin(), axes_.mean().end(), middle);
  for (std::size_t axis = 0; axis < levels_.size(); ++axis) {
    const EvenLevels& levels = levels_[axis];
    const float centre = levels.low + levels.step * static_cast<float>(levels.most) / 2;
    add(static_cast<std::int64_t>(axis), centre, middle);
  }
  for (const Slot& slot : slots_) add(slot.axis, weight(slot), slots + slot.position * dim);
  for (std::int64_t axis = 0; axis < dim; ++axis) {
    add(axis, std::sqrt(left_[static_cast<std::size_t>(axis)]), errors + axis * dim);
  }
  const auto unscale = [&](float* from, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) from[i] /= axes_.scale();
  };
  unscale(slots, 4 * bytes_ * dim);
  unscale(middle, dim);
  unscale(errors, dim * dim);
}

}  // namespace topkv
