// A CUDA graph of work on one stream, to be launched again and again.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "src/device/compute_device.h"

namespace topkv::gpu {

class CudaRecording final : public Recording {
 public:
  CudaRecording() = default;
  ~CudaRecording() override;
  CudaRecording(const CudaRecording&) = delete;  // owns a graph
  CudaRecording& operator=(const CudaRecording&) = delete;

  /// The first call does the work as it is (libraries load their code then), the second records it,
  /// and from then on it is launched as one. Throws Error.
  void run(cudaStream_t stream, const std::function<void()>& work);

 private:
  bool warm_ = false;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace topkv::gpu
