// Products of few rows with the weights of an expert each, whose number lies in device memory: what
// a token's step takes, which is bound by reading these weights once.
//
// A warp has two rows of a weight. Its lanes take 16 bytes of each at a time, side by side, and the
// inputs that belong to these; sums of a row meet at the end. x is read again for each pair of
// rows, from the first-level cache.
#include "gpu/experts.h"
#include "gpu/fp4_codes.cuh"
#include "gpu/kernel_parts.cuh"
#include "gpu/packed_codes.cuh"

namespace topkv::gpu {
namespace {

constexpr int warps = 8;
constexpr int rows_of_warp = 2;
constexpr std::int64_t most_grid_y = 65535;

struct Job {
  const std::byte* data;  // of expert 0
  std::int64_t stride;    // to the next expert, bytes
  std::int64_t row_bytes;
  std::int64_t scales_at;
  std::int64_t offsets_at;
  std::int64_t order_at;
  bool has_order;
  std::int64_t out_features;
  int in_features;
  int group;
  int groups;
  const float* biases;
  const __nv_bfloat16* x;
  bool x_vectors;       // rows of x are aligned to 16 bytes and read in their own order
  bool weight_vectors;  // rows of plain weights are
  std::int64_t sharing;
  const std::int32_t* experts;
  std::int64_t count;
  float* out;
};

__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000U); }

/// What the lanes of a warp work on.
struct Rows {
  const std::byte* data;  // of the expert
  const std::int32_t* order;
  const __nv_bfloat16* x;
  std::int64_t at[rows_of_warp];
};

/// `count` inputs of x from `input` on, in the order of the weights; 0 for those behind the last.
template <int count>
__device__ __forceinline__ void load_inputs(const Job& job, const Rows& rows, int input,
                                            float (&to)[count]) {
  const int left = job.in_features - input;
  if (job.x_vectors && left >= count) {
#pragma unroll
    for (int i = 0; i < count; i += 8) {
      const uint4 eight = __ldg(reinterpret_cast<const uint4*>(rows.x + input + i));
      const unsigned pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        to[i + 2 * p] = low(pairs[p]);
        to[i + 2 * p + 1] = high(pairs[p]);
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    to[i] = 0;
    if (i < left) {
      const int from = rows.order == nullptr ? input + i : rows.order[input + i];
      to[i] = __bfloat162float(rows.x[from]);
    }
  }
}

/// A lane's part of the products with packed rows.
template <Packing packing, bool offsets>
__device__ __forceinline__ void add_packed(const Job& job, const Rows& rows, int lane,
                                           float (&totals)[rows_of_warp]) {
  using C = Codes<packing>;
  constexpr int inputs = 4 * C::per_word;  // of 16 bytes; in one group
  const auto* scales = reinterpret_cast<const float*>(rows.data + job.scales_at);
  const auto* shifts = reinterpret_cast<const float*>(rows.data + job.offsets_at);
  for (int input = lane * inputs; input < job.in_features; input += warp * inputs) {
    uint4 codes[rows_of_warp];
    float scale[rows_of_warp];
    float shift[rows_of_warp];
    const int group = input / job.group;
#pragma unroll
    for (int r = 0; r < rows_of_warp; ++r) {
      codes[r] = __ldcs(reinterpret_cast<const uint4*>(rows.data + rows.at[r] * job.row_bytes +
                                                       input / inputs * 16));
      scale[r] = __ldg(scales + rows.at[r] * job.groups + group);
      if constexpr (offsets) shift[r] = __ldg(shifts + rows.at[r] * job.groups + group);
    }
    float x[inputs];
    load_inputs<inputs>(job, rows, input, x);
    float all = 0;
    if constexpr (offsets) {
#pragma unroll
      for (int i = 0; i < inputs; ++i) all += x[i];
    }
#pragma unroll
    for (int r = 0; r < rows_of_warp; ++r) {
      const unsigned words[4] = {codes[r].x, codes[r].y, codes[r].z, codes[r].w};
      float sum = 0;
      const auto add = [&](unsigned pair, const float* of) {
        sum = fmaf(low(pair), of[0], sum);
        sum = fmaf(high(pair), of[1], sum);
      };
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float* of = x + w * C::per_word;
        add(C::template pair<0>(words[w]), of);
        add(C::template pair<1>(words[w]), of + 2);
        if constexpr (C::pairs == 4) {
          add(C::template pair<2>(words[w]), of + 4);
          add(C::template pair<3>(words[w]), of + 6);
        }
      }
      totals[r] = fmaf(scale[r], sum, totals[r]);
      if constexpr (offsets) totals[r] = fmaf(shift[r], all, totals[r]);
    }
  }
}

