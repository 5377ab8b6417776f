#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "gpu/attention/attention.h"
#include "gpu/attention/attention_kernel.cuh"
#include "gpu/attention/attention_parts.cuh"
#include "gpu/runtime/handles.h"
#include "gpu/runtime/kernel_architecture.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr float log2_e = 1.44269504F;
constexpr std::int64_t max_rows = std::int64_t{1} << 30;  // positions are 32-bit in the kernel
constexpr unsigned max_cluster_blocks = 8;                // that every device with clusters grants
constexpr unsigned large_cluster_blocks = 16;             // that some grant if they are asked

/// Merges the partials of the block's warps, then those of the cluster's blocks, and writes the
/// result. A row is merged by one warp of one block.
template <class T>
__device__ __forceinline__ void merge_and_store(const AttentionTask& task, const RowTile& rows,
                                                const Running<T>& running, float* partials,
                                                int rank, int ranks) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  __syncthreads();  // all are done with Q, K and V
  write_partial<T>(running, partials + WarpPlace<T>().part * T::partial_floats);
  __syncthreads();

  // A lane writes only what it alone has read.
  float* block_partial = partials;
  for (int row = warp; row < T::tile_rows; row += T::warps) {
    const auto of_warp = [&](int i) { return partials + i * T::partial_floats; };
    const RowMerge<T, decltype(of_warp)> merged(of_warp, T::key_warps, row, task.scale_log2);
    for (int begin = 0; begin < T::head_dim; begin += 128) {
      const int column = begin + lane * 4;
      const float4 sums = merged.sums(column);
      if (column < T::head_dim)
        *reinterpret_cast<float4*>(block_partial + row * T::sum_stride + column) = sums;
    }
    if (lane == 0) {
      float* max = block_partial + T::tile_rows * T::sum_stride;
      max[row] = merged.max;
      max[T::tile_rows + row] = merged.weight;
    }
  }

#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  const auto sync = [&] { cluster.sync(); };
  const auto of_rank = [&](int i) {
    return cluster.map_shared_rank(block_partial, static_cast<unsigned>(i));
  };
#else
  const auto sync = [] { __syncthreads(); };
  const auto of_rank = [&](int) { return block_partial; };
#endif
  sync();
  for (int row = rank * T::warps + warp; row < rows.rows; row += ranks * T::warps) {
    const RowMerge<T, decltype(of_rank)> merged(of_rank, ranks, row, task.scale_log2);
    const std::int64_t head = rows.head_index(row, task);
    const float lse = row_lse(task, merged.max, merged.weight);
    const float inverse = merged.weight > 0.0F ? 1.0F / merged.weight : 0.0F;
    const Weights weights = merge_weights(task.merge ? task.lse[head] : -INFINITY, lse);
    __syncwarp();  // all lanes have read the old lse before one writes the new
    for (int begin = 0; begin < T::head_dim; begin += 128) {
      const int column = begin + lane * 4;
      const float4 sums = merged.sums(column);
      if (column >= T::head_dim) continue;
      const std::int64_t at = head * T::head_dim + column;
      store_pair(task, at, sums.x * inverse, sums.y * inverse, weights);
      store_pair(task, at + 2, sums.z * inverse, sums.w * inverse, weights);
    }
    if (lane == 0) task.lse[head] = weights.lse;
  }
  sync();  // no block ends while another reads its partial
}

