// Products of few rows with the plain weights of an expert each, whose number lies in device
// memory: what a token's step takes, which is bound by reading these weights once.
//
// A warp has two rows of a weight. Its lanes take 16 bytes of each at a time, side by side, and the
// inputs that belong to these; sums of a row meet at the end. x is read again for each pair of
// rows, from the first-level cache.
#include "gpu/network/experts.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

constexpr int warps = 8;
constexpr int rows_of_warp = 2;
constexpr std::int64_t most_grid_y = 65535;

struct Job {
  const __nv_bfloat16* weights;  // of expert 0
  std::int64_t stride;           // to the next expert, bytes
  std::int64_t out_features;
  int in_features;
  const float* biases;
  const __nv_bfloat16* x;
  bool vectors;  // rows of x and of the weights are aligned to 16 bytes
  std::int64_t sharing;
  const std::int32_t* experts;
  std::int64_t count;
  float* out;
};

__global__ void __launch_bounds__(warps* warp) expert_kernel(const Job job) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const std::int64_t first = (std::int64_t{blockIdx.x} * warps + threadIdx.x / warp) * rows_of_warp;
  if (first >= job.out_features) return;  // whole warps
  for (std::int64_t r = blockIdx.y; r < job.count; r += gridDim.y) {
    const std::int64_t expert = job.experts[r];
    const auto* const weights = reinterpret_cast<const __nv_bfloat16*>(
        reinterpret_cast<const std::byte*>(job.weights) + expert * job.stride);
    const __nv_bfloat16* const x = job.x + r / job.sharing * job.in_features;
    const __nv_bfloat16* rows[rows_of_warp];  // one behind the last is read as the last
#pragma unroll
    for (int i = 0; i < rows_of_warp; ++i)
      rows[i] = weights + min(first + i, job.out_features - 1) * job.in_features;
    float totals[rows_of_warp] = {};
    if (job.vectors) {
      for (int input = lane * 8; input < job.in_features; input += warp * 8) {
        uint4 eights[rows_of_warp];
#pragma unroll
        for (int i = 0; i < rows_of_warp; ++i)
          eights[i] = __ldcs(reinterpret_cast<const uint4*>(rows[i] + input));
        const uint4 with = __ldg(reinterpret_cast<const uint4*>(x + input));
        const unsigned inputs[4] = {with.x, with.y, with.z, with.w};
#pragma unroll
        for (int i = 0; i < rows_of_warp; ++i) {
          const unsigned pairs[4] = {eights[i].x, eights[i].y, eights[i].z, eights[i].w};
#pragma unroll
          for (int p = 0; p < 4; ++p) {
            totals[i] = fmaf(low(pairs[p]), low(inputs[p]), totals[i]);
            totals[i] = fmaf(high(pairs[p]), high(inputs[p]), totals[i]);
          }
        }
      }
    } else {
      for (int input = lane; input < job.in_features; input += warp) {
        const float with = __bfloat162float(x[input]);
#pragma unroll
        for (int i = 0; i < rows_of_warp; ++i)
          totals[i] = fmaf(__bfloat162float(rows[i][input]), with, totals[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < rows_of_warp; ++i) {
      float sum = warp_sum(totals[i]);
      if (lane != 0 || first + i >= job.out_features) continue;
      if (job.biases != nullptr) sum += job.biases[expert * job.out_features + first + i];
      job.out[r * job.out_features + first + i] = sum;
    }
  }
}

void multiply_plain(const ExpertProduct& product, const __nv_bfloat16* x, std::int64_t sharing,
                    const std::int32_t* experts, std::int64_t rows, cudaStream_t stream) {
  const Matrix& form = product.weights->form;
  Job job{};
  job.weights = reinterpret_cast<const __nv_bfloat16*>(form.data);
  job.stride = product.weights->stride;
  job.out_features = form.out_features;
  job.in_features = static_cast<int>(form.in_features);
  job.biases = product.biases;
  job.x = x;
  job.vectors = form.in_features % 8 == 0 && aligned({x, form.data}, 16);
  job.sharing = sharing;
  job.experts = experts;
  job.count = rows;
  job.out = product.out;
  const dim3 grid(static_cast<unsigned>((job.out_features - 1) / (warps * rows_of_warp) + 1),
                  static_cast<unsigned>(std::min(job.count, most_grid_y)));
  expert_kernel<<<grid, warps * warp, 0, stream>>>(job);
  check_launch("the kernel of experts' products");
}

}  // namespace

bool expert_products(const ExpertProduct* products, std::int64_t count, const __nv_bfloat16* x,
                     std::int64_t sharing, const std::int32_t* experts, std::int64_t rows,
                     const VectorLimits& limits, cudaStream_t stream) {
  if (count == 0 || rows == 0) return true;
  if (products->weights->form.packed())
    return packed_experts(products, count, x, sharing, experts, rows, limits, stream);
  for (const ExpertProduct* product = products; product != products + count; ++product)
    multiply_plain(*product, x, sharing, experts, rows, stream);
  return true;
}

}  // namespace topkv::gpu
