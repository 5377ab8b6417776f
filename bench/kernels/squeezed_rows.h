// The rows that the heads of a question chose, copied in pieces, and the partials of the pieces
// (SqueezedAttention). Pointers are to device memory. All functions are asynchronous on the stream.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "bench/kernels/squeezed_attention.h"
#include "gpu/attention/attention.h"
#include "gpu/attention/cudnn_attention.h"

namespace topkv::gpu {

/// A view of pieces. They are numbered head step by head step. Slot i of `slots` holds piece
/// `begin` + i.
struct SqueezedPieces {
  int rows = 0;  ///< rows of a piece
  int slots = 0;
  int begin = 0;
  int* first = nullptr;              ///< [head_steps + 1]: the first piece of each head step
  __nv_bfloat16* keys = nullptr;     ///< [slots, rows, head_dim]
  __nv_bfloat16* values = nullptr;   ///< [slots, rows, head_dim]
  __nv_bfloat16* queries = nullptr;  ///< [slots, tokens, group, head_dim]
  int* tokens_of = nullptr;          ///< [slots]: 0 in a slot without a piece
  int* rows_of = nullptr;            ///< [slots]: 0 in a slot without a piece
  CudnnPartial partial;              ///< out: as queries; lse: [slots, group, tokens]
};

/// Writes pieces.first.
void number_pieces(const int* counts, std::int64_t head_steps, const SqueezedPieces& pieces,
                   cudaStream_t stream);

/// Copies keys, values and queries to the pieces, pads the rows with zeros to a multiple of 256,
/// and writes the lengths.
void pack_pieces(const SqueezedQueries& queries, const DeviceRows& rows,
                 const ChosenEntries& chosen, const SqueezedPieces& pieces, cudaStream_t stream);

/// Merges the partials of the pieces into the partials of their heads. With Into::overwrite, the
/// old partials do not count; a head without pieces gets the empty partial.
void merge_pieces(const SqueezedQueries& queries, const SqueezedPieces& pieces,
                  const PartialView& partial, Into into, cudaStream_t stream);

}  // namespace topkv::gpu
