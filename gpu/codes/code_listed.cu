// Attention over the rows that a scan lists, where they lie in device memory.
#include <cuda_fp16.h>

#include <cmath>

#include "gpu/attention/key_bias.cuh"
#include "gpu/codes/code_merge.cuh"
#include "gpu/codes/code_score.cuh"
#include "gpu/codes/code_stages.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

constexpr int listed_warps = 8;
constexpr int listed_threads = listed_warps * warp;
constexpr int block_elements = 32;  // of q8 and q4: one for each lane

/// What attend_listed keeps in shared memory, besides the queries, for rows of D dims at most.
template <int D>
struct ListedShared {
  int positions[most_listed];
  // Those of this block's warps, in turn.
  int mine[(most_listed - 1) / (scan_listed_parts * listed_warps) + 1][listed_warps];
  float high[listed_warps][code_group], mass[listed_warps][code_group];
  float sums[listed_warps][D];
};

template <int D>
std::size_t shared_bytes(const CodeScan& scan) {
  return sizeof(ListedShared<D>) +
         sizeof(float) * static_cast<std::size_t>(scan.forms * scan.group * scan.head_dim);
}

/// Element 32 b + lane of a vector.
__device__ __forceinline__ float element_of(const std::byte* vector, DType type, int b) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const auto half_at = [](const std::byte* at) {
    return __half2float(*reinterpret_cast<const __half*>(at));
  };
  if (type == DType::bf16) {
    return __bfloat162float(
        reinterpret_cast<const __nv_bfloat16*>(vector)[b * block_elements + lane]);
  }
  if (type == DType::q8) {
    const std::byte* block = vector + b * 34;
    return static_cast<float>(reinterpret_cast<const signed char*>(block)[2 + lane]) *
           half_at(block);
  }
  const std::byte* block = vector + b * 20;
  const int pair = reinterpret_cast<const unsigned char*>(block)[4 + lane % 16];
  return fmaf(static_cast<float>(lane < 16 ? pair & 15 : pair >> 4), half_at(block),
              half_at(block + 2));
}

/// One part of the rows that a KV head's lists have, for all heads of the group: a warp a row, in
/// the order of positions, so that the result does not depend on the order in which they were
/// listed.
template <int D>
__global__ void __launch_bounds__(listed_threads)
    listed_kernel(const __grid_constant__ CodeScan scan) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<ListedShared<D>*>(memory);
  auto* const queries = reinterpret_cast<float*>(memory + sizeof(ListedShared<D>));
  constexpr int each = D / warp;  // elements of a lane
  constexpr int stride = scan_listed_parts * listed_warps;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  const int warp_id = thread / warp;
  const int head = static_cast<int>(blockIdx.x) / scan_listed_parts;
  const int part = static_cast<int>(blockIdx.x) % scan_listed_parts;
  const int dim = scan.head_dim;
  const int group = scan.group;
  const ListedRows& rows = scan.listed_rows;
  for (int i = thread; i < scan.forms * group * dim; i += listed_threads) {
    const int form = i / (group * dim);
    queries[i] = scan.scale * query_of(scan, form, head, 0)[i % (group * dim)];
  }
  let_next_kernel_start();
  wait_for_previous_kernel();

  const int* const list =
      scan.token[0].found + static_cast<std::int64_t>(head) * (1 + scan.capacity);
  const int count = list[0];
  for (int i = thread; i < count; i += listed_threads) shared.positions[i] = list[1 + i];
  __syncthreads();
  for (int i = thread; i < count; i += listed_threads) {
    const int position = shared.positions[i];
    int rank = 0;
    for (int j = 0; j < count; ++j) rank += shared.positions[j] < position ? 1 : 0;
    if (rank % stride / listed_warps == part)
      shared.mine[rank / stride][rank % listed_warps] = position;
  }
  __syncthreads();

  float high[code_group];
  float mass[code_group];
  float sums[code_group][each];
