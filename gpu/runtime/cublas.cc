#include "gpu/runtime/cublas.h"

#include <fmt/format.h>

#include <utility>

#include "topkv/error.h"

namespace topkv::gpu {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(fmt::format("cuBLAS: {} ({}) in {}", cublasGetStatusString(status),
                          cublasGetStatusName(status), call));
}

}  // namespace

Cublas::Cublas(cudaStream_t stream) {
  check(cublasCreate(&handle_), "cublasCreate");
  try {
    check(cublasSetStream(handle_, stream), "cublasSetStream");
    // Sums that are split among blocks are added in float32 as well.
    check(cublasSetMathMode(
              handle_, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                                 CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
          "cublasSetMathMode");
  } catch (...) {
    cublasDestroy(handle_);
    throw;
  }
}

Cublas::~Cublas() { cublasDestroy(handle_); }

void Cublas::set_workspace(Buffer workspace) {
  check(cublasSetWorkspace(handle_, workspace.data(), static_cast<std::size_t>(workspace.bytes())),
        "cublasSetWorkspace");
  workspace_ = std::move(workspace);
}

// cuBLAS counts columns first: to it these matrices are out^T [out_features, tokens] and W^T, x^T.
void Cublas::multiply(const __nv_bfloat16* weight, std::int64_t out_features, std::int64_t in,
                      const __nv_bfloat16* x, std::int64_t tokens, bool accumulate, float* out,
                      std::int64_t stride) {
  if (tokens == 0 || out_features == 0) return;
  const float alpha = 1.0F;
  const float beta = accumulate ? 1.0F : 0.0F;
  const cublasStatus_t status = cublasGemmEx_64(
      handle_, CUBLAS_OP_T, CUBLAS_OP_N, out_features, tokens, in, &alpha, weight, CUDA_R_16BF, in,
      x, CUDA_R_16BF, in, &beta, out, CUDA_R_32F, stride, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(fmt::format("cuBLAS: {} ({}) in a product [{}, {}] x [{}, {}]^T",
                            cublasGetStatusString(status), cublasGetStatusName(status), tokens, in,
                            out_features, in));
  }
}

// To cuBLAS: out^T [vectors, count], axes^T and x^T.
void Cublas::project(const float* axes, std::int64_t count, std::int64_t dim, const float* x,
                     std::int64_t vectors, float* out, std::int64_t stride) {
  if (count == 0 || vectors == 0) return;
  const float one = 1.0F;
  const float none = 0.0F;
  check(cublasSgemm_64(handle_, CUBLAS_OP_T, CUBLAS_OP_N, vectors, count, dim, &one, x, dim, axes,
                       dim, &none, out, stride),
        "cublasSgemm");
}

}  // namespace topkv::gpu