template <class T>
__global__ void __launch_bounds__(T::threads, T::blocks_per_sm)
    attention_kernel(const __grid_constant__ AttentionTask task) {
  extern __shared__ __align__(1024) unsigned char shared[];
  // The last rows of a causal block see the most keys: they begin first.
  const std::int64_t first_row =
      static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * T::tile_rows;
  RowTile rows;
  rows.token = static_cast<int>(first_row / task.group);
  rows.head = static_cast<int>(first_row % task.group);
  rows.kv_head = static_cast<int>(blockIdx.y);
  rows.rows = static_cast<int>(min(task.rows - first_row, static_cast<std::int64_t>(T::tile_rows)));

  const Bounds bounds = bounds_of(task, rows);
  const KeyTiles tiles = key_tiles<T>(bounds, task.sinks);
  Running<T> running;
  if constexpr (T::splits_keys) {
    const int rank = static_cast<int>(blockIdx.z);
    const int ranks = static_cast<int>(gridDim.z);
    run_tiles<T>(task, rows, bounds, tiles, shared_address(shared), rank, ranks, running);
    sum_lanes<T>(running);
    merge_and_store<T>(task, rows, running, reinterpret_cast<float*>(shared), rank, ranks);
  } else {
    run_tiles<T>(task, rows, bounds, tiles, shared_address(shared), 0, 1, running);
    sum_lanes<T>(running);
    store_rows<T>(task, rows, running);
  }
}

/// Returns the most blocks of a cluster: 1 without clusters.
template <class T>
unsigned most_cluster_blocks() {
  if (!T::splits_keys || kernel_architecture() < 90) return 1;
  // The tiles of wide heads have few keys: more blocks have work.
  if (T::column_warps == 1) return max_cluster_blocks;
  TOPKV_CUDA(
      cudaFuncSetAttribute(attention_kernel<T>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1, 1, large_cluster_blocks);
  config.blockDim = dim3(T::threads);
  config.dynamicSmemBytes = T::shared_bytes;
  int granted = 0;
  TOPKV_CUDA(cudaOccupancyMaxPotentialClusterSize(&granted, attention_kernel<T>, &config));
  const bool large = granted >= static_cast<int>(large_cluster_blocks);
  return large ? large_cluster_blocks : max_cluster_blocks;
}

/// Prepares the kernel for the current device. Returns the most blocks of a cluster.
template <class T>
unsigned prepare_kernel() {
  // A thread does so once for each device that it turns to: this takes as long as a launch.
  thread_local int prepared_for = -1;
  thread_local unsigned cluster_blocks = 1;
  int device = 0;
  TOPKV_CUDA(cudaGetDevice(&device));
  if (device == prepared_for) return cluster_blocks;
  TOPKV_CUDA(cudaFuncSetAttribute(attention_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  T::shared_bytes));
  cluster_blocks = most_cluster_blocks<T>();
  prepared_for = device;
  return cluster_blocks;
}

/// How many blocks share the key tiles of a row tile: a cluster's. row_tiles: of all KV heads.
template <class T>
unsigned cluster_blocks(const AttentionTask& task, std::int64_t row_tiles, unsigned most) {
  // More tiles fill a device with small clusters.
  if (row_tiles > large_cluster_blocks) most = std::min(most, max_cluster_blocks);
  const int tiles = (task.count + T::tile_keys - 1) / T::tile_keys;
  unsigned blocks = 1;
  while (blocks < most && 2 * blocks <= static_cast<unsigned>(tiles)) blocks *= 2;
  return blocks;
}

template <class T>
void launch(const AttentionTask& task, std::int64_t kv_heads, cudaStream_t stream) {
  const unsigned most = prepare_kernel<T>();
  const std::int64_t row_tiles = (task.rows + T::tile_rows - 1) / T::tile_rows;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 1;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = cluster_blocks<T>(task, row_tiles * kv_heads, most);

  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(row_tiles), static_cast<unsigned>(kv_heads),
                        attribute.val.clusterDim.z);
  config.blockDim = dim3(T::threads);
  config.dynamicSmemBytes = T::shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = attribute.val.clusterDim.z > 1 ? 1 : 0;
  TOPKV_CUDA(cudaLaunchKernelEx(&config, attention_kernel<T>, task));
}

/// Up to this many rows the keys of a tile are split, not the rows.
constexpr std::int64_t few_rows = 64;
/// The same for latent attention, where all heads of a token share a KV head: these are tiles for a
/// cluster each, where tiles of many rows would leave most of the device idle.
constexpr std::int64_t few_latent_rows = 1024;

