#include "index/codes/shared_error.h"

#include <algorithm>
#include <cmath>

#include "index/common/in_place_keys.h"
#include "index/common/scratch.h"
#include "src/core/math/matrix_product.h"
#include "src/core/math/vector_math.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t most_rows = 32768;  // that C is measured over
constexpr std::int64_t pieces = 8;         // of these rows, for threads and for the two halves
constexpr float largest_square = 1e30F;    // sums of it, times shares, stay finite

/// The sum of r vᵀ over rows, where rows are transposed: r [dim, stride], v [count, dim].
struct PieceSum {
  std::vector<float> sum;  // [dim, dim]
  std::int64_t rows = 0;
};

PieceSum sum_piece(const CodesIndex& index, const ValueCoder& values, const RowsView& rows,
                   PositionRange piece, std::int64_t sampled) {
  constexpr std::int64_t tile = CodeAxes::tile;
  // A little longer than a tile, so that columns do not fall on the same lines of the cache.
  constexpr std::int64_t stride = tile + 16;
  const std::int64_t dim = rows.dim();
  const auto room = [&](std::int64_t count) {
    return std::vector<float>(static_cast<std::size_t>(count));
  };
  const CodeAxes& axes = index.coder().axes();
  const bool has_axes = values.bits() > 0;
  std::vector<float> key = room(dim), decoded = room(dim);
  std::vector<float> off = room(dim * stride), near = room(dim * stride);  // of keys, transposed
  std::vector<float> centred = room(tile * dim), along = room(tile * dim), lost = room(tile * dim);
  PieceSum out{room(dim * dim), 0};
  for (std::int64_t first = piece.begin; first < piece.end; first += tile) {
    std::int64_t count = 0;
    for (std::int64_t i = first; i < std::min(first + tile, piece.end); ++i) {
      const std::int64_t at = CodeAxes::sampled(i, sampled, rows.count());
      if (std::ranges::binary_search(index.rare(), at)) continue;  // it is not in the tail
      widen_key(rows.keys, at, key.data());
      index.coder().decode(index.codes(), at, decoded.data());
      for (std::int64_t j = 0; j < dim; ++j) {
        const auto d = static_cast<std::size_t>(j);
        const auto place = static_cast<std::size_t>(j * stride + count);
        off[place] = (key[d] - decoded[d]) * axes.scale();
        near[place] = decoded[d] * axes.scale() - axes.mean()[d];
      }
      float square = 0;
      values.axes().read(rows.values, at, 1, centred.data() + count * dim, &square);
      ++count;
    }
    if (count == 0) continue;
    // Lengths are the same in the axes of the values.
    if (has_axes) values.axes().project_each(centred.data(), count, dim, along.data(), dim);
    const std::vector<float>& value = has_axes ? along : centred;
    std::copy_n(value.begin(), count * dim, lost.begin());
    for (std::int64_t i = 0; i < count; ++i) {
      // A code is right on average between its levels.
      for (std::int64_t a = 0; a < values.bits(); ++a) {
        const auto axis = static_cast<std::size_t>(a);
        float& x = lost[static_cast<std::size_t>(i * dim + a)];
        x -= std::clamp(x, values.low()[axis], values.high()[axis]);
      }
    }
    // k v - k̂ v̂ = (k - k̂) v + k̂ (v - v̂)
    matrix_product(Transposed::no, dim, dim, count, off.data(), stride, value.data(), dim, 1.0F,
                   out.sum.data(), dim);
    matrix_product(Transposed::no, dim, dim, count, near.data(), stride, lost.data(), dim, 1.0F,
                   out.sum.data(), dim);
    out.rows += count;
  }
  return out;
}

}  // namespace

SharedError::SharedError(const CodesIndex& index, const ValueCoder& values, const RowsView& rows,
                         const std::function<void()>& check_stop) {
  const std::int64_t dim = rows.dim();
  const std::int64_t sampled = std::min(rows.count(), most_rows);
  static_assert(least_rows >= pieces);
  if (sampled < least_rows) return;
  std::vector<PieceSum> sums(pieces);
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      check_stop();
      sums[static_cast<std::size_t>(p)] = sum_piece(
          index, values, rows, {p * sampled / pieces, (p + 1) * sampled / pieces}, sampled);
    }
  });
  // C is measured over two halves of the sample. The square of one C would have the noise of the
  // sample in it, which is as large as the form over some thousand rows. Of the product of two Cs
  // it is not a part: their noise is independent.
  const auto half = [&](std::int64_t of) {
    std::vector<float> mean(static_cast<std::size_t>(dim * dim), 0.0F);
    std::int64_t count = 0;
    for (std::int64_t p = of; p < pieces; p += 2) {
      const PieceSum& piece = sums[static_cast<std::size_t>(p)];
      add_to(mean.data(), piece.sum.data(), std::ssize(mean));
      count += piece.rows;
    }
    for (float& x : mean) x /= static_cast<float>(std::max<std::int64_t>(count, 1));
    return mean;
  };
  const std::vector<float> first = half(0);
  const std::vector<float> second = half(1);
  std::vector<float> product(first.size());
  matrix_product(Transposed::yes, dim, dim, dim, first.data(), dim, second.data(), dim, 0.0F,
                 product.data(), dim);
  if (!std::ranges::all_of(product, [](float x) { return std::isfinite(x); })) return;
  form_.resize(product.size());
  for (std::int64_t i = 0; i < dim; ++i) {
    for (std::int64_t j = 0; j < dim; ++j) {
      form_[static_cast<std::size_t>(i * dim + j)] =
          product[static_cast<std::size_t>(i * dim + j)] / 2 +
          product[static_cast<std::size_t>(j * dim + i)] / 2;
    }
  }
}

float SharedError::squared(const float* query, double unit) const {
  if (!known()) return 0;
  const auto dim = static_cast<std::int64_t>(std::sqrt(static_cast<double>(form_.size())) + 0.5);
  const Scratch<std::vector<float>> product;
  product->resize(static_cast<std::size_t>(dim));
  const KeyView form{reinterpret_cast<const std::byte*>(form_.data()), DType::f32, dim, dim,
                     dim * 4};
  dot_block(query, 1, form, product->data(), dim);
  double sum = 0;
  for (std::int64_t j = 0; j < dim; ++j) {
    const auto at = static_cast<std::size_t>(j);
    sum += static_cast<double>(query[at]) * (*product)[at];
  }
  const double square = unit * unit * sum;
  if (square <= 0) return 0;                                                     // of noise alone
  return square < largest_square ? static_cast<float>(square) : largest_square;  // NaN, too
}

void SharedError::fields(std::int64_t dim, Archive& archive) {
  if (archive.reading() ? !archive.has_more() : !known()) return;
  archive.array(form_);
  archive.check(std::ssize(form_) == dim * dim, "its shared error has another dimension");
}

}  // namespace topkv
