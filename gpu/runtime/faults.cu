#include "gpu/runtime/faults.h"
#include "gpu/runtime/handles.h"

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

void hold_up(const std::atomic<int>& microseconds, cudaStream_t stream) {
  const int most = microseconds.load(std::memory_order_relaxed);
  if (most <= 0) return;
  spin<<<1, 1, 0, stream>>>(most * 1000LL);
  TOPKV_CUDA(cudaGetLastError());
}

}  // namespace

void inject_copy_delay(cudaStream_t stream) {
  Faults::copies.fetch_add(1, std::memory_order_relaxed);
  hold_up(Faults::copy_delay_us, stream);
}

void inject_choice_delay(cudaStream_t stream) { hold_up(Faults::choice_delay_us, stream); }

}  // namespace topkv::gpu
