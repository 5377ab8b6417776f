// Attention over listed blocks of keys with the instructions of compute capability 9.0 (Hopper):
// warpgroup products (wgmma) and tensor copies (TMA).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace topkv::gpu {

struct AttentionTask;
struct ChoiceTask;

/// Attends the blocks that the choice lists for pieces [first_piece, first_piece + pieces) and that
/// meet the form of the queries that the task has. Returns false, and does nothing, if there is no
/// such kernel for the current device or head dim. Asynchronous on the stream.
bool attend_listed_on_sm90(std::int64_t head_dim, const AttentionTask& task,
                           const ChoiceTask& choice, int first_piece, unsigned pieces, int form,
                           cudaStream_t stream);

}  // namespace topkv::gpu
