// What stands in for the CUDA device in a build without CUDA.
#include "src/device/compute_device.h"
#include "topkv/error.h"

namespace topkv {

int gpu_count() { return 0; }

std::string gpu_reason() {
  return "this topkv was built without CUDA; build it with -D TOPKV_CUDA=ON";
}

std::shared_ptr<ComputeDevice> open_gpu(int /*number*/, std::int64_t /*memory_ceiling*/) {
  throw Unsupported(gpu_reason());
}

std::shared_ptr<const DeviceSizes> gpu_sizes() {
  throw Unsupported(
      "this topkv was built without CUDA, and cannot tell what a GPU would take; plan with a build "
      "that has it (-D TOPKV_CUDA=ON; it needs no GPU), or for the host alone");
}

}  // namespace topkv
