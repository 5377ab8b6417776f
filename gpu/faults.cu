#include "gpu/faults.h"
#include "gpu/handles.h"

namespace topkv::gpu {
namespace {

__global__ void spin(long long nanoseconds) {
  unsigned long long start = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  for (unsigned long long now = start;
       now - start < static_cast<unsigned long long>(nanoseconds);) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  }
}

}  // namespace

void inject_copy_delay(cudaStream_t stream) {
  Faults::copies.fetch_add(1, std::memory_order_relaxed);
  const int microseconds = Faults::copy_delay_us.load(std::memory_order_relaxed);
  if (microseconds <= 0) return;
  spin<<<1, 1, 0, stream>>>(microseconds * 1000LL);
  TOPKV_CUDA(cudaGetLastError());
}

}  // namespace topkv::gpu