/// Likewise with rows in bf16.
__device__ __forceinline__ void add_plain(const Job& job, const Rows& rows, int lane,
                                          float (&totals)[rows_of_warp]) {
  const auto* weights = reinterpret_cast<const __nv_bfloat16*>(rows.data);
  if (!job.weight_vectors) {
    for (int i = lane; i < job.in_features; i += warp) {
      const float x = __bfloat162float(rows.x[i]);
#pragma unroll
      for (int r = 0; r < rows_of_warp; ++r)
        totals[r] = fmaf(__bfloat162float(weights[rows.at[r] * job.in_features + i]), x, totals[r]);
    }
    return;
  }
  constexpr int inputs = 8;
  for (int input = lane * inputs; input < job.in_features; input += warp * inputs) {
    uint4 eight[rows_of_warp];
#pragma unroll
    for (int r = 0; r < rows_of_warp; ++r)
      eight[r] =
          __ldcs(reinterpret_cast<const uint4*>(weights + rows.at[r] * job.in_features + input));
    float x[inputs];
    load_inputs<inputs>(job, rows, input, x);
#pragma unroll
    for (int r = 0; r < rows_of_warp; ++r) {
      const unsigned pairs[4] = {eight[r].x, eight[r].y, eight[r].z, eight[r].w};
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        totals[r] = fmaf(low(pairs[p]), x[2 * p], totals[r]);
        totals[r] = fmaf(high(pairs[p]), x[2 * p + 1], totals[r]);
      }
    }
  }
}

template <Packing packing, bool offsets>
__global__ void __launch_bounds__(warps* warp) expert_kernel(const Job job) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const std::int64_t first = (std::int64_t{blockIdx.x} * warps + threadIdx.x / warp) * rows_of_warp;
  if (first >= job.out_features) return;  // whole warps
  for (std::int64_t r = blockIdx.y; r < job.count; r += gridDim.y) {
    const std::int64_t expert = job.experts[r];
    Rows rows;
    rows.data = job.data + expert * job.stride;
    rows.order =
        job.has_order ? reinterpret_cast<const std::int32_t*>(rows.data + job.order_at) : nullptr;
    rows.x = job.x + r / job.sharing * job.in_features;
    // A row behind the last is read as the last, and not written.
#pragma unroll
    for (int i = 0; i < rows_of_warp; ++i) rows.at[i] = min(first + i, job.out_features - 1);
    float totals[rows_of_warp] = {};
    if constexpr (packing == Packing::none) {
      add_plain(job, rows, lane, totals);
    } else {
      add_packed<packing, offsets>(job, rows, lane, totals);
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

template <Packing packing>
void launch(const Job& job, bool offsets, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((job.out_features - 1) / (warps * rows_of_warp) + 1),
                  static_cast<unsigned>(std::min(job.count, most_grid_y)));
  if (offsets) {
    expert_kernel<packing, true><<<grid, warps * warp, 0, stream>>>(job);
  } else {
    expert_kernel<packing, false><<<grid, warps * warp, 0, stream>>>(job);
  }
  check_launch("the kernel of experts' products");
}

}  // namespace

void expert_product(const ExpertMatrices& weights, const float* biases, const __nv_bfloat16* x,
                    std::int64_t sharing, const std::int32_t* experts, std::int64_t count,
                    float* out, cudaStream_t stream) {
  const Matrix& form = weights.form;
  if (count == 0 || form.out_features == 0) return;
  Job job{};
  job.data = form.data;
  job.stride = weights.stride;
  job.row_bytes = form.row_bytes();
  job.out_features = form.out_features;
  job.in_features = static_cast<int>(form.in_features);
  job.biases = biases;
  job.x = x;
  job.x_vectors = !form.has_order && form.in_features % 8 == 0 && aligned({x}, 16);
  job.weight_vectors = form.in_features % 8 == 0 && aligned({form.data}, 16);
  job.sharing = sharing;
  job.experts = experts;
  job.count = count;
  job.out = out;
  if (!form.packed()) return launch<Packing::none>(job, false, stream);
  job.scales_at = form.scales_at();
  job.offsets_at = form.offsets_at();
  job.order_at = form.order_at();
  job.has_order = form.has_order;
  job.group = static_cast<int>(form.group);
  job.groups = static_cast<int>(form.groups());
  switch (form.packing) {
    case Packing::int8:
      return launch<Packing::int8>(job, form.has_offsets, stream);
    case Packing::int4:
      return launch<Packing::int4>(job, form.has_offsets, stream);
    case Packing::fp8:
      return launch<Packing::fp8>(job, form.has_offsets, stream);
    default:
      return launch<Packing::fp4>(job, form.has_offsets, stream);
  }
}

}  // namespace topkv::gpu
