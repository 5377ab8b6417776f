// gpu/attention/cudnn_attention.h against attention in float64.
#include "gpu/attention/cudnn_attention.h"

#include <gtest/gtest.h>

#include "tests/gpu/kernels/attention_case.h"
#include "tests/support/needs_gpu.h"
#include "topkv/error.h"

namespace {

using test::AttentionCase;
using test::Shape;
using topkv::gpu::CudnnAttention;
using topkv::gpu::CudnnShape;
using topkv::gpu::DeviceArray;
using topkv::gpu::Into;

#define TOPKV_NEEDS_CUDNN()                                    \
  TOPKV_NEEDS_GPU();                                           \
  do {                                                         \
    std::string why;                                           \
    if (!CudnnAttention::available(&why)) GTEST_SKIP() << why; \
  } while (false)

constexpr double bf16_rounding = 0x1p-9;  // of cuDNN's result, relative to the largest value

CudnnShape cudnn_shape(const AttentionCase& problem, const Shape& shape, std::int64_t rows) {
  return {.head_dim = shape.head_dim,
          .q_heads = problem.q_heads(),
          .kv_heads = shape.kv_heads,
          .tokens = shape.tokens,
          .rows = rows,
          .head_stride = shape.rows * shape.head_dim,
          .causal = shape.visible.causal,
          .scale = problem.scale()};
}

/// Rows [begin, end) through cuDNN.
void attend(CudnnAttention& cudnn, AttentionCase& problem, const Shape& shape, std::int64_t begin,
            std::int64_t end, Into into) {
  const CudnnShape wanted = cudnn_shape(problem, shape, end - begin);
  std::string why;
  ASSERT_TRUE(cudnn.supports(wanted, &why)) << why;
  const DeviceArray<std::byte> workspace(cudnn.workspace_bytes(wanted));
  const DeviceArray<__nv_bfloat16> out(problem.heads() * shape.head_dim);
  const DeviceArray<float> lse(problem.heads());
  const auto rows = problem.rows(begin, end);
  cudnn.attend(wanted, problem.queries().data, rows.keys, rows.values, {out.data(), lse.data()},
               workspace.data(), nullptr);
  topkv::gpu::store_cudnn_partial({out.data(), lse.data()}, shape.tokens, problem.q_heads(),
                                  shape.head_dim, problem.partial(), into, nullptr);
  EXPECT_EQ(lse.read().size(), static_cast<std::size_t>(problem.heads()));  // and its guards
  EXPECT_EQ(out.read().size(), static_cast<std::size_t>(problem.heads() * shape.head_dim));
}

TEST(GpuCudnnAttention, AllRowsAgreeWithFloat64) {
  TOPKV_NEEDS_CUDNN();
  CudnnAttention cudnn;
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t rows : {128, 320}) {
      const Shape shape{.head_dim = head_dim, .group = 4, .tokens = 128, .rows = rows};
      AttentionCase problem(shape);
      attend(cudnn, problem, shape, 0, rows, Into::overwrite);
      problem.expect_close(problem.answer(), bf16_rounding);
    }
  }
}

TEST(GpuCudnnAttention, CausalChunksAgreeWithFloat64) {
  TOPKV_NEEDS_CUDNN();
  CudnnAttention cudnn;
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t rows : {128, 384}) {
      const Shape shape{.head_dim = head_dim,
                        .group = 4,
                        .tokens = 128,
                        .rows = rows,
                        .first_token = rows - 128,
                        .visible = {.causal = true}};
      AttentionCase problem(shape);
      attend(cudnn, problem, shape, 0, rows, Into::overwrite);
      problem.expect_close(problem.answer(), bf16_rounding);
    }
  }
}

TEST(GpuCudnnAttention, ItsPartialMergesWithTheKernelsInEitherOrder) {
  TOPKV_NEEDS_CUDNN();
  CudnnAttention cudnn;
  const Shape shape{.head_dim = 64, .group = 4, .tokens = 128, .rows = 400};
  AttentionCase problem(shape);
  attend(cudnn, problem, shape, 0, 256, Into::overwrite);
  problem.attend(256, 400, Into::merge);
  problem.expect_close(problem.answer(), bf16_rounding);
  problem.attend(256, 400, Into::overwrite);
  attend(cudnn, problem, shape, 0, 256, Into::merge);
  problem.expect_close(problem.answer(), bf16_rounding);
}

TEST(GpuCudnnAttention, ShapesWithoutAPlanAreRefusedWithAReason) {
  TOPKV_NEEDS_CUDNN();
  CudnnAttention cudnn;
  const CudnnShape odd{.head_dim = 63,
                       .q_heads = 2,
                       .kv_heads = 2,
                       .tokens = 128,
                       .rows = 128,
                       .head_stride = 128 * 63,
                       .scale = 1};
  std::string why;
  EXPECT_FALSE(cudnn.supports(odd, &why));
  EXPECT_NE(why, "");
  EXPECT_THROW(cudnn.workspace_bytes(odd), topkv::Unsupported);
}

TEST(GpuCudnnAttention, ItsAbsenceHasAReason) {
  std::string why;
  const bool available = CudnnAttention::available(&why);
  EXPECT_EQ(available, why.empty());
}

}  // namespace
