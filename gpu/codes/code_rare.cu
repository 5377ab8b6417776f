// Attention over rare rows, which codes stand for badly.
#include <cmath>

#include "gpu/codes/code_merge.cuh"
#include "gpu/codes/code_score.cuh"
#include "gpu/codes/code_stages.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

/// So few that blocks fit on a multiprocessor beside those of the tail and of listed rows.
template <int D>
constexpr int threads = D > many_dims ? 512 : 256;

/// What attend_rare keeps of a tile of rows, of D dims at most.
template <int D>
struct RareTile {
  static constexpr int row_threads = D / 32;  // that score a row, 32 dims each
  static constexpr int rows = threads<D> / row_threads;
  static constexpr int slices = threads<D> / (D / 2);
  static_assert(slices > 0 && rows >= slices && threads<D> / warp >= code_group);
  float query[code_group][D];
  float scores[code_group][rows];
  float weights[rows][code_group];
  float high[code_group], mass[code_group], before[code_group];
  float sums[slices][code_group][D];
};

/// One part of a KV head's rare rows for a token, for all heads of the group, and of each form of
/// its query what that meets, a tile at a time: D / 32 threads score a row, then a slice of the
/// threads sums the values of some rows, two dims each.
template <int D>
__global__ void __launch_bounds__(threads<D>) rare_kernel(const __grid_constant__ CodeScan scan) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  using Tile = RareTile<D>;
  auto& tile = *reinterpret_cast<Tile*>(shared);
  const int head_step = static_cast<int>(blockIdx.x) / scan_rare_parts;
  const int part = static_cast<int>(blockIdx.x) % scan_rare_parts;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  const int dim = scan.head_dim;
  const int head = head_step % scan.kv_heads;
  const ScanRange range = scan.range[head_step];
  const int all = max(0, range.rare_end - range.rare_begin);
  const int part_begin = range.rare_begin + all * part / scan_rare_parts;
  const int part_end = range.rare_begin + all * (part + 1) / scan_rare_parts;
  const __nv_bfloat16* keys = scan.rare + 2 * head * scan.rare_slots * dim;
  const __nv_bfloat16* values = keys + scan.rare_slots * dim;

  if (thread < code_group) {
    tile.high[thread] = -INFINITY;
    tile.mass[thread] = 0;
  }
  constexpr int fours = D / (4 * Tile::row_threads);  // of dims, that a thread has of a key
  const auto dim_of = [&](int i) {
    return 4 * (Tile::row_threads * i + thread % Tile::row_threads);
  };
  constexpr int per_slice = Tile::rows / Tile::slices;
  const int slice = thread / (D / 2);
  const int pair = 2 * (thread % (D / 2));
  const SoftCap cap(scan.softcap);
  float2 sum[code_group] = {};
  for (int form = 0; form < scan.forms; ++form) {
    const ScanRange of = scan.form_range(form, head_step);
    const int begin = max(part_begin, of.rare_begin);
    const int end = min(part_end, of.rare_end);
    if (begin >= end) continue;
    __syncthreads();  // all have read the query before
    for (int i = thread; i < code_group * D; i += threads<D>) {
      const int g = i / D;
      const int d = i % D;
      tile.query[g][d] =
          g < scan.group && d < dim ? scan.scale * query_of(scan, form, head_step, g)[d] : 0.0F;
    }
    for (int first = begin; first < end; first += Tile::rows) {
      // All that is read of the rows is asked for at once. (Rows are aligned to four elements.)
      const int row = first + thread / Tile::row_threads;
      uint2 key[fours];
#pragma unroll
      for (int i = 0; i < fours; ++i) {
        const int d = dim_of(i);
        key[i] =
            row < end && d < dim
                ? *reinterpret_cast<const uint2*>(keys + static_cast<std::int64_t>(row) * dim + d)
                : uint2{0, 0};
      }
      __nv_bfloat162 value[per_slice];
#pragma unroll
      for (int i = 0; i < per_slice; ++i) {
        const int at = first + slice * per_slice + i;
        value[i] = at < end && pair < dim ? *reinterpret_cast<const __nv_bfloat162*>(
                                                values + static_cast<std::int64_t>(at) * dim + pair)
                                          : __nv_bfloat162{};
      }
      __syncthreads();
      float score[code_group] = {};
#pragma unroll
      for (int i = 0; i < fours; ++i) {
        const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&key[i].x));
        const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&key[i].y));
