// Attention of queries over rows in device memory: the one kernel that windows and tiles go through
// (flash attention with tensor cores; Dao 2023, algorithm 1).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

namespace topkv::gpu {

/// Keys and values of each KV head: [kv_heads] blocks of [slots, head_dim] bf16, 16-byte aligned.
/// Row i of `count` has position first + i. It lies in slot i or, from row number `split` on, in
/// slot i - split of the blocks behind: a window's rows that are the context's and then a
/// session's own, or those of a ring that has come to its end.
struct DeviceRows {
  const __nv_bfloat16* keys = nullptr;
  const __nv_bfloat16* values = nullptr;
  std::int64_t head_stride = 0;  ///< elements from one KV head's keys (values) to the next
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t split = std::numeric_limits<std::int64_t>::max();
  const __nv_bfloat16* keys_behind = nullptr;
  const __nv_bfloat16* values_behind = nullptr;
  std::int64_t stride_behind = 0;  ///< as head_stride
};

struct AttentionQueries {
  const __nv_bfloat16* data = nullptr;  ///< [tokens, q_heads, head_dim], contiguous
  std::int64_t tokens = 0;
  std::int64_t q_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  ///< 64, 80, 96, 128 or 256
  std::int64_t first = 0;     ///< position of the first token
  float scale = 0;            ///< on q·k
  float softcap = 0;          ///< AttentionShape::softcap
};

/// Which rows a token at position p attends: x <= p when causal, and, when window > 0, x < sinks or
/// x > p - window.
struct DeviceVisibility {
  bool causal = false;
  std::int64_t window = 0;
  std::int64_t sinks = 0;
};

/// A partial in device memory: out [tokens, q_heads, head_dim] and lse [tokens, q_heads] (natural
/// log), float32.
struct DevicePartial {
  float* out = nullptr;
  float* lse = nullptr;
};

enum class Into : bool { overwrite, merge };

/// True for the head dims that attend() is built for.
bool attention_supports(std::int64_t head_dim);

/// The partial of the queries over the rows that they may see; merged into what `partial` holds, or
/// written over it. A query that sees nothing gives the empty partial (0, -inf).
/// Asynchronous, on stream. Throws Unsupported for another head dim, InvalidArgument unless
/// scale > 0, softcap >= 0, split >= 0 and all counts are at most 2^30, Error when the launch
/// fails.
void attend(const AttentionQueries& queries, const DeviceRows& rows,
            const DeviceVisibility& visible, const DevicePartial& partial, Into into,
            cudaStream_t stream);

}  // namespace topkv::gpu
