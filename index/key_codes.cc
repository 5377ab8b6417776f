#include "index/key_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "index/key_list.h"
#include "index/principal_axes.h"
#include "index/scratch.h"
#include "src/core/matrix_product.h"

namespace topkv {
namespace {

constexpr std::int64_t axes_sample = 65536;    // keys that means and covariances are taken of
constexpr std::int64_t levels_sample = 16384;  // and levels
constexpr std::int64_t tile = 512;             // keys encoded at a time
constexpr int lloyd_rounds = 30;
constexpr std::int64_t most_bytes = 128;  // of a code: sums of entries of 8 bits fit into 16

/// Part of the variance of a normal variable that Lloyd-Max levels leave (Max 1960, table I).
double left_of_normal(int bits) {
  constexpr double left[] = {1.0, 0.3634, 0.1175, 0.03454, 0.009497};
  return left[bits];
}

/// Up to `most` keys spread evenly over all, as float32.
std::vector<float> sample_of(const KeyView& keys, std::int64_t most) {
  const std::int64_t count = std::min(keys.count, most);
  std::vector<float> sample(static_cast<std::size_t>(count * keys.dim));
  for (std::int64_t i = 0; i < count; ++i) {
    // Not every n-th: text that repeats may have the same period.
    const std::int64_t begin = i * keys.count / count;
    const std::int64_t room = (i + 1) * keys.count / count - begin;
    const auto hash = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15U >> 33;
    const std::int64_t at = begin + static_cast<std::int64_t>(hash) % room;
    widen_key(keys, at, sample.data() + i * keys.dim);
  }
  return sample;
}

/// Moves levels to the means of their cells until they rest. sorted: ascending values of one axis.
void lloyd(const std::vector<float>& sorted, float* levels, int count) {
  std::vector<double> sums(sorted.size() + 1, 0.0);
  std::partial_sum(sorted.begin(), sorted.end(), sums.begin() + 1, std::plus<double>());
  const auto value_at = [&](double part) {
    return sorted[static_cast<std::size_t>(part * static_cast<double>(sorted.size() - 1))];
  };
  for (int i = 0; i < count; ++i) levels[i] = value_at((i + 0.5) / count);
  for (int round = 0; round < lloyd_rounds; ++round) {
    bool moved = false;
    std::size_t begin = 0;
    for (int i = 0; i < count; ++i) {
      const auto end =
          i + 1 == count
              ? sorted.size()
              : static_cast<std::size_t>(std::lower_bound(sorted.begin(), sorted.end(),
                                                          (levels[i] + levels[i + 1]) / 2) -
                                         sorted.begin());
      if (end > begin) {
        const auto mean =
            static_cast<float>((sums[end] - sums[begin]) / static_cast<double>(end - begin));
        moved = moved || mean != levels[i];
        levels[i] = mean;
        begin = end;
      }
    }
    if (!moved) break;
  }
}

}  // namespace

KeyCoder::KeyCoder(const KeyView& keys, std::int64_t bytes)
    : dim_(keys.dim), bytes_(std::min({bytes, (keys.dim + 1) / 2, most_bytes})) {
  std::vector<float> sample = sample_of(keys, axes_sample);
  const auto count = static_cast<std::int64_t>(sample.size()) / dim_;
  find_scale(sample);
  mean_.assign(static_cast<std::size_t>(dim_), 0.0F);
  center(count, sample.data());
  std::vector<float> mean(mean_.size());
  for (std::int64_t j = 0; j < dim_; ++j) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += sample[static_cast<std::size_t>(i * dim_ + j)];
    mean[static_cast<std::size_t>(j)] = static_cast<float>(sum / static_cast<double>(count));
  }
  for (std::size_t i = 0; i < sample.size(); ++i) sample[i] -= mean[i % mean.size()];
  mean_ = std::move(mean);
  find_axes(sample);
  share_bits(bytes_ * 8);
  place_fields();
  find_levels(sample);
}

std::int64_t KeyCoder::memory() const {
  const std::size_t floats = mean_.capacity() + axes_.capacity() + left_.capacity() +
                             levels_.capacity() + 2 * variances_.capacity();
  return static_cast<std::int64_t>(floats * sizeof(float) + fields_.capacity() * sizeof(Field));
}

void KeyCoder::find_scale(const std::vector<float>& sample) {
  float largest = 0;
  for (const float x : sample) largest = std::max(largest, std::abs(x));
  if (largest > 0) scale_ = std::ldexp(1.0F, std::clamp(-std::ilogb(largest), -120, 120));
}

/// keys: [count, dim], as they were stored; become scaled and centred.
void KeyCoder::center(std::int64_t count, float* keys) const {
  for (std::int64_t i = 0; i < count; ++i) {
    float* key = keys + i * dim_;
    for (std::int64_t j = 0; j < dim_; ++j) {
      key[j] = key[j] * scale_ - mean_[static_cast<std::size_t>(j)];
    }
  }
}

void KeyCoder::find_axes(const std::vector<float>& sample) {
  const auto count = static_cast<std::int64_t>(sample.size()) / dim_;
  std::vector<float> transposed(static_cast<std::size_t>(dim_ * tile));
  std::vector<float> covariance(static_cast<std::size_t>(dim_ * dim_), 0.0F);
  for (std::int64_t first = 0; first < count; first += tile) {
    const std::int64_t rows = std::min(tile, count - first);
    const float* keys = sample.data() + first * dim_;
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < dim_; ++j) {
        transposed[static_cast<std::size_t>(j * tile + i)] = keys[i * dim_ + j];
      }
    }
    matrix_product(Transposed::no, dim_, dim_, rows, transposed.data(), tile, keys, dim_, 1.0F,
                   covariance.data(), dim_);
  }
  std::vector<double> wide(covariance.begin(), covariance.end());
  for (double& x : wide) x /= static_cast<double>(count);
  variances_ = principal_axes(dim_, wide);
  axes_.assign(wide.begin(), wide.end());
}

