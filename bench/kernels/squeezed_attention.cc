#include "bench/kernels/squeezed_attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/kernels/squeezed_checks.h"
#include "bench/kernels/squeezed_rows.h"
#include "src/device/pieces.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

const char* const what = "attention of a question";

std::int64_t pieces_of(std::int64_t rows, std::int64_t piece_rows) {
  return (rows + piece_rows - 1) / piece_rows;
}

}  // namespace

SqueezedAttention::SqueezedAttention(CudnnAttention& cudnn, const Shape& shape)
    : cudnn_(cudnn), shape_(shape) {
  check_squeezed(what, shape.tokens, shape.head_steps, shape.group, shape.head_dim, shape.scale);
  if (shape.piece_rows < 256 || shape.piece_rows % 256 != 0 || shape.pieces < 1 ||
      shape.pieces > 65535 || shape.rows < 0 || shape.rows > (std::int64_t{1} << 30)) {
    throw InvalidArgument(fmt::format(
        "CUDA {}: {} pieces of {} rows at a time, of {} rows; expected 1 to 65535 of a multiple of "
        "256 rows, and at most 2^30 rows",
        what, shape.pieces, shape.piece_rows, shape.rows));
  }
  shape_.pieces = std::clamp<std::int64_t>(
      shape.head_steps * pieces_of(shape.rows, shape.piece_rows), 1, shape.pieces);
  plan_ = {.head_dim = shape.head_dim,
           .q_heads = shape.group,
           .kv_heads = 1,
           .tokens = shape.tokens,
           .rows = shape.piece_rows,
           .head_stride = shape.piece_rows * shape.head_dim,
           .scale = shape.scale,
           .entries = shape_.pieces,
           .padded = true};
  const std::int64_t workspace = cudnn_.workspace_bytes(plan_);
  const std::int64_t bf16 = sizeof(__nv_bfloat16);
  const std::int64_t rows = shape_.pieces * shape.piece_rows * shape.head_dim;
  const std::int64_t heads = shape_.pieces * shape.tokens * shape.group;
  Pieces pieces;
  layout_.keys = pieces.place(rows * bf16);
  layout_.values = pieces.place(rows * bf16);
  layout_.queries = pieces.place(heads * shape.head_dim * bf16);
  layout_.out = pieces.place(heads * shape.head_dim * bf16);
  layout_.lse = pieces.place(heads * std::int64_t{sizeof(float)});
  layout_.tokens_of = pieces.place(shape_.pieces * std::int64_t{sizeof(int)});
  layout_.rows_of = pieces.place(shape_.pieces * std::int64_t{sizeof(int)});
  layout_.first = pieces.place((shape.head_steps + 1) * std::int64_t{sizeof(int)});
  layout_.workspace = pieces.place(workspace);
  layout_.total = pieces.used();
}

void SqueezedAttention::attend(const SqueezedQueries& queries, const DeviceRows& rows,
                               const ChosenEntries& chosen, const PartialView& partial, Into into,
                               std::byte* workspace, cudaStream_t stream) {
  if (queries.tokens != shape_.tokens || queries.head_steps != shape_.head_steps ||
      queries.group != shape_.group || queries.head_dim != shape_.head_dim ||
      queries.scale != shape_.scale || rows.count > shape_.rows || rows.split < rows.count ||
      rows.first != 0) {
    throw InvalidArgument(fmt::format(
        "CUDA {}: {} tokens of {} x {} heads of {} over {} rows, expected {} of {} x {} heads of "
        "{} over at most {}, of the same scale, rows from 0 on in one place",
        what, queries.tokens, queries.head_steps, queries.group, queries.head_dim, rows.count,
        shape_.tokens, shape_.head_steps, shape_.group, shape_.head_dim, shape_.rows));
  }
  if (shape_.head_steps == 0) return;
  const auto at = [&](std::int64_t offset) { return workspace + offset; };
  const auto bf16 = [&](std::int64_t offset) {
    return reinterpret_cast<__nv_bfloat16*>(at(offset));
  };
  const auto ints = [&](std::int64_t offset) { return reinterpret_cast<int*>(at(offset)); };
  SqueezedPieces pieces{.rows = static_cast<int>(shape_.piece_rows),
                        .slots = static_cast<int>(shape_.pieces),
                        .begin = 0,
                        .first = ints(layout_.first),
                        .keys = bf16(layout_.keys),
                        .values = bf16(layout_.values),
                        .queries = bf16(layout_.queries),
                        .tokens_of = ints(layout_.tokens_of),
                        .rows_of = ints(layout_.rows_of),
                        .partial = {bf16(layout_.out), reinterpret_cast<float*>(at(layout_.lse))}};
  number_pieces(chosen.counts, queries.head_steps, pieces, stream);
  // How many there are is known on the device alone; where there are fewer, the last rounds find
  // nothing.
  const std::int64_t most = queries.head_steps * pieces_of(rows.count, shape_.piece_rows);
  for (std::int64_t begin = 0; begin == 0 || begin < most; begin += shape_.pieces) {
    pieces.begin = static_cast<int>(begin);
    pack_pieces(queries, rows, chosen, pieces, stream);
    cudnn_.attend(plan_, pieces.queries, pieces.keys, pieces.values, pieces.partial,
                  at(layout_.workspace), stream, {pieces.tokens_of, pieces.rows_of});
    merge_pieces(queries, pieces, partial, begin == 0 ? into : Into::merge, stream);
  }
}

}  // namespace topkv::gpu
