// The looks and the attention of a sparse prefill with the instructions of compute capability 9.0
// (Hopper): warpgroup products (wgmma) and tensor copies (TMA).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace topkv::gpu {

struct AttentionTask;
struct ChoiceTask;
enum class LookNumber : bool;

/// Returns whether the current device has the kernels below for a head dim.
bool runs_on_sm90(std::int64_t head_dim);

/// Looks for pieces [first_piece, first_piece + pieces), by tiles of 64 samples. Asynchronous on
/// the stream. REQUIRES: runs_on_sm90(head_dim).
void look_on_sm90(std::int64_t head_dim, const ChoiceTask& task, int first_piece, unsigned pieces,
                  LookNumber number, cudaStream_t stream);

/// Attends the blocks that the choice lists for pieces [first_piece, first_piece + pieces) and that
/// meet the form of the queries that the task has. Asynchronous on the stream. REQUIRES:
/// runs_on_sm90(head_dim).
void attend_listed_on_sm90(std::int64_t head_dim, const AttentionTask& task,
                           const ChoiceTask& choice, int first_piece, unsigned pieces, int form,
                           cudaStream_t stream);

}  // namespace topkv::gpu
