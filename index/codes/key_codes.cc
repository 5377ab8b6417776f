#include "index/codes/key_codes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "index/common/scratch.h"
#include "src/core/math/dot.h"

namespace topkv {
namespace {

constexpr std::int64_t key_levels_sample = 16384;  // keys that levels are learned of
constexpr std::int64_t tile = CodeAxes::tile;      // keys encoded at a time
constexpr std::int64_t most_bytes = 128;           // of a code
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

void KeyCoder::fields(std::int64_t dim, std::int64_t bytes, Archive& archive) {
  axes_.fields(dim, true, archive);
  archive.value(bytes_);
  archive.array(left_);
  std::vector<float> low, step;
  std::vector<std::int32_t> most;
  for (const EvenLevels& levels : levels_) {
    low.push_back(levels.low);
    step.push_back(levels.step);
    most.push_back(levels.most);
  }
  archive.array(low);
  archive.array(step);
  archive.array(most);
  if (!archive.reading()) return;
  archive.check(bytes_ == std::min({bytes, (dim + 1) / 2, most_bytes}),
                "its codes have another size than the spec gives");
  archive.check(std::ssize(left_) == dim && std::ssize(low) <= dim && low.size() == step.size() &&
                    low.size() == most.size(),
                "it has not one set of levels for each axis");
  for (const float left : left_) archive.check(left >= 0, "a variance is below 0");
  levels_.clear();
  std::int64_t slots = 0;
  for (std::size_t i = 0; i < low.size(); ++i) {
    archive.check(most[i] == 3 || most[i] == 15, "an axis does not have 4 or 16 levels");
    archive.check(step[i] >= 0, "levels are below 0");
    slots += most[i] == 15 ? 2 : 1;
    levels_.push_back({low[i], step[i], most[i]});
  }
  archive.check(slots <= 4 * bytes_, "it has more levels than a code has bits");
  slots_.clear();
  place_slots();
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
  const auto values = axes_.spread(sample, std::ssize(share), key_levels_sample);
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

void KeyCoder::weigh_slots(const float* query, SlotWeights& weights) const {
  struct Workspace {
    std::vector<float> unit;      // the query, its largest element between 1 and 2
    std::vector<float> along;     // each axis that has bits
    std::vector<double> of_slot;  // by their number among those that are used
    std::vector<float> in_place;  // of all slots: [bytes, 4]
  };
  const Scratch<Workspace> workspace;
  auto& [unit, along, of_slot, in_place] = *workspace;
  const std::int64_t dim = axes_.dim();
  const auto groups = static_cast<std::size_t>((bytes_ + 3) / 4);
  weights.coefficients.assign(groups * 16, 0);
  weights.offset = weights.step = 0;
  weights.tables.assign(static_cast<std::size_t>(32 * bytes_), 0);
  weights.table_offset = weights.table_step = 0;
  float largest = 0;
  for (std::int64_t j = 0; j < dim; ++j) {
    if (!std::isfinite(query[j])) return;  // the step will be refused
    largest = std::max(largest, std::abs(query[j]));
  }
  const int exponent = largest > 0 ? std::ilogb(largest) : 0;
  unit.assign(query, query + dim);
  for (float& x : unit) x = std::scalbn(x, -exponent);
  const auto floats = [&](const float* x, std::int64_t count) {
    return KeyView{reinterpret_cast<const std::byte*>(x), DType::f32, count, dim, dim * 4};
  };
  along.assign(levels_.size() + 1, 0.0F);
  const auto axes = std::ssize(levels_);
  if (axes > 0) {
    dot_block(unit.data(), 1, floats(axes_.axis(0), axes), along.data(), axes);
  }
  dot_block(unit.data(), 1, floats(axes_.mean().data(), 1), &along.back(), 1);
  const double size = std::exp2(exponent) / axes_.scale();
  double offset = size * along.back();
  for (std::size_t axis = 0; axis < levels_.size(); ++axis)
    offset += size * along[axis] * levels_[axis].low;
  double most = 0;
  of_slot.clear();
  for (const Slot& slot : slots_) {
    of_slot.push_back(size * along[static_cast<std::size_t>(slot.axis)] * weight(slot));
    most = std::max(most, std::abs(of_slot.back()));
  }
  const double unrounded = offset;
  const double step = most / 127;
  for (std::size_t i = 0; step > 0 && i < slots_.size(); ++i) {
    const double whole = std::round(of_slot[i] / step);
    // What rounding leaves is added for the middle of the slot's values.
    offset += 1.5 * (of_slot[i] - whole * step);
    const std::int64_t byte = byte_of(slots_[i]);
    const std::int64_t field = bit_of(slots_[i]) / 2;
    weights.coefficients[static_cast<std::size_t>((byte / 4 * 4 + field) * 4 + byte % 4)] =
        static_cast<std::int8_t>(whole);
  }
  constexpr double fits = std::numeric_limits<float>::max() / 4;
  const double reach = std::abs(offset) + 3 * 127 * static_cast<double>(4 * bytes_) * step;
  const double fit = reach > fits ? std::exp2(std::floor(std::log2(fits / reach))) : 1;
  weights.offset = static_cast<float>(offset * fit);
  weights.step = static_cast<float>(step * fit);
  in_place.assign(static_cast<std::size_t>(4 * bytes_), 0.0F);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const std::int64_t at = 4 * byte_of(slots_[i]) + bit_of(slots_[i]) / 2;
    in_place[static_cast<std::size_t>(at)] = static_cast<float>(of_slot[i] * fit);
  }
  make_tables(in_place.data(), bytes_, weights);
  weights.table_offset += static_cast<float>(unrounded * fit);
}

float KeyCoder::error_variance(const float* query) const {
  const std::int64_t dim = axes_.dim();
  const Scratch<std::vector<float>> along;
  along->resize(static_cast<std::size_t>(dim));
  const KeyView axes{reinterpret_cast<const std::byte*>(axes_.axis(0)), DType::f32, dim, dim,
                     dim * 4};
  dot_block(query, 1, axes, along->data(), dim);
  float sum = 0;
  for (std::size_t axis = 0; axis < along->size(); ++axis) {
    const float error = (*along)[axis] / axes_.scale() * std::sqrt(left_[axis]);
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
