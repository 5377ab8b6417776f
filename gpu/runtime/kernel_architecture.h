// Which of the architectures that kernels were compiled for a device runs.
#pragma once

namespace topkv::gpu {

/// As __CUDA_ARCH__ / 10 of what runs on the current device: 80 on one of compute capability 9.0,
/// too, where that was compiled for 8.0 alone. Asks once for each device that a thread turns to.
int kernel_architecture();

}  // namespace topkv::gpu