/// Tile sizes are what registers (two or three blocks of four warps per SM) and 99 KiB allow.
void launch(const AttentionTask& task, std::int64_t head_dim, std::int64_t kv_heads,
            cudaStream_t stream) {
  const bool few = task.rows <= (head_dim == 576 ? few_latent_rows : few_rows);
  switch (head_dim) {
    case 64:
      return few ? launch<AttentionTiling<64, 1, 1, 4, 64, 2>>(task, kv_heads, stream)
                 : launch<AttentionTiling<64, 2, 4, 1, 64, 3>>(task, kv_heads, stream);
    case 80:
      return few ? launch<AttentionTiling<80, 1, 1, 4, 64, 2>>(task, kv_heads, stream)
                 : launch<AttentionTiling<80, 2, 4, 1, 64, 2>>(task, kv_heads, stream);
    case 96:
      return few ? launch<AttentionTiling<96, 1, 1, 4, 64, 2>>(task, kv_heads, stream)
                 : launch<AttentionTiling<96, 2, 4, 1, 64, 2>>(task, kv_heads, stream);
    case 128:
      return few ? launch<AttentionTiling<128, 1, 1, 4, 64, 2>>(task, kv_heads, stream)
                 : launch<AttentionTiling<128, 2, 4, 1, 64, 2>>(task, kv_heads, stream);
    case 256:
      return few ? launch<AttentionTiling<256, 1, 1, 2, 32, 2>>(task, kv_heads, stream)
                 : launch<AttentionTiling<256, 1, 4, 1, 32, 2>>(task, kv_heads, stream);
    case 512:
      return few ? launch<AttentionTiling<512, 1, 1, 1, 16, 2, 2>>(task, kv_heads, stream)
                 : launch<AttentionTiling<512, 1, 2, 1, 16, 2, 2>>(task, kv_heads, stream);
    default:
      constexpr Values values = Values::are_keys;
      return few ? launch<AttentionTiling<576, 1, 1, 2, 32, 2, 2, values>>(task, kv_heads, stream)
                 : launch<AttentionTiling<576, 1, 2, 1, 16, 2, 2, values>>(task, kv_heads, stream);
  }
}

constexpr const char* known_head_dims = "64, 80, 96, 128, 256 or 512";
constexpr const char* with_keys_that_are_values = ", or 576 if keys are values";

int clamped(std::int64_t position) {
  return static_cast<int>(std::clamp(position, -max_rows, max_rows));
}

float cap_rate(const LayerHeads& heads) {
  return heads.softcap > 0 ? 2 * log2_e * heads.scale / heads.softcap : 0.0F;
}

void check(const LayerHeads& heads, const QueryView<__nv_bfloat16>& queries,
           const DeviceRows& rows) {
  const float scale = heads.scale;
  if (!attention_supports(heads.head_dim, heads.keys_are_values)) {
    throw Unsupported("CUDA attention: head_dim is " + std::to_string(heads.head_dim) +
                      ", expected " + known_head_dims + with_keys_that_are_values);
  }
  if (queries.head_dim != heads.head_dim) {
    throw InvalidArgument("CUDA attention: queries have heads of " +
                          std::to_string(queries.head_dim) + " elements, expected " +
                          std::to_string(heads.head_dim) + " as rows have");
  }
  if (heads.kv_heads <= 0 || heads.kv_heads > 65535 || queries.heads % heads.kv_heads != 0) {
    throw InvalidArgument("CUDA attention: " + std::to_string(queries.heads) +
                          " query heads cannot share " + std::to_string(heads.kv_heads) +
                          " KV heads, expected a multiple of 1 to 65535");
  }
  if (!(scale > 0)) {
    throw InvalidArgument("CUDA attention: scale is " + std::to_string(scale) +
                          ", expected more than 0");
  }
  if (!(heads.softcap >= 0) || std::isinf(2 * heads.softcap / scale) ||
      std::isinf(cap_rate(heads))) {
    throw InvalidArgument("CUDA attention: softcap is " + std::to_string(heads.softcap) +
                          ", expected 0 or a number that float32 can divide by and multiply with");
  }
  if (rows.count > max_rows || queries.tokens >= max_rows || rows.split < 0) {
    throw InvalidArgument("CUDA attention: " + std::to_string(rows.count) + " rows, split at " +
                          std::to_string(rows.split) + ", for " + std::to_string(queries.tokens) +
                          " tokens, expected at most " + std::to_string(max_rows) +
                          " of each and a split of 0 or more");
  }
}

}  // namespace

