#include "index/key_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <iterator>
#include <numeric>

#include "index/scratch.h"

namespace topkv {
namespace {

constexpr std::int64_t levels_sample = 16384;     // keys that levels are learned of
constexpr std::int64_t tile = CodeAxes::tile;     // keys encoded at a time
constexpr std::int64_t most_bytes = 128;          // of a code: sums of 8 bits fit into 16

/// Part of the variance of a normal variable that Lloyd-Max levels leave (Max 1960, table I).
double left_of_normal(int bits) {
  constexpr double left[] = {1.0, 0.3634, 0.1175, 0.03454, 0.009497};
  return left[bits];
}

}  // namespace

KeyCoder::KeyCoder(const KeyView& keys, std::int64_t bytes)
    : bytes_(std::min({bytes, (keys.dim + 1) / 2, most_bytes})) {
  std::vector<float> sample;
  axes_ = CodeAxes(keys, sample);
  share_bits(bytes_ * 8);
  place_fields();
  find_levels(sample);
}

std::int64_t KeyCoder::memory() const {
  const std::size_t floats = left_.capacity() + levels_.capacity();
  return axes_.memory() +
         static_cast<std::int64_t>(floats * sizeof(float) + fields_.capacity() * sizeof(Field));
}

/// Reverse water-filling, step by step: the next bits go where they lower the error most.
void KeyCoder::share_bits(std::int64_t bits) {
  const std::vector<double>& variances = axes_.variances();
  std::vector<int> share(variances.size(), 0);
  for (;;) {
    std::size_t best = share.size();
    double most = 0;
    for (std::size_t i = 0; i < share.size(); ++i) {
      const int now = share[i];
      const int next = now == 0 ? 1 : 2 * now;
      if (next > 4 || next - now > bits) continue;
      const double gain =
          variances[i] * (left_of_normal(now) - left_of_normal(next)) / (next - now);
      if (gain > most) {
        most = gain;
        best = i;
      }
    }
    if (best == share.size()) break;
    const int next = share[best] == 0 ? 1 : 2 * share[best];
    bits -= next - share[best];
    share[best] = next;
  }
  fields_.clear();
  for (const int width : share) {
    if (width == 0) break;  // variances fall, so the rest have none
    fields_.push_back({.bits = width});
  }
}

/// Axes of 4 bits first, then those of 2 and of 1: nibbles fill up without gaps.
void KeyCoder::place_fields() {
  std::int64_t at = 0;  // bits
  std::int64_t level = 0;
  for (Field& field : fields_) {
    field.nibble = at / 4;
    field.shift = static_cast<int>(at % 4);
    field.level = level;
    at += field.bits;
    level += std::int64_t{1} << field.bits;
  }
  levels_.resize(static_cast<std::size_t>(level));
}

void KeyCoder::find_levels(const std::vector<float>& sample) {
  const auto values = axes_.spread(sample, std::ssize(fields_), levels_sample);
  left_.assign(axes_.variances().begin(), axes_.variances().end());
  for (std::size_t axis = 0; axis < fields_.size(); ++axis) {
    float* levels = levels_.data() + fields_[axis].level;
    const int n = 1 << fields_[axis].bits;
    lloyd(values[axis], levels, n);
    double sum = 0;
    for (const float x : values[axis]) {
      float nearest = std::abs(x - levels[0]);
      for (int i = 1; i < n; ++i) nearest = std::min(nearest, std::abs(x - levels[i]));
      sum += static_cast<double>(nearest) * nearest;
    }
    left_[axis] = static_cast<float>(sum / static_cast<double>(values[axis].size()));
  }
}

void KeyCoder::encode(const KeyView& keys, std::int64_t first, std::int64_t count,
                      std::uint8_t* codes, float* residuals) const {
  std::vector<float> rows(static_cast<std::size_t>(tile * keys.dim));
  std::vector<float> along(fields_.size() * tile);
  std::vector<std::uint8_t> bits(static_cast<std::size_t>(bytes_ * tile));
  for (std::int64_t begin = 0; begin < count; begin += tile) {
    const std::int64_t size = std::min(tile, count - begin);
    float* residual = residuals + begin;
    axes_.read(keys, first + begin, size, rows.data());
    for (std::int64_t i = 0; i < size; ++i) {
      const float* key = rows.data() + i * keys.dim;
      residual[i] = std::inner_product(key, key + keys.dim, key, 0.0F);
    }
    axes_.project(rows.data(), size, std::ssize(fields_), along.data());
    std::fill(bits.begin(), bits.end(), std::uint8_t{0});
    for (std::size_t axis = 0; axis < fields_.size(); ++axis) {
      const Field& field = fields_[axis];
      const float* levels = levels_.data() + field.level;
      const float* x = along.data() + axis * tile;
      std::uint8_t* byte = bits.data() + field.nibble / 2 * tile;
      const int shift = static_cast<int>(field.nibble % 2) * 4 + field.shift;
      for (std::int64_t i = 0; i < size; ++i) {
        std::uint32_t code = 0;
        for (int level = 1; level < 1 << field.bits; ++level) {
          code += x[i] > (levels[level - 1] + levels[level]) / 2 ? 1U : 0U;
        }
        byte[i] = static_cast<std::uint8_t>(byte[i] | code << shift);
        const float off = x[i] - levels[code];
        residual[i] += off * off - x[i] * x[i];
      }
    }
    for (std::int64_t i = 0; i < size; ++i) {
      residual[i] = residual[i] / axes_.scale() / axes_.scale();
      if (!(residual[i] <= std::numeric_limits<float>::max())) {
        residual[i] = std::numeric_limits<float>::infinity();
      }
      const std::int64_t at = first + begin + i;
      std::uint8_t* to = codes + at / code_block * code_block * bytes_ + at % code_block;
      for (std::int64_t b = 0; b < bytes_; ++b) {
        to[b * code_block] = bits[static_cast<std::size_t>(b * tile + i)];
      }
    }
  }
}

void KeyCoder::decode(const std::uint8_t* codes, std::int64_t position, float* key) const {
  const std::uint8_t* code =
      codes + position / code_block * code_block * bytes_ + position % code_block;
  std::copy(axes_.mean().begin(), axes_.mean().end(), key);
  for (std::size_t axis = 0; axis < fields_.size(); ++axis) {
    const Field& field = fields_[axis];
    const unsigned byte = code[field.nibble / 2 * code_block];
    const int shift = static_cast<int>(field.nibble % 2) * 4 + field.shift;
    const float level =
        levels_[static_cast<std::size_t>(field.level) + (byte >> shift & ((1U << field.bits) - 1))];
    const float* direction = axes_.axis(static_cast<std::int64_t>(axis));
    for (std::int64_t j = 0; j < axes_.dim(); ++j) key[j] += level * direction[j];
  }
  for (std::int64_t j = 0; j < axes_.dim(); ++j) key[j] /= axes_.scale();
}

void KeyCoder::make_tables(const float* query, CodeTables& tables) const {
  const auto nibbles = static_cast<std::size_t>(2 * bytes_);
  const Scratch<std::vector<double>> sums;
  sums->assign(nibbles * 16, 0.0);
  const auto along = [&](const float* direction) {
    return std::inner_product(query, query + axes_.dim(), direction, 0.0) / axes_.scale();
  };
  for (std::size_t axis = 0; axis < fields_.size(); ++axis) {
    const Field& field = fields_[axis];
    const double weight = along(axes_.axis(static_cast<std::int64_t>(axis)));
    const float* levels = levels_.data() + field.level;
    double* table = sums->data() + field.nibble * 16;
    const unsigned mask = (1U << field.bits) - 1;
    for (unsigned x = 0; x < 16; ++x) table[x] += weight * levels[x >> field.shift & mask];
  }
  double offset = along(axes_.mean().data());
  double widest = 0;
  for (std::size_t n = 0; n < nibbles; ++n) {
    const auto [low, high] = std::minmax_element(&(*sums)[n * 16], &(*sums)[n * 16] + 16);
    offset += *low;
    widest = std::max(widest, *high - *low);
  }
  const double step = widest / 255;
  tables.entries.resize(nibbles * 16);
  for (std::size_t n = 0; n < nibbles; ++n) {
    const double* table = &(*sums)[n * 16];
    const double low = *std::min_element(table, table + 16);
    for (std::size_t x = 0; x < 16; ++x) {
      tables.entries[n * 16 + x] =
          step > 0 ? static_cast<std::uint8_t>(std::lround((table[x] - low) / step)) : 0;
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
    sum += weight * weight * left_[static_cast<std::size_t>(axis)];
  }
  return sum;
}

}  // namespace topkv
