#include <cmath>

#include "gpu/entries/score_masks.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

constexpr int pack = 8;  // keys of a load
constexpr int sum_threads = 1024;

__global__ void join_kernel(const uint4* blocks, std::int64_t packs, int dim, int block_packs,
                            std::int64_t slot_packs, uint4* components) {
  await_previous();
  for (std::int64_t i = std::int64_t{blockIdx.x} * block + static_cast<int>(threadIdx.x); i < packs;
       i += std::int64_t{gridDim.x} * block) {
    const std::int64_t key = i % block_packs;
    const std::int64_t component = i / block_packs % dim;
    const std::int64_t before = i / block_packs / dim * block_packs;
    components[component * slot_packs + before + key] = blocks[i];
  }
}

__global__ void leave_out_kernel(int first, std::int64_t count, float* scores) {
  await_previous();
  for (int i = static_cast<int>(threadIdx.x); i < first; i += warp)
    scores[std::int64_t{blockIdx.x} * count + i] = NAN;
}

/// A thread an entry of a KV head.
__global__ void elsewhere_kernel(const int2* spans, int begin, int end, int group, int count,
                                 std::int64_t slots, float* scores) {
  await_previous();
  const int i = static_cast<int>(blockIdx.x) * block + static_cast<int>(threadIdx.x);
  if (i >= count) return;
  const std::int64_t kv_head = blockIdx.y;
  const int2 span = spans[kv_head * slots + i];  // first, last
  if (span.x < end && span.y >= begin) return;
  for (int g = 0; g < group; ++g) scores[(kv_head * group + g) * count + i] = NAN;
}

/// A block a head.
__global__ void __launch_bounds__(sum_threads)
    sum_kernel(const float* scores, const float* sizes, int group, int count, std::int64_t slots,
               float* log_sums) {
  __shared__ float of_warps[sum_threads / warp];
  await_previous();
  const std::int64_t head = blockIdx.x;
  const float* const of = scores + head * count;
  const float* const its_sizes = sizes + head / group * slots;
  float most = -INFINITY;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += sum_threads)
    most = fmaxf(most, of[i]);  // passes over what is not a number
  most = block_max<sum_threads>(most, of_warps);
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += sum_threads) {
    const float score = of[i];
    if (!isnan(score)) sum += its_sizes[i] * expf(score - most);
  }
  sum = block_sum<sum_threads>(sum, of_warps);
  if (threadIdx.x == 0) log_sums[head] = most + logf(sum);
}

}  // namespace

void join_blocks(const __nv_bfloat16* blocks, std::int64_t count, std::int64_t dim,
                 std::int64_t block_keys, std::int64_t first, std::int64_t slots,
                 __nv_bfloat16* components, cudaStream_t stream) {
  const std::int64_t packs = count * dim * block_keys / pack;
  if (packs == 0) return;
  launch_overlapped(join_kernel, blocks_for(packs, block), block, 0, stream,
                    reinterpret_cast<const uint4*>(blocks), packs, static_cast<int>(dim),
                    static_cast<int>(block_keys / pack), slots / pack,
                    reinterpret_cast<uint4*>(components + first));
}

void leave_out_first(std::int64_t first, std::int64_t heads, std::int64_t count, float* scores,
                     cudaStream_t stream) {
  if (first == 0 || heads == 0) return;
  launch_overlapped(leave_out_kernel, static_cast<unsigned>(heads), warp, 0, stream,
                    static_cast<int>(first), count, scores);
}

void leave_out_elsewhere(const int* spans, PositionRange allowed, std::int64_t heads,
                         std::int64_t group, std::int64_t count, std::int64_t slots, float* scores,
                         cudaStream_t stream) {
  if (heads == 0 || count == 0) return;
  launch_overlapped(
      elsewhere_kernel,
      dim3(static_cast<unsigned>((count - 1) / block + 1), static_cast<unsigned>(heads / group)),
      block, 0, stream, reinterpret_cast<const int2*>(spans), static_cast<int>(allowed.begin),
      static_cast<int>(allowed.end), static_cast<int>(group), static_cast<int>(count), slots,
      scores);
}

void sum_weights(const float* scores, const float* sizes, std::int64_t heads, std::int64_t group,
                 std::int64_t count, std::int64_t slots, float* log_sums, cudaStream_t stream) {
  if (heads == 0) return;
  launch_overlapped(sum_kernel, static_cast<unsigned>(heads), sum_threads, 0, stream, scores, sizes,
                    static_cast<int>(group), static_cast<int>(count), slots, log_sums);
}

}  // namespace topkv::gpu
