// A weight matrix as a checkpoint gives it: in the mapped file as it is, or made from what is
// there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/core/math/matrix.h"
#include "src/model/weights/safetensors.h"
#include "topkv/model.h"

namespace topkv {

struct MatrixSource {
  /// What the matrix is. data: where it lies in the mapped file; null for one that make makes.
  Matrix form;
  /// Makes rows [first, first + count), on all threads: of a packed matrix, or (to.codes, in the
  /// form's dtype) of a plain one that does not lie in the file row by row. Throws FileError naming
  /// the tensor.
  std::function<void(std::int64_t first, std::int64_t count, const PackedRows& to)> make;
  /// Of the inputs, when the form has one; else empty.
  std::vector<std::int32_t> order = {};
};

/// Which rows of a tensor are a matrix: several matrices may lie in one behind each other.
struct MatrixRows {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t of = 0;  ///< rows of the tensor
};

/// A matrix of plain elements in the form that is asked for. what: "file: tensor name", and where
/// its first row is in that, for messages. Throws Unsupported for one that the format cannot hold.
MatrixSource plain_matrix(const Matrix& plain, WeightFormat format, const std::string& what,
                          std::int64_t first_row);

/// Plain elements that lie in any regular order: row r, input i at data + (r * row_step + i *
/// input_step) * bytes_of(dtype).
struct SteppedMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::bf16;
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  std::int64_t row_step = 0;
  std::int64_t input_step = 1;

  /// Rows [first, first + count), one behind the other, in the same dtype.
  void read(std::int64_t first, std::int64_t count, std::byte* to) const;
};

/// Likewise of such elements.
MatrixSource stepped_matrix(const SteppedMatrix& plain, WeightFormat format,
                            const std::string& what);

/// The matrix of these rows of the tensor of this name in the file, [rows.count, in], in the form
/// that is asked for. The tensors outlive it. Throws FileError for one that is missing or of
/// another shape, Unsupported for one that this format cannot hold; reads only headers.
MatrixSource find_matrix(const SafeTensors& tensors, const std::string& name, MatrixRows rows,
                         std::int64_t in, WeightFormat format);

}  // namespace topkv
