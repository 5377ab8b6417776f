#include "tests/gpu/failing_calls.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <atomic>

namespace {

std::atomic<std::int64_t> calls_left{-1};  // calls until one fails; below 0: none does
std::atomic<bool> any{false};
std::atomic<std::int64_t> things{0};
std::atomic<const char*> failed{""};
thread_local cudaError_t of_launch = cudaSuccess;  // a launch tells by cudaGetLastError

bool fails(bool making, const char* name) {
  if (!making && !any.load(std::memory_order_relaxed)) return false;
  if (calls_left.load(std::memory_order_relaxed) < 0 || calls_left.fetch_sub(1) != 0) return false;
  failed = name;
  return true;
}

template <class Status>
Status made(Status status, Status success) {
  if (status == success) ++things;
  return status;
}

template <class Status>
Status gone(Status status, const void* thing) {
  if (thing != nullptr) --things;
  return status;
}

}  // namespace

// NOLINTBEGIN: names are the linker's
extern "C" {

#define MAKES(name, parameters, arguments)                    \
  cudaError_t __real_##name parameters;                       \
  cudaError_t __wrap_##name parameters {                      \
    if (fails(true, #name)) return cudaErrorMemoryAllocation; \
    return made(__real_##name arguments, cudaSuccess);        \
  }
#define GIVES_BACK(name, type)           \
  cudaError_t __real_##name(type thing); \
  cudaError_t __wrap_##name(type thing) { return gone(__real_##name(thing), thing); }
#define DOES(name, parameters, arguments)                   \
  cudaError_t __real_##name parameters;                     \
  cudaError_t __wrap_##name parameters {                    \
    if (fails(false, #name)) return cudaErrorLaunchFailure; \
    return __real_##name arguments;                         \
  }
#define LAUNCHES(name, parameters, arguments)                           \
  cudaError_t __real_##name parameters;                                 \
  cudaError_t __wrap_##name parameters {                                \
    if (fails(false, #name)) return of_launch = cudaErrorLaunchFailure; \
    return __real_##name arguments;                                     \
  }
#define MULTIPLIES(name, parameters, arguments)                     \
  cublasStatus_t __real_##name parameters;                          \
  cublasStatus_t __wrap_##name parameters {                         \
    if (fails(false, #name)) return CUBLAS_STATUS_EXECUTION_FAILED; \
    return __real_##name arguments;                                 \
  }

MAKES(cudaMalloc, (void** at, std::size_t bytes), (at, bytes))
GIVES_BACK(cudaFree, void*)
MAKES(cudaHostAlloc, (void** at, std::size_t bytes, unsigned flags), (at, bytes, flags))
GIVES_BACK(cudaFreeHost, void*)
MAKES(cudaHostRegister, (void* at, std::size_t bytes, unsigned flags), (at, bytes, flags))
GIVES_BACK(cudaHostUnregister, void*)
MAKES(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned flags), (stream, flags))
GIVES_BACK(cudaStreamDestroy, cudaStream_t)
MAKES(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags), (event, flags))
GIVES_BACK(cudaEventDestroy, cudaEvent_t)
MAKES(cudaGraphInstantiate, (cudaGraphExec_t * to, cudaGraph_t graph, unsigned long long flags),
      (to, graph, flags))
GIVES_BACK(cudaGraphExecDestroy, cudaGraphExec_t)

cublasStatus_t __real_cublasCreate_v2(cublasHandle_t* handle);
cublasStatus_t __wrap_cublasCreate_v2(cublasHandle_t* handle) {
  if (fails(true, "cublasCreate")) return CUBLAS_STATUS_ALLOC_FAILED;
  return made(__real_cublasCreate_v2(handle), CUBLAS_STATUS_SUCCESS);
}
cublasStatus_t __real_cublasDestroy_v2(cublasHandle_t handle);
cublasStatus_t __wrap_cublasDestroy_v2(cublasHandle_t handle) {
  return gone(__real_cublasDestroy_v2(handle), handle);
}

DOES(cudaMemcpyAsync,
     (void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
     (to, from, bytes, kind, stream))
DOES(cudaMemsetAsync, (void* at, int value, std::size_t bytes, cudaStream_t stream),
     (at, value, bytes, stream))
DOES(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
DOES(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
     (stream, event, flags))
DOES(cudaGraphLaunch, (cudaGraphExec_t graph, cudaStream_t stream), (graph, stream))
DOES(cudaFuncSetAttribute, (const void* kernel, cudaFuncAttribute attribute, int value),
     (kernel, attribute, value))
LAUNCHES(cudaLaunchKernelExC,
         (const cudaLaunchConfig_t* config, const void* kernel, void** arguments),
         (config, kernel, arguments))
#if CUDART_VERSION >= 13000
LAUNCHES(__cudaLaunchKernel,
         (cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
          cudaStream_t stream),
         (kernel, grid, block, arguments, shared, stream))
#else
LAUNCHES(cudaLaunchKernel,
         (const void* kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
          cudaStream_t stream),
         (kernel, grid, block, arguments, shared, stream))
#endif
MULTIPLIES(cublasGemmEx_64,
           (cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, std::int64_t m,
            std::int64_t n, std::int64_t k, const void* alpha, const void* a, cudaDataType type_a,
            std::int64_t lda, const void* b, cudaDataType type_b, std::int64_t ldb,
            const void* beta, void* c, cudaDataType type_c, std::int64_t ldc,
            cublasComputeType_t compute, cublasGemmAlgo_t algorithm),
           (handle, of_a, of_b, m, n, k, alpha, a, type_a, lda, b, type_b, ldb, beta, c, type_c,
            ldc, compute, algorithm))

cudaError_t __real_cudaGetLastError();
cudaError_t __wrap_cudaGetLastError() {
  const cudaError_t real = __real_cudaGetLastError();
  const cudaError_t launched = of_launch;
  of_launch = cudaSuccess;
  return real != cudaSuccess ? real : launched;
}
}
// NOLINTEND

namespace test {

FailingCall::FailingCall(Calls calls, std::int64_t n) {
  any = calls == Calls::any;
  calls_left = n;
}
FailingCall::~FailingCall() { calls_left = -1; }
std::int64_t FailingCall::left() { return calls_left; }
const char* FailingCall::name() { return failed; }

std::int64_t device_things() { return things; }

}  // namespace test
