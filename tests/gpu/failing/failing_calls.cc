#include "tests/gpu/failing/failing_calls.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <type_traits>

namespace {

using test::Calls;

enum class Kind : std::uint8_t { makes, does, waits, cudnn };

std::atomic<std::int64_t> calls_left{-1};  // calls until one fails; below 0: none does
std::atomic<Calls> failing{Calls::making};
std::atomic<bool> lost{false};  // all fail
std::atomic<std::int64_t> things{0};
std::atomic<const char*> failed{""};
thread_local cudaError_t of_launch = cudaSuccess;  // a launch tells by cudaGetLastError

bool may_fail(Kind kind) {
  switch (failing.load(std::memory_order_relaxed)) {
    case Calls::making:
      return kind == Kind::makes;
    case Calls::any:
      return kind == Kind::makes || kind == Kind::does;
    case Calls::waits:
      return kind == Kind::waits;
    case Calls::cudnn:
      return kind == Kind::cudnn;
    case Calls::lost:
      return true;
  }
  return false;
}

bool fails(Kind kind, const char* name) {
  if (lost) return true;
  if (!may_fail(kind)) return false;
  if (calls_left.load(std::memory_order_relaxed) < 0 || calls_left.fetch_sub(1) != 0) return false;
  failed = name;
  lost = failing == Calls::lost;
  return true;
}

cudaError_t none_made() { return lost ? cudaErrorLaunchFailure : cudaErrorMemoryAllocation; }

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

#define MAKES(name, parameters, arguments)             \
  cudaError_t __real_##name parameters;                \
  cudaError_t __wrap_##name parameters {               \
    if (fails(Kind::makes, #name)) return none_made(); \
    return made(__real_##name arguments, cudaSuccess); \
  }
#define GIVES_BACK(name, type)           \
  cudaError_t __real_##name(type thing); \
  cudaError_t __wrap_##name(type thing) { return gone(__real_##name(thing), thing); }
#define DOES(name, parameters, arguments)                        \
  cudaError_t __real_##name parameters;                          \
  cudaError_t __wrap_##name parameters {                         \
    if (fails(Kind::does, #name)) return cudaErrorLaunchFailure; \
    return __real_##name arguments;                              \
  }
// What is waited for must not go on beside what follows.
#define WAITS(name, parameters, arguments)                            \
  cudaError_t __real_##name parameters;                               \
  cudaError_t __wrap_##name parameters {                              \
    const cudaError_t real = __real_##name arguments;                 \
    return fails(Kind::waits, #name) ? cudaErrorLaunchFailure : real; \
  }
#define LAUNCHES(name, parameters, arguments)                                \
  cudaError_t __real_##name parameters;                                      \
  cudaError_t __wrap_##name parameters {                                     \
    if (fails(Kind::does, #name)) return of_launch = cudaErrorLaunchFailure; \
    return __real_##name arguments;                                          \
  }
#define MULTIPLIES(name, parameters, arguments)                          \
  cublasStatus_t __real_##name parameters;                               \
  cublasStatus_t __wrap_##name parameters {                              \
    if (fails(Kind::does, #name)) return CUBLAS_STATUS_EXECUTION_FAILED; \
    return __real_##name arguments;                                      \
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
  if (fails(Kind::makes, "cublasCreate")) return CUBLAS_STATUS_ALLOC_FAILED;
  return made(__real_cublasCreate_v2(handle), CUBLAS_STATUS_SUCCESS);
}
cublasStatus_t __real_cublasDestroy_v2(cublasHandle_t handle);
cublasStatus_t __wrap_cublasDestroy_v2(cublasHandle_t handle) {
  return gone(__real_cublasDestroy_v2(handle), handle);
}

DOES(cudaMemcpyAsync,
     (void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
     (to, from, bytes, kind, stream))
DOES(cudaMemcpy2DAsync,
     (void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
      std::size_t height, cudaMemcpyKind kind, cudaStream_t stream),
     (to, to_pitch, from, from_pitch, width, height, kind, stream))
DOES(cudaMemsetAsync, (void* at, int value, std::size_t bytes, cudaStream_t stream),
     (at, value, bytes, stream))
DOES(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
DOES(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
     (stream, event, flags))
DOES(cudaStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode), (stream, mode))
DOES(cudaGraphLaunch, (cudaGraphExec_t graph, cudaStream_t stream), (graph, stream))
DOES(cudaFuncSetAttribute, (const void* kernel, cudaFuncAttribute attribute, int value),
     (kernel, attribute, value))
WAITS(cudaStreamSynchronize, (cudaStream_t stream), (stream))
WAITS(cudaEventSynchronize, (cudaEvent_t event), (event))
WAITS(cudaEventQuery, (cudaEvent_t event), (event))
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
MULTIPLIES(cublasSgemm_v2_64,
           (cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, std::int64_t m,
            std::int64_t n, std::int64_t k, const float* alpha, const float* a, std::int64_t lda,
            const float* b, std::int64_t ldb, const float* beta, float* c, std::int64_t ldc),
           (handle, of_a, of_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc))

// A recording ends, whatever is said of it.
cudaError_t __real_cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const cudaError_t real = __real_cudaStreamEndCapture(stream, graph);
  if (!fails(Kind::does, "cudaStreamEndCapture")) return real;
  if (*graph != nullptr) cudaGraphDestroy(*graph);
  *graph = nullptr;
  return cudaErrorLaunchFailure;
}

// One that is lost cannot be made a thread's.
cudaError_t __real_cudaSetDevice(int device);
cudaError_t __wrap_cudaSetDevice(int device) {
  return lost ? cudaErrorLaunchFailure : __real_cudaSetDevice(device);
}

// cuDNN is looked for when the program runs: what is found of it is one of these.
using OfHandle = int (*)(void* handle);
using Creates = int (*)(void** handle);
using SetsStream = int (*)(void* handle, void* stream);
using Executes = int (*)(void* handle, void* plan, void* pack);
constexpr int cudnn_internal_error = 4000;
OfHandle cudnn_destroy = nullptr;
Creates cudnn_create = nullptr;
SetsStream cudnn_set_stream = nullptr;
Executes cudnn_execute = nullptr;

int failing_destroy(void* handle) { return gone(cudnn_destroy(handle), handle); }
int failing_create(void** handle) {
  if (fails(Kind::cudnn, "cudnnCreate")) return cudnn_internal_error;
  return made(cudnn_create(handle), 0);
}
int failing_set_stream(void* handle, void* stream) {
  if (fails(Kind::cudnn, "cudnnSetStream")) return cudnn_internal_error;
  return cudnn_set_stream(handle, stream);
}
int failing_execute(void* handle, void* plan, void* pack) {
  if (fails(Kind::cudnn, "cudnnBackendExecute")) return cudnn_internal_error;
  return cudnn_execute(handle, plan, pack);
}

void* __real_dlsym(void* library, const char* name);
void* __wrap_dlsym(void* library, const char* name) {
  void* const found = __real_dlsym(library, name);
  if (found == nullptr) return nullptr;
  const auto instead = [&](auto& real, auto* ours) {
    real = reinterpret_cast<std::remove_reference_t<decltype(real)>>(found);
    return reinterpret_cast<void*>(ours);
  };
  if (std::strcmp(name, "cudnnDestroy") == 0) return instead(cudnn_destroy, failing_destroy);
  if (std::strcmp(name, "cudnnCreate") == 0) return instead(cudnn_create, failing_create);
  if (std::strcmp(name, "cudnnSetStream") == 0)
    return instead(cudnn_set_stream, failing_set_stream);
  if (std::strcmp(name, "cudnnBackendExecute") == 0) return instead(cudnn_execute, failing_execute);
  return found;
}

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
  failing = calls;
  calls_left = n;
}
FailingCall::~FailingCall() {
  calls_left = -1;
  lost = false;
}
std::int64_t FailingCall::left() { return calls_left; }
const char* FailingCall::name() { return failed; }

std::int64_t device_things() { return things; }

}  // namespace test
