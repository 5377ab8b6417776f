#include "bench/gpu_random.h"
#include "gpu/runtime/handles.h"

namespace bench {
namespace {

/// The finalizer of MurmurHash3.
__device__ std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

__global__ void normal_kernel(__nv_bfloat16* to, std::int64_t count, std::uint64_t seed) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const std::uint64_t bits = mixed(static_cast<std::uint64_t>(i) + (seed << 40));
    float sum = 0;  // of four uniform numbers: variance 1 / 3
    for (int j = 0; j < 4; ++j) sum += static_cast<float>(bits >> (16 * j) & 0xffff) / 65536.0F;
    to[i] = __float2bfloat16_rn((sum - 2.0F) * 1.7320508F);
  }
}

}  // namespace

void fill_normal(__nv_bfloat16* to, std::int64_t count, unsigned seed) {
  if (count == 0) return;
  normal_kernel<<<4096, 256>>>(to, count, seed);
  TOPKV_CUDA(cudaGetLastError());
}

}  // namespace bench
