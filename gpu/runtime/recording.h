// A CUDA graph of work on one stream, which is launched many times.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "src/device/compute_device.h"

namespace topkv::gpu {

/// Implements Recording.
class CudaRecording final : public Recording {
 public:
  CudaRecording() = default;
  ~CudaRecording() override;
  CudaRecording(const CudaRecording&) = delete;  // owns a graph
  CudaRecording& operator=(const CudaRecording&) = delete;

  /// Runs the work. The first call runs it directly, because libraries load their code then. The
  /// second call records it, and later calls launch the graph. Throws Error.
  void run(cudaStream_t stream, const std::function<void()>& work);

 private:
  bool warm_ = false;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace topkv::gpu
