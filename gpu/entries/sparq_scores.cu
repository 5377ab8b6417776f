// Scores of keys by some of their components, for SparQ (entry_scores.h).
#include <cmath>
#include <string>

#include "gpu/entries/entry_checks.h"
#include "gpu/entries/entry_scores.h"
#include "gpu/runtime/kernel_parts.cuh"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr int threads = 128;
constexpr int rows_each = 8;  // of a thread: 16 bytes of a component

/// What a block reads of its head step's queries.
template <int dim>
struct Components {
  float coefficients[most_group][dim];  // of component number i among those read
  float sums[dim];                      // over the group, |q|
  int chosen[dim];                      // ascending
  float divisors[most_group];
};

/// By all threads. Which components are read, and what with.
template <int dim>
__device__ void choose_components(const __nv_bfloat16* queries, int group, float scale, int read,
                                  Components<dim>& of) {
  static_assert(dim <= threads);
  const int i = static_cast<int>(threadIdx.x);
  const int lane = i % warp;
  if (i < dim) {
    float sum = 0;
    for (int g = 0; g < group; ++g) sum += fabsf(__bfloat162float(queries[g * dim + i]));
    of.sums[i] = sum;
  }
  __shared__ int before[threads / warp];
  __syncthreads();
  bool kept = false;
  if (i < dim) {
    int rank = 0;
    const float mine = of.sums[i];
#pragma unroll 8
    for (int j = 0; j < dim; ++j) rank += of.sums[j] > mine || (of.sums[j] == mine && j < i);
    kept = rank < read;
  }
  const unsigned of_warp = __ballot_sync(all_lanes, kept);
  if (lane == 0) before[i / warp] = __popc(of_warp);
  __syncthreads();
  if (kept) {
    int place = __popc(of_warp & ((1U << lane) - 1));
    for (int w = 0; w < i / warp; ++w) place += before[w];
    of.chosen[place] = i;
  }
  __syncthreads();
  for (int g = i / warp; g < group; g += threads / warp) {  // a warp a head
    float all = 0;
    for (int j = lane; j < dim; j += warp) all += fabsf(__bfloat162float(queries[g * dim + j]));
    float some = 0;
    for (int j = lane; j < read; j += warp) {
      const float q = __bfloat162float(queries[g * dim + of.chosen[j]]);
      of.coefficients[g][j] = q;
      some += fabsf(q);
    }
    all = warp_sum(all);
    some = warp_sum(some);
    // A query of zeros has scores of 0, whatever divides them.
    if (lane == 0) of.divisors[g] = some > 0 ? scale * rsqrtf(some / all) : 0.0F;
  }
  __syncthreads();
}

template <int dim>
__global__ void __launch_bounds__(threads)
    sparq_kernel(const __nv_bfloat16* queries, int group, float scale,
                 const __nv_bfloat16* components, std::int64_t slots, std::int64_t rows, int read,
                 float* scores) {
  __shared__ Components<dim> of;
  await_previous();
  const std::int64_t head_step = blockIdx.y;
  choose_components<dim>(queries + head_step * group * dim, group, scale, read, of);
  const std::int64_t first =
      (std::int64_t{blockIdx.x} * threads + static_cast<int>(threadIdx.x)) * rows_each;
  if (first >= rows) return;
  const __nv_bfloat16* from = components + head_step * dim * slots + first;
  constexpr int at_once = 8;  // components
  for (int g = 0; g < group; g += 2) {
    const int other = min(g + 1, group - 1);
    float a[rows_each] = {};
    float b[rows_each] = {};
    for (int i = 0; i < read; i += at_once) {
      uint4 x[at_once];
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
        x[j] = i + j < read ? *reinterpret_cast<const uint4*>(from + of.chosen[i + j] * slots)
                            : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
        if (i + j >= read) continue;
        const float of_a = of.coefficients[g][i + j];
        const float of_b = of.coefficients[other][i + j];
        const unsigned pairs[4] = {x[j].x, x[j].y, x[j].z, x[j].w};
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          a[2 * p] += of_a * low(pairs[p]);
          a[2 * p + 1] += of_a * high(pairs[p]);
          b[2 * p] += of_b * low(pairs[p]);
          b[2 * p + 1] += of_b * high(pairs[p]);
        }
      }
    }
    const auto write = [&](const float(&sums)[rows_each], int head) {
      float* to = scores + (head_step * group + head) * rows + first;
      const float divisor = of.divisors[head];
      for (int i = 0; i < rows_each && first + i < rows; ++i) to[i] = sums[i] * divisor;
    };
    write(a, g);
    if (g + 1 < group) write(b, other);
  }
}

}  // namespace

void score_components(const HeadStepQueries& queries, const __nv_bfloat16* components,
                      std::int64_t slots, std::int64_t rows, std::int64_t read, float* scores,
                      cudaStream_t stream) {
  check_queries("scores by components", queries);
  check_slots("scores by components", 0, rows, slots);
  if (slots % rows_each != 0)
    throw InvalidArgument("CUDA components of keys: " + std::to_string(slots) +
                          " slots, expected a multiple of " + std::to_string(rows_each));
  if (read < 1 || read > queries.head_dim)
    throw InvalidArgument("CUDA scores by components: " + std::to_string(read) + " of " +
                          std::to_string(queries.head_dim) + " components, expected 1 to all");
  if (rows <= 0 || queries.head_steps == 0) return;
  const dim3 blocks(all_blocks(rows, threads * rows_each),
                    static_cast<unsigned>(queries.head_steps));
  const auto launch = [&](auto kernel) {
    launch_overlapped(kernel, blocks, threads, 0, stream, queries.data,
                      static_cast<int>(queries.group), queries.scale, components, slots, rows,
                      static_cast<int>(read), scores);
  };
  if (queries.head_dim == 64) {
    launch(sparq_kernel<64>);
  } else {
    launch(sparq_kernel<128>);
  }
}

}  // namespace topkv::gpu
