#include <string>

#include "bench/kernels/sparq_components.h"
#include "gpu/entries/entry_checks.h"
#include "gpu/runtime/kernel_parts.cuh"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr int tile = 64;

/// A tile of rows, turned in shared memory.
__global__ void __launch_bounds__(block)
    spread_kernel(const __nv_bfloat16* keys, std::int64_t slots, int dim, std::int64_t first,
                  std::int64_t rows, __nv_bfloat16* components) {
  __shared__ __nv_bfloat16 turned[tile][tile + 2];
  await_previous();
  const std::int64_t head_step = blockIdx.z;
  const std::int64_t row = first + std::int64_t{blockIdx.x} * tile;
  const int component = static_cast<int>(blockIdx.y) * tile;
  const int across = static_cast<int>(threadIdx.x) % tile;
  for (int i = static_cast<int>(threadIdx.x) / tile; i < tile; i += block / tile) {
    if (row + i < rows)
      turned[across][i] = keys[(head_step * slots + row + i) * dim + component + across];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x) / tile; i < tile; i += block / tile) {
    if (row + across < rows)
      components[(head_step * dim + component + i) * slots + row + across] = turned[i][across];
  }
}

__global__ void reallocate_kernel(const float* shares, const float* means, int group, int dim,
                                  std::int64_t count, float* out) {
  await_previous();
  const std::int64_t i = 4 * (std::int64_t{blockIdx.x} * block + static_cast<int>(threadIdx.x));
  if (i >= count) return;
  const std::int64_t head = i / dim;
  const float share = shares[head];
  const float4 x = load4(out + i);
  const float4 mean = load4(means + head / group * dim + i % dim);
  const float rest = 1 - share;
  store4(out + i, {share * x.x + rest * mean.x, share * x.y + rest * mean.y,
                   share * x.z + rest * mean.z, share * x.w + rest * mean.w});
}

}  // namespace

void spread_components(const __nv_bfloat16* keys, std::int64_t head_steps, std::int64_t slots,
                       std::int64_t head_dim, std::int64_t first, std::int64_t rows,
                       __nv_bfloat16* components, cudaStream_t stream) {
  check_head_dim("components of keys", head_dim);
  check_head_steps("components of keys", head_steps);
  check_slots("components of keys", first, rows, slots);
  if (slots % 8 != 0)
    throw InvalidArgument("CUDA components of keys: " + std::to_string(slots) +
                          " slots, expected a multiple of 8");
  if (rows <= first || head_steps == 0) return;
  launch_overlapped(spread_kernel,
                    dim3(all_blocks(rows - first, tile), static_cast<unsigned>(head_dim / tile),
                         static_cast<unsigned>(head_steps)),
                    block, 0, stream, keys, slots, static_cast<int>(head_dim), first, rows,
                    components);
}

void reallocate_mean(const HeadStepQueries& queries, const float* shares, const float* means,
                     const PartialView& partial, cudaStream_t stream) {
  check_queries("the mean value", queries);
  const std::int64_t count = queries.head_steps * queries.group * queries.head_dim;
  if (count == 0) return;
  launch_overlapped(reallocate_kernel, dim3(all_blocks(count, 4 * block)), block, 0, stream, shares,
                    means, static_cast<int>(queries.group), static_cast<int>(queries.head_dim),
                    count, partial.out);
}

}  // namespace topkv::gpu