#pragma unroll
  for (int g = 0; g < code_group; ++g) {
    high[g] = -INFINITY;
    mass[g] = 0;
#pragma unroll
    for (float& x : sums[g]) x = 0;
  }
  const std::byte* const keys = rows.keys + head * rows.head_bytes;
  const std::byte* const values = rows.values + head * rows.head_bytes;
  const SoftCap cap(scan.softcap);
  for (int rank = part * listed_warps + warp_id; rank < count; rank += stride) {
    const int position = shared.mine[rank / stride][warp_id];
    float key[each];
    float value[each];
#pragma unroll
    for (int b = 0; b < each; ++b) {
      const bool inside = b * block_elements + lane < dim;
      key[b] = inside ? element_of(keys + position * rows.key_bytes, rows.key_type, b) : 0.0F;
      value[b] =
          inside ? element_of(values + position * rows.value_bytes, rows.value_type, b) : 0.0F;
    }
#pragma unroll
    for (int b = 0; b < each; ++b) {
      const int i = b * block_elements + lane;
      if (i >= dim) continue;
      if (rows.stored.channels != nullptr) key[b] *= rows.stored.channels[head * dim + i];
      if (rows.stored.bias != nullptr) key[b] += turned_bias(rows.stored, dim, head, position, i);
    }
    int form = 0;
    while (form + 1 < scan.forms && position < rows.form_begin[form]) ++form;
    const float* const query = queries + form * group * dim;
#pragma unroll
    for (int g = 0; g < code_group; ++g) {
      if (g >= group) break;
      float score = 0;
#pragma unroll
      for (int b = 0; b < each; ++b) {
        const int i = b * block_elements + lane;
        if (i < dim) score = fmaf(query[g * dim + i], key[b], score);
      }
      score = warp_sum(score);
      if (scan.softcap > 0) score = cap.of(score);
      const float most = fmaxf(high[g], score);
      const float before = expf(high[g] - most);
      const float weight = expf(score - most);
      high[g] = most;
      mass[g] = mass[g] * before + weight;
#pragma unroll
      for (int b = 0; b < each; ++b) sums[g][b] = fmaf(weight, value[b], sums[g][b] * before);
    }
  }

  // The block's warps together.
  if (lane == 0) {
#pragma unroll
    for (int g = 0; g < code_group; ++g) {
      shared.high[warp_id][g] = high[g];
      shared.mass[warp_id][g] = mass[g];
    }
  }
  const int heads = scan.kv_heads * group;
#pragma unroll
  for (int g = 0; g < code_group; ++g) {
    if (g >= group) break;
    __syncthreads();  // all have read the sums before
#pragma unroll
    for (int b = 0; b < each; ++b) shared.sums[warp_id][b * block_elements + lane] = sums[g][b];
    __syncthreads();
    float most = -INFINITY;
    for (int w = 0; w < listed_warps; ++w) most = fmaxf(most, shared.high[w][g]);
    const auto factor = [&](int w) {
      return shared.high[w][g] == -INFINITY ? 0.0F : expf(shared.high[w][g] - most);
    };
    float whole = 0;
    for (int w = 0; w < listed_warps; ++w) whole += shared.mass[w][g] * factor(w);
    const int at = part * heads + head * group + g;
    for (int d = thread; d < dim; d += listed_threads) {
      float sum = 0;
      for (int w = 0; w < listed_warps; ++w) sum += factor(w) * shared.sums[w][d];
      scan.listed_parts.out[static_cast<std::int64_t>(at) * dim + d] =
          whole > 0 ? sum / whole : 0.0F;
    }
    if (thread == 0) scan.listed_parts.lse[at] = whole > 0 ? most + logf(whole) : -INFINITY;
  }
  const bool last = merge_parts<scan_listed_parts, listed_threads>(scan, head, scan.listed_parts,
                                                                   scan.listed_arrived, rows.to);
  if (last && thread == 0) atomicAdd(rows.attended, static_cast<double>(count));
}

}  // namespace

void attend_listed(const CodeScan& scan, cudaStream_t stream) {
  for_dims(scan.head_dim, [&](auto dims) {
    launch_early(scan, dim3(static_cast<unsigned>(scan.kv_heads * scan_listed_parts)),
                 listed_threads, static_cast<int>(shared_bytes<dims>(scan)), stream,
                 listed_kernel<dims>);
  });
}

void allow_attend_listed(int head_dim) {
  for_dims(head_dim, [&](auto dims) {
    CodeScan most;
    most.forms = query_forms;
    most.group = code_group;
    most.head_dim = dims;  // the limit is the kernel's, for all heads that it serves
    TOPKV_CUDA(cudaFuncSetAttribute(listed_kernel<dims>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes<dims>(most))));
  });
}

}  // namespace topkv::gpu
