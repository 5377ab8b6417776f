#include "index/codes/code_axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "index/codes/code_loops.h"
#include "index/codes/principal_axes.h"
#include "index/common/in_place_keys.h"
#include "src/core/math/matrix_product.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t sample_size = 65536;  // vectors that means and covariances are taken of
constexpr std::int64_t piece_size = 65536;   // that a thread adds up at a time

/// Up to `most` vectors spread evenly over all, as float32.
std::vector<float> sample_of(const KeyView& vectors, std::int64_t most) {
  const std::int64_t count = std::min(vectors.count, most);
  std::vector<float> sample(static_cast<std::size_t>(count * vectors.dim));
  for (std::int64_t i = 0; i < count; ++i) {
    widen_key(vectors, CodeAxes::sampled(i, count, vectors.count), sample.data() + i * vectors.dim);
  }
  return sample;
}

}  // namespace

void CodeAxes::check(std::string_view spec, std::int64_t dim) {
  if (dim <= most_dims) return;
  throw InvalidArgument(fmt::format(
      "index {}: keys have {} elements; principal axes take up to {}: use another index", spec, dim,
      most_dims));
}

std::int64_t CodeAxes::sampled(std::int64_t i, std::int64_t count, std::int64_t all) {
  // Not every n-th: text that repeats may have the same period.
  const std::int64_t begin = i * all / count;
  const std::int64_t room = (i + 1) * all / count - begin;
  const auto hash = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15U >> 33;
  return begin + static_cast<std::int64_t>(hash) % room;
}

CodeAxes::CodeAxes(const KeyView& vectors, std::vector<float>& sample) : dim_(vectors.dim) {
  sample = sample_of(vectors, sample_size);
  const auto count = static_cast<std::int64_t>(sample.size()) / dim_;
  float largest = 0;
  for (const float x : sample) largest = std::max(largest, std::abs(x));
  if (largest > 0) scale_ = std::ldexp(1.0F, std::clamp(-std::ilogb(largest), -120, 120));
  std::vector<double> sums(static_cast<std::size_t>(dim_), 0.0);
  for (std::int64_t i = 0; i < count; ++i) {
    const float* vector = sample.data() + i * dim_;
    for (std::int64_t j = 0; j < dim_; ++j) sums[static_cast<std::size_t>(j)] += vector[j];
  }
  const double per_vector = scale_ / static_cast<double>(count);
  for (const double sum : sums) mean_.push_back(static_cast<float>(sum * per_vector));
  for (std::int64_t i = 0; i < count; ++i) {
    float* vector = sample.data() + i * dim_;
    for (std::int64_t j = 0; j < dim_; ++j) {
      vector[j] = vector[j] * scale_ - mean_[static_cast<std::size_t>(j)];
    }
  }
  find_axes(sample);
}

CodeAxes CodeAxes::mean_of(const KeyView& vectors) {
  const std::int64_t dim = vectors.dim;
  const std::int64_t pieces = (vectors.count + piece_size - 1) / piece_size;
  std::vector<double> sums(static_cast<std::size_t>(pieces * dim));
  std::vector<double> squares(static_cast<std::size_t>(pieces));
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> vector(static_cast<std::size_t>(dim));
    for (std::int64_t piece = begin; piece < end; ++piece) {
      double* sum = sums.data() + piece * dim;
      const std::int64_t last = std::min(vectors.count, (piece + 1) * piece_size);
      for (std::int64_t i = piece * piece_size; i < last; ++i) {
        widen_key(vectors, i, vector.data());
        for (std::int64_t j = 0; j < dim; ++j) {
          const double x = vector[static_cast<std::size_t>(j)];
          sum[j] += x;
          squares[static_cast<std::size_t>(piece)] += x * x;
        }
      }
    }
  });
  CodeAxes axes;
  axes.dim_ = dim;
  double of_mean = 0;  // its square
  for (std::int64_t j = 0; j < dim; ++j) {
    double sum = 0;
    for (std::int64_t i = 0; i < pieces; ++i) sum += sums[static_cast<std::size_t>(i * dim + j)];
    const double mean = sum / static_cast<double>(vectors.count);
    axes.mean_.push_back(static_cast<float>(mean));
    of_mean += mean * mean;
  }
  const double all = std::accumulate(squares.begin(), squares.end(), 0.0);
  axes.variances_ = {std::max(0.0, all / static_cast<double>(vectors.count) - of_mean)};
  return axes;
}

