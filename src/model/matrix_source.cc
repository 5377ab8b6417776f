#include "src/model/matrix_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "src/core/convert.h"
#include "src/core/printable.h"
#include "src/core/quantise.h"
#include "src/core/threads.h"
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

/// Rows of plain elements, quantised.
struct Quantise {
  Matrix plain;
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
    parallel_for_alone(count, 1, [&](std::int64_t begin, std::int64_t end) {
      thread_local std::vector<float> row;
      row.resize(static_cast<std::size_t>(form.in_features));
      for (std::int64_t r = begin; r < end; ++r) {
        to_float(plain.data + (first + r) * plain.row_bytes(), plain.dtype, plain.in_features,
                 row.data());
        check(first + r, row);
        quantise_row(form, row.data(),
                     {to.codes + r * form.row_bytes(), to.scales + r * form.groups(),
                      to.offsets == nullptr ? nullptr : to.offsets + r * form.groups()});
      }
    });
  }
};

}  // namespace

MatrixSource plain_matrix(const Matrix& plain, WeightFormat format, const std::string& what,
                          std::int64_t first_row) {
  if (format == WeightFormat::stored) return {plain, {}, {}};
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

MatrixSource find_matrix(const SafeTensors& tensors, const std::string& name, MatrixRows rows,
                         std::int64_t in, WeightFormat format) {
  const std::array<std::int64_t, 2> shape = {rows.of, in};
  const SafeTensors::Tensor tensor = tensors.get(name, shape);
  const Matrix plain{tensor.data + rows.first * in * bytes_of(tensor.dtype), tensor.dtype,
                     rows.count, in};
  return plain_matrix(plain, format,
                      fmt::format("{}: tensor {}", path_text(tensors.source()), name), rows.first);
}

}  // namespace topkv
