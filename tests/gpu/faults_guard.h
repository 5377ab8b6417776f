// Faults for the length of a scope.
#pragma once

#include <cuda_runtime_api.h>

#include "gpu/runtime/faults.h"

namespace test {

class InjectedFaults {
 public:
  InjectedFaults(int copy_delay_us, bool drop_waits) {
    topkv::gpu::Faults::copy_delay_us = copy_delay_us;
    topkv::gpu::Faults::drop_waits = drop_waits;
  }
  /// Work that does not wait for what it needs may still be going on.
  ~InjectedFaults() {
    cudaDeviceSynchronize();
    topkv::gpu::Faults::copy_delay_us = 0;
    topkv::gpu::Faults::drop_waits = false;
  }
  InjectedFaults(const InjectedFaults&) = delete;  // belongs to one scope
  InjectedFaults& operator=(const InjectedFaults&) = delete;
};

/// Choices come late, and are waited for or not.
class LateChoices {
 public:
  LateChoices(int delay_us, bool drop_waits) {
    topkv::gpu::Faults::choice_delay_us = delay_us;
    topkv::gpu::Faults::drop_choice_waits = drop_waits;
  }
  ~LateChoices() {
    cudaDeviceSynchronize();
    topkv::gpu::Faults::choice_delay_us = 0;
    topkv::gpu::Faults::drop_choice_waits = false;
  }
  LateChoices(const LateChoices&) = delete;  // belongs to one scope
  LateChoices& operator=(const LateChoices&) = delete;
};

}  // namespace test
