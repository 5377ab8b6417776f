#include "index/codes/value_codes.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "index/codes/code_loops.h"
#include "src/core/math/vector_math.h"

namespace topkv {
namespace {

constexpr std::int64_t value_levels_sample = 16384;  // values that levels are learned of
constexpr std::size_t beyond = 64;  // one value in so many lies below the levels, and one above

struct Place {
  std::int64_t byte;
  int bit;
};

Place place_of(std::int64_t position, std::int64_t axis, std::int64_t lanes) {
  const std::int64_t lane = axis % lanes;
  return {position / 4 * lanes + lane, static_cast<int>(position % 4 + axis / lanes * 4)};
}

}  // namespace

/// Hashes, which multiply, so that an axis costs one product. (The finalizer of MurmurHash3,
/// A. Appleby, public domain.)
std::uint32_t ValueCoder::seed_of(std::int64_t value) {
  auto x = static_cast<std::uint64_t>(value) + 1;
  x = (x ^ x >> 33) * 0xFF51AFD7ED558CCDU;
  x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53U;
  return static_cast<std::uint32_t>(x >> 32) | 1;
}

ValueCoder::ValueCoder(const KeyView& values, std::int64_t bits) {
  if (bits == 0) {
    axes_ = CodeAxes::mean_of(values);
    error_variance_ = static_cast<float>(axes_.variances().front());
    return;
  }
  std::vector<float> sample;
  axes_ = CodeAxes(values, sample);
  const std::int64_t used = std::min(bits, values.dim);
  lanes_ = lanes_for(used);
  double left = std::accumulate(axes_.variances().begin(), axes_.variances().end(), 0.0);
  double coded = 0;
  for (const std::vector<float>& along : axes_.spread(sample, used, value_levels_sample)) {
    float low = along[along.size() / beyond];
    float high = along[along.size() - 1 - along.size() / beyond];
    if (low == high) {  // nearly all are the same, and get their level for certain
      low = along.front();
      high = along.back();
    }
    low_.push_back(low);
    high_.push_back(high);
    // Of a value between the levels, by chance (high - x)(x - low); of one beyond, its distance.
    double sum = 0;
    double met = 0;
    for (const float x : along) {
      const float at = std::clamp(x, low, high);
      sum += (high - at) * (at - low) + (x - at) * (x - at);
      met += at;
    }
    const auto count = static_cast<double>(along.size());
    left += sum / count - axes_.variances()[low_.size() - 1];
    coded += (high - met / count) * (met / count - low);
  }
  const double scale = axes_.scale();
  variance_ = static_cast<float>(coded / scale / scale);
  error_variance_ = static_cast<float>(left / scale / scale);
}

void ValueCoder::fields(std::int64_t dim, std::int64_t bits, Archive& archive) {
  const std::int64_t used = std::min(bits, dim);
  axes_.fields(dim, used > 0, archive);
  archive.value(lanes_);
  archive.array(low_);
  archive.array(high_);
  archive.value(variance_);
  archive.value(error_variance_);
  if (!archive.reading()) return;
  archive.check(lanes_ == lanes_for(used), "its codes have another size than the spec gives");
  archive.check(std::ssize(low_) == used && std::ssize(high_) == used,
                "it has not one pair of levels for each bit");
  archive.check(variance_ >= 0 && error_variance_ >= 0, "a variance is below 0");
}

std::int64_t ValueCoder::bytes_for(std::int64_t values) const {
  return whole_value_blocks(values) / 4 * lanes_;
}

std::int64_t ValueCoder::memory() const {
  return axes_.memory() +
         static_cast<std::int64_t>((low_.capacity() + high_.capacity()) * sizeof(float));
}

void ValueCoder::encode(const KeyView& values, std::int64_t first, std::int64_t count,
                        std::uint8_t* codes) const {
  const std::int64_t used = std::ssize(low_);
  const std::int64_t width = 2 * lanes_;
  const auto n = static_cast<std::size_t>(width);
  // An axis without a bit has a level that nothing exceeds.
  std::vector<float> low(n, std::numeric_limits<float>::infinity());
  std::vector<float> range(n, 0.0F);
  std::vector<std::uint32_t> seeds(n, 0);
  for (std::size_t axis = 0; axis < low_.size(); ++axis) {
    low[axis] = low_[axis];
    range[axis] = high_[axis] - low_[axis];
    seeds[axis] = seed_of_axis(static_cast<std::int64_t>(axis));
  }
  std::vector<float> centred(static_cast<std::size_t>(CodeAxes::tile * values.dim));
  std::vector<float> squares(CodeAxes::tile);
  std::vector<float> along(static_cast<std::size_t>(CodeAxes::tile * width));
  for (std::int64_t begin = 0; begin < count; begin += CodeAxes::tile) {
    const std::int64_t size = std::min(CodeAxes::tile, count - begin);
    axes_.read(values, first + begin, size, centred.data(), squares.data());
    axes_.project_each(centred.data(), size, used, along.data(), width);
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t at = first + begin + i;
      choose_upper(along.data() + i * width, low.data(), range.data(), seed_of(at), seeds.data(),
                   lanes_, static_cast<int>(at % 4), codes + at / 4 * lanes_);
    }
  }
}

void ValueCoder::decode(const std::uint8_t* codes, std::int64_t position, float* value) const {
  std::vector<float> bits(static_cast<std::size_t>(2 * lanes_), 0.0F);
  for (std::int64_t axis = 0; axis < std::ssize(low_); ++axis) {
    const Place place = place_of(position, axis, lanes_);
    bits[static_cast<std::size_t>(place_of_sum(axis))] =
        static_cast<float>(codes[place.byte] >> place.bit & 1);
  }
  mean_of(bits.data(), 1.0F, value);
}

void ValueCoder::mean_of(const float* sums, float total, float* value) const {
  std::copy(axes_.mean().begin(), axes_.mean().end(), value);
  for (std::size_t a = 0; a < low_.size(); ++a) {
    const auto axis = static_cast<std::int64_t>(a);
    const float level = low_[a] + (high_[a] - low_[a]) * (sums[place_of_sum(axis)] / total);
    add_scaled(value, level, axes_.axis(axis), axes_.dim());
  }
  for (std::int64_t j = 0; j < axes_.dim(); ++j) value[j] /= axes_.scale();
}

void ValueCoder::linear(float* axes, float* base) const {
  const std::int64_t dim = axes_.dim();
  std::copy(axes_.mean().begin(), axes_.mean().end(), base);
  for (std::size_t a = 0; a < low_.size(); ++a, axes += dim) {
    const float* direction = axes_.axis(static_cast<std::int64_t>(a));
    for (std::int64_t j = 0; j < dim; ++j) {
      axes[j] = (high_[a] - low_[a]) * direction[j] / axes_.scale();
      base[j] += low_[a] * direction[j];
    }
  }
  for (std::int64_t j = 0; j < dim; ++j) base[j] /= axes_.scale();
}

}  // namespace topkv