#pragma unroll
        for (int g = 0; g < code_group; ++g) {
          const float4 q = load4(&tile.query[g][dim_of(i)]);
          score[g] += q.x * low.x + q.y * low.y + q.z * high.x + q.w * high.y;
        }
      }
#pragma unroll
      for (int g = 0; g < code_group; ++g) {
#pragma unroll
        for (int step = 1; step < Tile::row_threads; step *= 2)
          score[g] += __shfl_xor_sync(all_lanes, score[g], step);
        if (scan.softcap > 0) score[g] = cap.of(score[g]);
        if (thread % Tile::row_threads == 0)
          tile.scores[g][thread / Tile::row_threads] = row < end ? score[g] : -INFINITY;
      }
      __syncthreads();
      if (thread / warp < code_group) {  // a warp a head: its softmax
        const int g = thread / warp;
        constexpr int per_lane = Tile::rows / warp;
        float most = tile.high[g];
#pragma unroll
        for (int i = 0; i < per_lane; ++i) most = fmaxf(most, tile.scores[g][i * warp + lane]);
        most = warp_max(most);
        float mass = 0;
#pragma unroll
        for (int i = 0; i < per_lane; ++i) {
          const float weight = expf(tile.scores[g][i * warp + lane] - most);
          tile.weights[i * warp + lane][g] = weight;
          mass += weight;
        }
        mass = warp_sum(mass);
        if (lane == 0) {
          tile.before[g] = expf(tile.high[g] - most);
          tile.mass[g] = tile.mass[g] * tile.before[g] + mass;
          tile.high[g] = most;
        }
      }
      __syncthreads();
#pragma unroll
      for (int g = 0; g < code_group; ++g) {
        sum[g].x *= tile.before[g];
        sum[g].y *= tile.before[g];
      }
#pragma unroll
      for (int i = 0; i < per_slice; ++i) {
        const float2 v = __bfloat1622float2(value[i]);
#pragma unroll
        for (int g = 0; g < code_group; g += 4) {
          const float4 w = load4(&tile.weights[slice * per_slice + i][g]);
          const float weight[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            sum[g + j].x += weight[j] * v.x;
            sum[g + j].y += weight[j] * v.y;
          }
        }
      }
    }
  }
#pragma unroll
  for (int g = 0; g < code_group; ++g) {
    tile.sums[slice][g][pair] = sum[g].x;
    tile.sums[slice][g][pair + 1] = sum[g].y;
  }
  __syncthreads();
  const int heads = scan.head_steps() * scan.group;
  for (int i = thread; i < scan.group * D; i += threads<D>) {
    const int g = i / D;
    const int d = i % D;
    float x = 0;
#pragma unroll
    for (int j = 0; j < Tile::slices; ++j) x += tile.sums[j][g][d];
    const std::int64_t at = static_cast<std::int64_t>(part) * heads + head_step * scan.group + g;
    const float mass = tile.mass[g];
    if (d < dim) scan.parts.out[at * dim + d] = mass > 0 ? x / mass : 0.0F;
    if (d == 0) scan.parts.lse[at] = mass > 0 ? tile.high[g] + logf(mass) : -INFINITY;
  }
  merge_parts<scan_rare_parts, threads<D>>(scan, head_step, scan.parts, scan.rare_arrived,
                                           scan.token[head_step / scan.kv_heads].parts.exact);
  wait_for_previous_kernel();  // for whoever waits for this one
}

}  // namespace

void attend_rare(const CodeScan& scan, cudaStream_t stream) {
  for_dims(scan.head_dim, [&](auto dims) {
    launch_early(scan, dim3(static_cast<unsigned>(scan.head_steps() * scan_rare_parts)),
                 threads<dims>, static_cast<int>(sizeof(RareTile<dims>)), stream,
                 rare_kernel<dims>);
  });
}

void allow_attend_rare(int head_dim) {
  for_dims(head_dim, [&](auto dims) {
    TOPKV_CUDA(cudaFuncSetAttribute(rare_kernel<dims>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    sizeof(RareTile<dims>)));
  });
}

}  // namespace topkv::gpu
