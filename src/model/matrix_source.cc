#include "src/model/matrix_source.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "src/core/convert.h"
#include "src/core/printable.h"
#include "src/core/quantise.h"
#include "src/core/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Inputs that share a scale in int4.
std::int64_t int4_group(const SafeTensors& tensors, const std::string& name, std::int64_t in) {
  for (const std::int64_t group : {128, 64, 32}) {
    if (in % group == 0) return group;
  }
  throw Unsupported(
      fmt::format("{}: tensor {} has {} inputs; int4 weights take a multiple of 32: load the model "
                  "with int8 weights, or as they are stored",
                  path_text(tensors.source()), name, in));
}

/// Rows of plain elements, quantised.
struct Quantise {
  Matrix plain;
  Matrix form;
  std::string what;

  void operator()(std::int64_t first, std::int64_t count, const PackedRows& to) const {
    parallel_for_alone(count, 1, [&](std::int64_t begin, std::int64_t end) {
      thread_local std::vector<float> row;
      row.resize(static_cast<std::size_t>(form.in_features));
      for (std::int64_t r = begin; r < end; ++r) {
        to_float(plain.data + (first + r) * plain.row_bytes(), plain.dtype, plain.in_features,
                 row.data());
        if (const std::int64_t at = first_not_finite(row.data(), plain.in_features); at >= 0) {
          throw FileError(fmt::format("{} has {} at [{}, {}]; expected finite weights to quantise",
                                      what, row[static_cast<std::size_t>(at)], first + r, at));
        }
        quantise_row(form, row.data(),
                     {to.codes + r * form.row_bytes(), to.scales + r * form.groups(),
                      to.offsets == nullptr ? nullptr : to.offsets + r * form.groups()});
      }
    });
  }
};

}  // namespace

MatrixSource find_matrix(const SafeTensors& tensors, const std::string& name, std::int64_t out,
                         std::int64_t in, WeightFormat format) {
  const std::array<std::int64_t, 2> shape = {out, in};
  const SafeTensors::Tensor tensor = tensors.get(name, shape);
  const Matrix plain{tensor.data, tensor.dtype, out, in};
  if (format == WeightFormat::stored) return {plain, plain.bytes(), {}};
  Matrix form{nullptr, tensor.dtype, out, in};
  if (format == WeightFormat::int8) {
    form.packing = Packing::int8;
    form.group = in;
  } else {
    form.packing = Packing::int4;
    form.group = int4_group(tensors, name, in);
    form.has_offsets = true;
  }
  return {form, plain.bytes(),
          Quantise{plain, form, fmt::format("{}: tensor {}", path_text(tensors.source()), name)}};
}

}  // namespace topkv
