#include "index/codes/shared_error.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "index/common/scratch.h"
#include "index/common/tail_noise.h"
#include "src/core/math/dot.h"
#include "src/core/math/matrix_product.h"
#include "src/core/math/vector_math.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t most_rows = 32768;  // that C is measured over
constexpr std::int64_t pieces = 8;         // of these rows, for threads and for the two halves

/// The sum of k vᵀ - k̂ v̂ᵀ over some rows, which are not rare.
struct PieceSum {
  std::vector<float> sum;  // [dim, dim], along the axes of keys and of values
  std::int64_t rows = 0;
};

PieceSum sum_piece(const CodesIndex& index, const ValueCoder& values, const RowsView& rows,
                   PositionRange piece, std::int64_t sampled) {
  constexpr std::int64_t tile = CodeAxes::tile;
  const std::int64_t dim = rows.dim();
  const auto room = [&](std::int64_t count) {
    return std::vector<float>(static_cast<std::size_t>(count));
  };
  const CodeAxes& axes = index.coder().axes();
  const std::span<const EvenLevels> levels = index.coder().levels();
  const bool has_axes = values.bits() > 0;
  std::vector<float> keys = room(tile * dim), off = room(dim * tile), decoded = room(dim * tile);
  std::vector<float> centred = room(tile * dim), along = room(tile * dim), lost = room(tile * dim);
  PieceSum out{room(dim * dim), 0};
  for (std::int64_t first = piece.begin; first < piece.end; first += tile) {
    std::int64_t count = 0;
    for (std::int64_t i = first; i < std::min(first + tile, piece.end); ++i) {
      const std::int64_t at = CodeAxes::sampled(i, sampled, rows.count());
      if (std::ranges::binary_search(index.rare(), at)) continue;  // it is not in the tail
      float square = 0;
      axes.read(rows.keys, at, 1, keys.data() + count * dim, &square);
      values.axes().read(rows.values, at, 1, centred.data() + count * dim, &square);
      ++count;
    }
    if (count == 0) continue;
    axes.project(keys.data(), count, dim, off.data());  // [dim, tile]
    for (std::size_t axis = 0; axis < levels.size(); ++axis) {
      for (std::size_t i = axis * tile; i < axis * tile + static_cast<std::size_t>(count); ++i) {
        decoded[i] = levels[axis].of(levels[axis].code_of(off[i]));
        off[i] -= decoded[i];
      }
    }
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
    // k v - k̂ v̂ = (k - k̂) v + k̂ (v - v̂), where k̂ is 0 along an axis without bits
    matrix_product(Transposed::no, dim, dim, count, off.data(), tile, value.data(), dim, 1.0F,
                   out.sum.data(), dim);
    if (!levels.empty())
      matrix_product(Transposed::no, std::ssize(levels), dim, count, decoded.data(), tile,
                     lost.data(), dim, 1.0F, out.sum.data(), dim);
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
  std::vector<float> symmetric(first.size());
  std::vector<float> to_axes(first.size());  // column i: axis i of the keys
  for (std::int64_t i = 0; i < dim; ++i) {
    const float* axis = index.coder().axes().axis(i);
    for (std::int64_t j = 0; j < dim; ++j) {
      symmetric[static_cast<std::size_t>(i * dim + j)] =
          product[static_cast<std::size_t>(i * dim + j)] / 2 +
          product[static_cast<std::size_t>(j * dim + i)] / 2;
      to_axes[static_cast<std::size_t>(j * dim + i)] = axis[j];
    }
  }
  // Queries are not along the axes of the keys.
  matrix_product(Transposed::no, dim, dim, dim, to_axes.data(), dim, symmetric.data(), dim, 0.0F,
                 product.data(), dim);
  matrix_product(Transposed::yes, dim, dim, dim, product.data(), dim, to_axes.data(), dim, 0.0F,
                 symmetric.data(), dim);
  if (std::ranges::all_of(symmetric, [](float x) { return std::isfinite(x); }))
    form_ = std::move(symmetric);
}

void SharedError::squared(const float* queries, double unit, std::span<float> squares) const {
  if (!known()) {
    std::ranges::fill(squares, 0.0F);
    return;
  }
  const auto dim = static_cast<std::int64_t>(std::sqrt(static_cast<double>(form_.size())) + 0.5);
  const Scratch<std::vector<float>> products;
  products->resize(squares.size() * static_cast<std::size_t>(dim));
  const KeyView form{reinterpret_cast<const std::byte*>(form_.data()), DType::f32, dim, dim,
                     dim * 4};
  dot_block(queries, std::ssize(squares), form, products->data(), dim);
  const float* query = queries;
  const float* product = products->data();
  for (float& square : squares) {
    double sum = 0;
    for (std::int64_t j = 0; j < dim; ++j) sum += static_cast<double>(query[j]) * product[j];
    square = shared_square(sum * unit * unit);
    query += dim;
    product += dim;
  }
}

void SharedError::fields(std::int64_t dim, Archive& archive) {
  if (archive.reading() ? !archive.has_more() : !known()) return;
  archive.array(form_);
  archive.check(std::ssize(form_) == dim * dim, "its shared error has another dimension");
}

}  // namespace topkv