void CodeAxes::find_axes(const std::vector<float>& sample) {
  const auto count = static_cast<std::int64_t>(sample.size()) / dim_;
  // A little longer than a tile, so that columns do not fall on the same lines of the cache.
  constexpr std::int64_t stride = tile + 16;
  std::vector<float> transposed(static_cast<std::size_t>(dim_ * stride));
  std::vector<float> covariance(static_cast<std::size_t>(dim_ * dim_), 0.0F);
  for (std::int64_t first = 0; first < count; first += tile) {
    const std::int64_t rows = std::min(tile, count - first);
    const float* vectors = sample.data() + first * dim_;
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < dim_; ++j) {
        transposed[static_cast<std::size_t>(j * stride + i)] = vectors[i * dim_ + j];
      }
    }
    matrix_product(Transposed::no, dim_, dim_, rows, transposed.data(), stride, vectors, dim_, 1.0F,
                   covariance.data(), dim_);
  }
  std::vector<double> wide(covariance.begin(), covariance.end());
  for (double& x : wide) x /= static_cast<double>(count);
  variances_ = principal_axes(dim_, wide);
  axes_.assign(wide.begin(), wide.end());
}

void CodeAxes::read(const KeyView& vectors, std::int64_t first, std::int64_t count, float* out,
                    float* squares) const {
  if (centre(vectors, first, count, scale_, mean_.data(), out, squares)) return;
  for (std::int64_t i = 0; i < count; ++i) widen_key(vectors, first + i, out);  // says which
}

void CodeAxes::project(const float* centred, std::int64_t count, std::int64_t axes,
                       float* out) const {
  if (axes == 0) return;
  matrix_product(Transposed::yes, axes, count, dim_, axes_.data(), dim_, centred, dim_, 0.0F, out,
                 tile);
}

void CodeAxes::project_each(const float* centred, std::int64_t count, std::int64_t axes, float* out,
                            std::int64_t stride) const {
  if (axes == 0) return;
  matrix_product(Transposed::yes, count, axes, dim_, centred, dim_, axes_.data(), dim_, 0.0F, out,
                 stride);
}

std::vector<std::vector<float>> CodeAxes::spread(const std::vector<float>& centred,
                                                 std::int64_t axes, std::int64_t most) const {
  const auto all = static_cast<std::int64_t>(centred.size()) / dim_;
  const std::int64_t count = std::min(all, most);
  std::vector<std::vector<float>> values(static_cast<std::size_t>(axes));
  std::vector<float> projected(static_cast<std::size_t>(std::max<std::int64_t>(axes, 1) * tile));
  std::vector<float> some(static_cast<std::size_t>(tile * dim_));
  for (std::int64_t first = 0; first < count; first += tile) {
    const std::int64_t rows = std::min(tile, count - first);
    for (std::int64_t i = 0; i < rows; ++i) {
      std::copy_n(centred.data() + sampled(first + i, count, all) * dim_, dim_,
                  some.data() + i * dim_);
    }
    project(some.data(), rows, axes, projected.data());
    for (std::size_t axis = 0; axis < values.size(); ++axis) {
      const float* from = projected.data() + axis * tile;
      values[axis].insert(values[axis].end(), from, from + rows);
    }
  }
  // Not by VQSort: Highway 1.0.3's can read and write outside of the array.
  for (std::vector<float>& along : values) std::ranges::sort(along);
  return values;
}

std::int64_t CodeAxes::memory() const {
  const std::size_t floats = mean_.capacity() + axes_.capacity() + 2 * variances_.capacity();
  return static_cast<std::int64_t>(floats * sizeof(float));
}

void CodeAxes::fields(std::int64_t dim, bool axes, Archive& archive) {
  archive.value(dim_);
  archive.value(scale_);
  archive.array(mean_);
  archive.array(axes_);
  archive.array(variances_);
  if (!archive.reading()) return;
  archive.check(dim_ == dim && std::ssize(mean_) == dim, "its vectors have another dimension");
  archive.check(
      std::ssize(axes_) == (axes ? dim * dim : 0) && std::ssize(variances_) == (axes ? dim : 1),
      "it has not one axis for each dimension");
  archive.check(scale_ > 0, "a scale is not above 0");
}

}  // namespace topkv
