// The architecture of the kernels that run on a device.
#pragma once

namespace topkv::gpu {

/// The value of __CUDA_ARCH__ / 10 in the kernels that run on the current device. It is 80 on a
/// device of compute capability 9.0 if kernels were compiled for 8.0 only. Each thread asks CUDA
/// once for each device.
int kernel_architecture();

}  // namespace topkv::gpu
