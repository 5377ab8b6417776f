#include "src/model/weights/matrix_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/core/math/convert.h"
#include "src/core/math/quantise.h"
#include "src/core/text/printable.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Inputs that share a scale in int4.
std::int64_t int4_group(const std::string& what, std::int64_t in) {
  for (const std::int64_t group : {128, 64, 32}) {
    if (in % group == 0) return group;
  }
  throw Unsupported(
      fmt::format("{} has {} inputs; int4 weights take a multiple of 32: load the model with int8 "
                  "weights, or as they are stored",
                  what, in));
}

/// Rows are read this many at a time where elements of neighbouring ones lie together.
constexpr std::int64_t rows_at_once = 32;

SteppedMatrix by_rows(const Matrix& plain) {
  return {plain.data, plain.dtype, plain.out_features, plain.in_features, plain.in_features, 1};
}

/// Rows of plain elements, quantised.
struct Quantise {
  SteppedMatrix plain;
  Matrix form;
  std::string what;
  std::int64_t first_row;  // of the matrix, in the tensor

  void check(std::int64_t row, const std::vector<float>& values) const {
    const auto wrong =
        std::ranges::find_if(values, [](float x) { return !(std::abs(x) <= largest_to_quantise); });
    if (wrong == values.end()) return;
    throw FileError(
        fmt::format("{} has {} at [{}, {}]; expected finite weights of at most {:g} to "
                    "quantise: load the model with its weights as they are stored",
                    what, *wrong, first_row + row, wrong - values.begin(), largest_to_quantise));
  }

  void operator()(std::int64_t first, std::int64_t count, const PackedRows& to) const {
    const std::int64_t most = plain.input_step == 1 ? 1 : rows_at_once;
    parallel_for_alone((count + most - 1) / most, 1, [&](std::int64_t begin, std::int64_t end) {
      thread_local std::vector<std::byte> elements;
      thread_local std::vector<float> row;
      const std::int64_t row_bytes = plain.in_features * bytes_of(plain.dtype);
      elements.resize(static_cast<std::size_t>(most * row_bytes));
      row.resize(static_cast<std::size_t>(form.in_features));
      for (std::int64_t at = begin * most; at < std::min(count, end * most); at += most) {
        const std::int64_t rows = std::min(most, count - at);
        plain.read(first + at, rows, elements.data());
        for (std::int64_t r = at; r < at + rows; ++r) {
          to_float(elements.data() + (r - at) * row_bytes, plain.dtype, plain.in_features,
                   row.data());
          check(first + r, row);
          quantise_row(form, row.data(),
                       {to.codes + r * form.row_bytes(), to.scales + r * form.groups(),
                        to.offsets == nullptr ? nullptr : to.offsets + r * form.groups()});
        }
      }
    });
  }
};

MatrixSource quantised(const SteppedMatrix& plain, WeightFormat format, const std::string& what,
                       std::int64_t first_row) {
  Matrix form{nullptr, plain.dtype, plain.out_features, plain.in_features};
  if (format == WeightFormat::int8) {
    form.packing = Packing::int8;
    form.group = plain.in_features;
  } else {
    form.packing = Packing::int4;
    form.group = int4_group(what, plain.in_features);
    form.has_offsets = true;
  }
  return {form, Quantise{plain, form, what, first_row}, {}};
}

template <class Element>
void read_elements(const SteppedMatrix& from, std::int64_t first, std::int64_t count,
                   std::byte* to) {
  constexpr std::int64_t size = sizeof(Element);
  for (std::int64_t i = 0; i < from.in_features; ++i) {
    const std::byte* at = from.data + (first * from.row_step + i * from.input_step) * size;
    for (std::int64_t r = 0; r < count; ++r)
      std::memcpy(to + (r * from.in_features + i) * size, at + r * from.row_step * size, size);
  }
}

}  // namespace

MatrixSource plain_matrix(const Matrix& plain, WeightFormat format, const std::string& what,
                          std::int64_t first_row) {
  if (format == WeightFormat::stored) return {plain, {}, {}};
  return quantised(by_rows(plain), format, what, first_row);
}

void SteppedMatrix::read(std::int64_t first, std::int64_t count, std::byte* to) const {
  if (input_step == 1) {
    const std::int64_t row_bytes = in_features * bytes_of(dtype);
    for (std::int64_t r = 0; r < count; ++r) {
      std::memcpy(to + r * row_bytes, data + (first + r) * row_step * bytes_of(dtype),
                  static_cast<std::size_t>(row_bytes));
    }
  } else if (dtype == DType::f32) {
    read_elements<std::uint32_t>(*this, first, count, to);
  } else {
    read_elements<std::uint16_t>(*this, first, count, to);
  }
}

MatrixSource stepped_matrix(const SteppedMatrix& plain, WeightFormat format,
                            const std::string& what) {
  if (format != WeightFormat::stored) return quantised(plain, format, what, 0);
  const Matrix form{nullptr, plain.dtype, plain.out_features, plain.in_features};
  const auto make = [plain](std::int64_t first, std::int64_t count, const PackedRows& to) {
    const std::int64_t row_bytes = plain.in_features * bytes_of(plain.dtype);
    parallel_for_alone(
        (count + rows_at_once - 1) / rows_at_once, 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t at = begin * rows_at_once; at < std::min(count, end * rows_at_once);
               at += rows_at_once) {
            plain.read(first + at, std::min(rows_at_once, count - at), to.codes + at * row_bytes);
          }
        });
  };
  return {form, make, {}};
}

MatrixSource find_matrix(const SafeTensors& tensors, const std::string& name, MatrixRows rows,
                         std::int64_t in, WeightFormat format) {
  const std::array<std::int64_t, 2> shape = {rows.of, in};
  const SafeTensors::Tensor tensor = tensors.get(name, shape);
  const Matrix plain{tensor.data + rows.first * in * bytes_of(tensor.dtype), tensor.dtype,
                     rows.count, in};
  return plain_matrix(plain, format,
                      fmt::format("{}: tensor {}", path_text(tensors.path_of(name)), name),
                      rows.first);
}

}  // namespace topkv