LayerHeads heads_of(const AttentionShape& shape, std::int64_t layer) {
  LayerHeads heads;
  heads.kv_heads = shape.kv_heads_of(layer);
  heads.head_dim = shape.head_dim_of(layer);
  heads.scale = shape.softmax_scale();
  heads.softcap = shape.softcap;
  heads.keys_are_values = shape.keys_are_values;
  return heads;
}

void check_supported(const AttentionShape& shape) {
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::int64_t dim = shape.head_dim_of(layer);
    if (!shape.is_attention(layer) || attention_supports(dim, shape.keys_are_values)) continue;
    throw Unsupported("head_dim " + std::to_string(dim) + " on a CUDA device; known are " +
                      known_head_dims + with_keys_that_are_values + "; the host (--device cpu) " +
                      "takes any");
  }
}

bool attention_supports(std::int64_t head_dim, bool keys_are_values) {
  return head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128 || head_dim == 256 ||
         head_dim == 512 || (head_dim == 576 && keys_are_values);
}

AttentionTask attention_task(const LayerHeads& heads, const QueryView<__nv_bfloat16>& queries,
                             const DeviceRows& rows, const DeviceVisibility& visible,
                             const PartialView& partial, Into into) {
  check(heads, queries, rows);
  const float scale = heads.scale;
  const std::int64_t group = queries.heads / heads.kv_heads;
  const std::int64_t ahead = queries.first - rows.first;  // of token 0 relative to row 0

  AttentionTask task{};
  task.queries = queries.data;
  task.keys = rows.keys;
  task.values = heads.keys_are_values ? rows.keys : rows.values;
  task.out = partial.out;
  task.lse = partial.lse;
  task.head_stride = rows.head_stride;
  task.keys_behind = rows.keys_behind;
  task.values_behind = heads.keys_are_values ? rows.keys_behind : rows.values_behind;
  task.stride_behind = rows.stride_behind;
  task.rows = queries.tokens * group;
  task.group = static_cast<int>(group);
  task.q_heads = static_cast<int>(queries.heads);
  task.count = static_cast<int>(std::max<std::int64_t>(rows.count, 0));
  task.split = static_cast<int>(std::min(rows.split, max_rows));
  task.end = clamped(visible.causal ? ahead + 1 : max_rows);
  task.begin = clamped(visible.window > 0 ? ahead - visible.window + 1 : -max_rows);
  task.sinks = clamped(visible.window > 0 ? std::max<std::int64_t>(visible.sinks - rows.first, 0)
                                          : max_rows);
  task.scale = scale;
  task.scale_log2 = scale * log2_e;
  task.cap = heads.softcap / scale;
  task.cap_rate = cap_rate(heads);
  task.merge = into == Into::merge;
  return task;
}

void attend(const LayerHeads& heads, const QueryView<__nv_bfloat16>& queries,
            const DeviceRows& rows, const DeviceVisibility& visible, const PartialView& partial,
            Into into, cudaStream_t stream) {
  const AttentionTask task = attention_task(heads, queries, rows, visible, partial, into);
  if (queries.tokens <= 0 || queries.heads == 0) return;
  if (rows.count <= 0 && into == Into::merge) return;
  launch(task, heads.head_dim, heads.kv_heads, stream);
}

}  // namespace topkv::gpu
