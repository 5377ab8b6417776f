// Rows that a question's heads chose, in pieces next to each other, and partials of pieces
// (SqueezedAttention). All on the device, asynchronous, on the stream.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "bench/kernels/squeezed_attention.h"
#include "gpu/attention/attention.h"
#include "gpu/attention/cudnn_attention.h"

namespace topkv::gpu {

/// Pieces are numbered head step by head step. Slot i of `slots` has piece `begin` + i.
struct SqueezedPieces {
  int rows = 0;  ///< of a piece
  int slots = 0;
  int begin = 0;
  int* first = nullptr;              ///< [head_steps + 1]: of a head step's pieces
  __nv_bfloat16* keys = nullptr;     ///< [slots, rows, head_dim]
  __nv_bfloat16* values = nullptr;   ///< likewise
  __nv_bfloat16* queries = nullptr;  ///< [slots, tokens, group, head_dim]
  int* tokens_of = nullptr;          ///< [slots]: 0 where there is no piece
  int* rows_of = nullptr;            ///< likewise
  CudnnPartial partial;              ///< out as queries; lse: [slots, group, tokens]
};

/// Writes `first`.
void number_pieces(const int* counts, std::int64_t head_steps, const SqueezedPieces& pieces,
                   cudaStream_t stream);

/// Writes keys and values, zeros behind them up to a multiple of 256, queries and both lengths.
void pack_pieces(const SqueezedQueries& queries, const DeviceRows& rows,
                 const ChosenEntries& chosen, const SqueezedPieces& pieces, cudaStream_t stream);

/// Merges pieces' partials into those of their heads. Overwrite: in the place of what is there, the
/// empty partial of heads that have none.
void merge_pieces(const SqueezedQueries& queries, const SqueezedPieces& pieces,
                  const DevicePartial& partial, Into into, cudaStream_t stream);

}  // namespace topkv::gpu
