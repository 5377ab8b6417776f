#include "gpu/runtime/recording.h"

#include "gpu/runtime/handles.h"

namespace topkv::gpu {

CudaRecording::~CudaRecording() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

void CudaRecording::run(cudaStream_t stream, const std::function<void()>& work) {
  if (!warm_) {
    work();
    warm_ = true;
    return;
  }
  if (graph_ == nullptr) {
    cudaGraph_t recorded = nullptr;
    TOPKV_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream, &recorded);
      if (recorded != nullptr) cudaGraphDestroy(recorded);
      cudaGetLastError();  // a recording that was broken off ends with an error of its own
      throw;
    }
    TOPKV_CUDA(cudaStreamEndCapture(stream, &recorded));
    const cudaError_t status = cudaGraphInstantiate(&graph_, recorded, 0);
    cudaGraphDestroy(recorded);
    TOPKV_CUDA(status);
  }
  TOPKV_CUDA(cudaGraphLaunch(graph_, stream));
}

}  // namespace topkv::gpu
