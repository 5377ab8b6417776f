// Attention of queries over rows in device memory. One kernel serves windows and tiles (flash
// attention with tensor cores; Dao 2023, algorithm 1).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

#include "src/attention/query_view.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv::gpu {

/// A view of keys and values of each KV head: [kv_heads] blocks of [slots, head_dim] bf16, 16-byte
/// aligned. Row i of `count` has position first + i, and lies in slot i. Rows from number `split`
/// on lie in the blocks keys_behind and values_behind instead, in slots from 0 on. These blocks
/// hold a session's own rows behind the context's rows, or the begin of a ring.
struct DeviceRows {
  const __nv_bfloat16* keys = nullptr;
  const __nv_bfloat16* values = nullptr;
  std::int64_t head_stride = 0;  ///< elements from the keys or values of a KV head to the next
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t split = std::numeric_limits<std::int64_t>::max();
  const __nv_bfloat16* keys_behind = nullptr;
  const __nv_bfloat16* values_behind = nullptr;
  std::int64_t stride_behind = 0;  ///< the head stride of keys_behind and values_behind
};

/// The rows that a token at position p attends. With `causal`: x <= p. With window > 0 also: x <
/// sinks or x > p - window.
struct DeviceVisibility {
  bool causal = false;
  std::int64_t window = 0;
  std::int64_t sinks = 0;
};

/// Whether a result overwrites a partial or is merged into it.
enum class Into : bool { overwrite, merge };

/// The heads of one layer, and the scores that they make.
struct LayerHeads {
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  float scale = 0.0F;    ///< the factor on q·k, above 0
  float softcap = 0.0F;  ///< as AttentionShape::softcap
  bool keys_are_values = false;

  /// Returns the vectors of a row: K and V, or K alone.
  std::int64_t vectors() const { return keys_are_values ? 1 : 2; }
  /// Returns the elements of the rows of `rows` tokens: [kv_heads, vectors, rows, head_dim].
  std::int64_t elements(std::int64_t rows) const { return kv_heads * vectors() * rows * head_dim; }
};

/// Returns the heads of a layer.
LayerHeads heads_of(const AttentionShape& shape, std::int64_t layer);

/// Whether attend() has a kernel for this head dim.
bool attention_supports(std::int64_t head_dim, bool keys_are_values);

/// Throws Unsupported for attention of a shape that has no kernels.
void check_supported(const AttentionShape& shape);

/// Computes the partial of the queries over the rows that they see. It overwrites `partial`, of
/// [tokens, q_heads] heads in device memory, or is merged into it. A query that sees no row gives
/// the empty partial (0, -inf). If keys are values, the values of `rows` are not read. Asynchronous
/// on the stream. Throws Unsupported for a head dim without a kernel. Throws InvalidArgument unless
/// scale > 0, softcap >= 0, split >= 0, all counts are at most 2^30, and queries have the heads'
/// head dim. Throws Error when the launch fails.
void attend(const LayerHeads& heads, const QueryView<__nv_bfloat16>& queries,
            const DeviceRows& rows, const DeviceVisibility& visible, const PartialView& partial,
            Into into, cudaStream_t stream);

}  // namespace topkv::gpu
