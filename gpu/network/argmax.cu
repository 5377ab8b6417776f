#include "gpu/network/elementwise.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

// A candidate is one word that is the larger the better: the value's bits, made to order like the
// value, above the complement of its index. NaN orders below everything.
using Candidate = unsigned long long;
constexpr int argmax_blocks = block;  // so that one block reads a candidate per thread

__device__ Candidate candidate(float value, std::int64_t index) {
  const unsigned bits = __float_as_uint(value + 0.0F);  // -0 becomes +0, its equal
  unsigned order = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  if (isnan(value)) order = 0;
  return Candidate{order} << 32 | ~static_cast<unsigned>(index);
}

/// Thread 0 gets the best of the block.
__device__ Candidate block_best(Candidate best) {
  __shared__ Candidate bests[block / warp];
  for (int step = warp / 2; step > 0; step /= 2)
    best = max(best, __shfl_xor_sync(all_lanes, best, step));
  if (threadIdx.x % warp == 0) bests[threadIdx.x / warp] = best;
  __syncthreads();
  for (Candidate other : bests) best = max(best, other);
  return best;
}

__global__ void argmax_kernel(const float* x, std::int64_t count, std::int64_t vectors,
                              Candidate* bests) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  Candidate best = 0;
  for (std::int64_t v = first; v < vectors; v += stride) {
    const float4 a = load4(x + 4 * v);
    best = max(best, candidate(a.x, 4 * v));
    best = max(best, candidate(a.y, 4 * v + 1));
    best = max(best, candidate(a.z, 4 * v + 2));
    best = max(best, candidate(a.w, 4 * v + 3));
  }
  for (std::int64_t i = 4 * vectors + first; i < count; i += stride)
    best = max(best, candidate(x[i], i));
  best = block_best(best);
  if (threadIdx.x == 0) bests[blockIdx.x] = best;
}

__global__ void argmax_last_kernel(const Candidate* bests, int count, std::int32_t* out) {
  const Candidate best = block_best(static_cast<int>(threadIdx.x) < count ? bests[threadIdx.x] : 0);
  if (threadIdx.x == 0) *out = static_cast<std::int32_t>(~static_cast<unsigned>(best));
}

}  // namespace

std::int64_t argmax_scratch_bytes() { return argmax_blocks * std::int64_t{sizeof(Candidate)}; }

void argmax(const float* x, std::int64_t count, std::int32_t* best, void* scratch,
            cudaStream_t stream) {
  if (count == 0) return;
  const std::int64_t vectors = flat_vectors(count, aligned({x}, sizeof(float4)));
  auto* bests = static_cast<Candidate*>(scratch);
  const unsigned blocks = std::min<unsigned>(blocks_for(count, 4 * block), argmax_blocks);
  argmax_kernel<<<blocks, block, 0, stream>>>(x, count, vectors, bests);
  check_launch("the argmax kernel");
  argmax_last_kernel<<<1, block, 0, stream>>>(bests, static_cast<int>(blocks), best);
  check_launch("the argmax kernel");
}

}  // namespace topkv::gpu
