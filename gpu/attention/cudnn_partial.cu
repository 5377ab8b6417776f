#include "gpu/attention/cudnn_attention.h"
#include "gpu/attention/merge_weights.cuh"
#include "gpu/runtime/handles.h"

namespace topkv::gpu {
namespace {

constexpr int threads = 256;

/// One warp a head.
__global__ void __launch_bounds__(threads)
    store_kernel(CudnnPartial from, std::int64_t tokens, std::int64_t q_heads,
                 std::int64_t head_dim, PartialView partial, bool merge) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t head =
      (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) / 32;  // of tokens x q_heads
  if (head >= tokens * q_heads) return;
  const float lse = from.lse[head % q_heads * tokens + head / q_heads];
  const Weights weights = merge_weights(merge ? partial.lse[head] : -INFINITY, lse);
  __syncwarp();  // all lanes have read the old lse before one writes the new
  for (std::int64_t at = head * head_dim + lane * 2; at < (head + 1) * head_dim; at += 64) {
    float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from.out + at));
    auto* to = reinterpret_cast<float2*>(partial.out + at);
    if (merge) {
      const float2 before = *to;
      x.x = weights.before * before.x + weights.now * x.x;
      x.y = weights.before * before.y + weights.now * x.y;
    }
    *to = x;
  }
  if (lane == 0) partial.lse[head] = weights.lse;
}

}  // namespace

void store_cudnn_partial(const CudnnPartial& from, std::int64_t tokens, std::int64_t q_heads,
                         std::int64_t head_dim, const PartialView& partial, Into into,
                         cudaStream_t stream) {
  if (tokens * q_heads == 0) return;
  const auto blocks = static_cast<unsigned>((tokens * q_heads * 32 + threads - 1) / threads);
  store_kernel<<<blocks, threads, 0, stream>>>(from, tokens, q_heads, head_dim, partial,
                                               into == Into::merge);
  TOPKV_CUDA(cudaGetLastError());
}

}  // namespace topkv::gpu
