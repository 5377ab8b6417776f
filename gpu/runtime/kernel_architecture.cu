#include "gpu/runtime/handles.h"
#include "gpu/runtime/kernel_architecture.h"

namespace topkv::gpu {
namespace {

__global__ void any_kernel() {}

}  // namespace

int kernel_architecture() {
  thread_local int asked_for = -1;
  thread_local int architecture = 0;
  int device = 0;
  TOPKV_CUDA(cudaGetDevice(&device));
  if (device != asked_for) {
    cudaFuncAttributes attributes{};
    TOPKV_CUDA(cudaFuncGetAttributes(&attributes, any_kernel));
    architecture = attributes.ptxVersion;
    asked_for = device;
  }
  return architecture;
}

}  // namespace topkv::gpu
