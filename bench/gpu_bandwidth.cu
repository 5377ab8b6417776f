#include <algorithm>
#include <cstdint>

#include "bench/gpu_bandwidth.h"
#include "gpu/runtime/handles.h"

namespace bench {
namespace {

constexpr std::int64_t bytes = std::int64_t{1} << 30;

__global__ void read_kernel(const uint4* data, std::int64_t count, unsigned* out) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  unsigned sum = 0;
  std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    uint4 four[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) four[j] = __ldcs(data + i + j * stride);
#pragma unroll
    for (const uint4& x : four) sum ^= x.x ^ x.y ^ x.z ^ x.w;
  }
  if (sum == 0x12345678U) *out = sum;  // never, but the compiler does not know
}

}  // namespace

double gpu_read_bandwidth() {
  using topkv::gpu::Event;
  int device = 0;
  int processors = 0;
  TOPKV_CUDA(cudaGetDevice(&device));
  TOPKV_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  void* memory = nullptr;
  TOPKV_CUDA(cudaMalloc(&memory, static_cast<std::size_t>(bytes)));
  TOPKV_CUDA(cudaMemset(memory, 0, static_cast<std::size_t>(bytes)));
  const topkv::gpu::Stream stream;
  double best = 0;
  for (const int per_processor : {2, 4, 8, 16}) {
    for (int run = 0; run < 4; ++run) {
      Event start(Event::Timing::on);
      Event end(Event::Timing::on);
      start.record(stream);
      read_kernel<<<processors * per_processor, 512, 0, stream>>>(
          static_cast<const uint4*>(memory), bytes / 16, static_cast<unsigned*>(memory));
      TOPKV_CUDA(cudaGetLastError());
      end.record(stream);
      end.synchronize();
      best = std::max(best, static_cast<double>(bytes) / end.seconds_since(start));
    }
  }
  cudaFree(memory);
  return best;
}

}  // namespace bench