/// Reverse water-filling, step by step: the next bits go where they lower the error most.
void KeyCoder::share_bits(std::int64_t bits) {
  std::vector<int> share(static_cast<std::size_t>(dim_), 0);
  for (;;) {
    std::size_t best = share.size();
    double most = 0;
    for (std::size_t i = 0; i < share.size(); ++i) {
      const int now = share[i];
      const int next = now == 0 ? 1 : 2 * now;
      if (next > 4 || next - now > bits) continue;
      const double gain =
          variances_[i] * (left_of_normal(now) - left_of_normal(next)) / (next - now);
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
  const auto count = static_cast<std::int64_t>(sample.size()) / dim_;
  const std::int64_t step = (count + levels_sample - 1) / levels_sample;
  const auto used = static_cast<std::int64_t>(fields_.size());
  std::vector<std::vector<float>> values(fields_.size());
  std::vector<float> projected(static_cast<std::size_t>(std::max<std::int64_t>(used, 1) * tile));
  std::vector<float> keys(static_cast<std::size_t>(tile * dim_));
  for (std::int64_t first = 0; first < count; first += tile * step) {
    std::int64_t rows = 0;
    for (std::int64_t i = first; i < count && rows < tile; i += step, ++rows) {
      std::copy_n(sample.data() + i * dim_, dim_, keys.data() + rows * dim_);
    }
    project(keys.data(), rows, projected.data());
    for (std::size_t axis = 0; axis < fields_.size(); ++axis) {
      const float* from = projected.data() + axis * tile;
      values[axis].insert(values[axis].end(), from, from + rows);
    }
  }
  left_.assign(variances_.begin(), variances_.end());
  for (std::size_t axis = 0; axis < fields_.size(); ++axis) {
    std::sort(values[axis].begin(), values[axis].end());
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

/// centred: [count, dim]. out: [axes with bits, tile], what the keys are along each axis.
void KeyCoder::project(const float* centred, std::int64_t count, float* out) const {
  if (fields_.empty()) return;
  matrix_product(Transposed::yes, static_cast<std::int64_t>(fields_.size()), count, dim_,
                 axes_.data(), dim_, centred, dim_, 0.0F, out, tile);
}

void KeyCoder::encode(const KeyView& keys, std::int64_t first, std::int64_t count,
                      std::uint8_t* codes, float* residuals) const {
  std::vector<float> rows(static_cast<std::size_t>(tile * dim_));
  std::vector<float> along(fields_.size() * tile);
  std::vector<std::uint8_t> bits(static_cast<std::size_t>(bytes_ * tile));
  for (std::int64_t begin = 0; begin < count; begin += tile) {
    const std::int64_t size = std::min(tile, count - begin);
    float* residual = residuals + begin;
    for (std::int64_t i = 0; i < size; ++i) {
      widen_key(keys, first + begin + i, rows.data() + i * dim_);
    }
    center(size, rows.data());
    for (std::int64_t i = 0; i < size; ++i) {
      const float* key = rows.data() + i * dim_;
      residual[i] = std::inner_product(key, key + dim_, key, 0.0F);
    }
    project(rows.data(), size, along.data());
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
      residual[i] = residual[i] / scale_ / scale_;
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
  std::copy(mean_.begin(), mean_.end(), key);
  for (std::size_t axis = 0; axis < fields_.size(); ++axis) {
    const Field& field = fields_[axis];
    const unsigned byte = code[field.nibble / 2 * code_block];
    const int shift = static_cast<int>(field.nibble % 2) * 4 + field.shift;
    const float level =
        levels_[static_cast<std::size_t>(field.level) + (byte >> shift & ((1U << field.bits) - 1))];
    const float* direction = axes_.data() + static_cast<std::int64_t>(axis) * dim_;
    for (std::int64_t j = 0; j < dim_; ++j) key[j] += level * direction[j];
  }
  for (std::int64_t j = 0; j < dim_; ++j) key[j] /= scale_;
}

void KeyCoder::make_tables(const float* query, CodeTables& tables) const {
  const auto nibbles = static_cast<std::size_t>(2 * bytes_);
  const Scratch<std::vector<double>> sums;
  sums->assign(nibbles * 16, 0.0);
  const auto along = [&](const float* direction) {
    return std::inner_product(query, query + dim_, direction, 0.0) / scale_;
  };
  for (std::size_t axis = 0; axis < fields_.size(); ++axis) {
    const Field& field = fields_[axis];
    const double weight = along(axes_.data() + static_cast<std::int64_t>(axis) * dim_);
    const float* levels = levels_.data() + field.level;
    double* table = sums->data() + field.nibble * 16;
    const unsigned mask = (1U << field.bits) - 1;
    for (unsigned x = 0; x < 16; ++x) table[x] += weight * levels[x >> field.shift & mask];
  }
  double offset = along(mean_.data());
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
  for (std::int64_t axis = 0; axis < dim_; ++axis) {
    const float weight =
        std::inner_product(query, query + dim_, axes_.data() + axis * dim_, 0.0F) / scale_;
    sum += weight * weight * left_[static_cast<std::size_t>(axis)];
  }
  return sum;
}

}  // namespace topkv
