// The looks of a choice (block_choice.h), for any way to multiply samples and keys.
//
// A tiling T has, beside its sizes, a type Sources of what a kernel is given to read, and a type
// Scorer: scorer.score(what, form, count of keys, count of blocks, blocks, use) calls use(number,
// scores) for each of some blocks of 64 keys, blocks(number). The scores are those of a tile of
// samples, unscaled and not capped, in the registers of four warps: 16 * frags rows each, as
// mma.m16n8k16 has them.
#pragma once

#include <cmath>

#include "gpu/attention/block_choice.cuh"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {

inline constexpr int entry_splits = 8;  // blocks that share the entries of a piece
inline constexpr int form_count = 3;    // of queries: QueryForm in src/attention/chunk_passes.h

enum class Scored : bool { means, keys };
enum class LookNumber : bool { first, second };

/// Some samples of a piece.
struct SampleTile {
  int kv_head;
  int first;  ///< number of the first sample
  int count;  ///< the samples of the piece
};

/// The maximum, or the sum, of a row: of the four lanes that share it.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(all_lanes, x, 1);
  return x + __shfl_xor_sync(all_lanes, x, 2);
}

template <class T>
__device__ __forceinline__ void cap(const ChoiceTask& task, float (&scores)[T::frags][8][4]) {
  if (task.cap <= 0.0F) return;
  AttentionTask of;
  of.cap = task.cap;
  of.cap_rate = task.cap_rate;
  cap_scores<T>(of, scores);
}

/// The first look. Grid: (pieces, kv_heads, tiles of samples).
template <class T>
__global__ void __launch_bounds__(T::threads, T::blocks_per_sm)
    first_look_kernel(const __grid_constant__ ChoiceTask task,
                      const __grid_constant__ typename T::Sources sources, int first_piece) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ float column_sums[4][block_keys];
  const Piece piece(task, first_piece + static_cast<int>(blockIdx.x));
  if (!piece.chooses(task)) return;
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t at = blockIdx.x * task.kv_heads + kv_head;
  const SampleTile tile{kv_head, static_cast<int>(blockIdx.z) * T::tile_rows,
                        piece.sampled() * task.group};
  if (tile.first >= tile.count) return;  // keep_kernel counts tiles as here
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
  const int lane_row = static_cast<int>(threadIdx.x) % 32 / 4;
  const int warp_row = tile.first + static_cast<int>(threadIdx.x) / 32 * 16 * T::frags;
  typename T::Scorer scorer(task, sources, piece, tile, shared_address(shared));

  // Calls use(first of 64 candidates, scores) for the candidates of each form. Others that share
  // their tile have scores of -inf.
  const auto each_tile = [&](const auto& use) {
#pragma unroll 1
    for (int form = 0; form < form_count; ++form) {
      const BlockRange met = piece.met_by(form);
      const int begin = max(met.begin, piece.sinks);
      const int end = min(met.end, piece.local);
      if (begin >= end) continue;
      const int first = begin / block_keys;
      scorer.score(
          Scored::means, form, piece.local, (end - 1) / block_keys + 1 - first,
          [first](int i) { return first + i; },
          [&](int i, float(&scores)[T::frags][8][4]) {
            cap<T>(task, scores);
            const int tile_begin = (first + i) * block_keys;
            if (tile_begin < begin || tile_begin + block_keys > end) {
#pragma unroll
              for (int n = 0; n < 8; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                  const int block = tile_begin + n * 8 + column + e;
                  if (block >= begin && block < end) continue;
#pragma unroll
                  for (int f = 0; f < T::frags; ++f) {
                    scores[f][n][e] = -INFINITY;
                    scores[f][n][2 + e] = -INFINITY;
                  }
                }
              }
            }
            use(tile_begin, BlockRange{begin, end}, scores);
          });
    }
  };

  float high[T::frags][2];
  float sum[T::frags][2];
#pragma unroll
  for (int f = 0; f < T::frags; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      high[f][half] = -INFINITY;
      sum[f][half] = 0.0F;
    }
  }
  each_tile([&](int /*begin*/, const BlockRange& /*of*/, float(&scores)[T::frags][8][4]) {
#pragma unroll
    for (int f = 0; f < T::frags; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float now = high[f][half];
#pragma unroll
        for (int n = 0; n < 8; ++n)
          now = fmaxf(now, fmaxf(scores[f][n][half * 2], scores[f][n][half * 2 + 1]));
        now = row_max(now);
        const float offset = now == -INFINITY ? 0.0F : now * task.scale_log2;
        sum[f][half] *= exp2_fast(high[f][half] * task.scale_log2 - offset);
        high[f][half] = now;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          sum[f][half] += exp2_fast(scores[f][n][half * 2] * task.scale_log2 - offset) +
                          exp2_fast(scores[f][n][half * 2 + 1] * task.scale_log2 - offset);
        }
      }
    }
  });
  float lse_log2[T::frags][2];
#pragma unroll
  for (int f = 0; f < T::frags; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      lse_log2[f][half] = high[f][half] * task.scale_log2 + log2f(row_sum(sum[f][half]));
      const int sample = warp_row + f * 16 + half * 8 + lane_row;
      if (column == 0 && sample < tile.count)
        task.mean_lse[at * task.samples + sample] = lse_log2[f][half] * 0.693147181F;
    }
  }
  float* shares = task.shares + (at * task.sample_tiles + blockIdx.z) * task.most_blocks;
  each_tile([&](int begin, const BlockRange& of, float(&scores)[T::frags][8][4]) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float share = 0.0F;
#pragma unroll
        for (int f = 0; f < T::frags; ++f) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (warp_row + f * 16 + half * 8 + lane_row < tile.count) {
              share += exp2_fast(scores[f][n][half * 2 + e] * task.scale_log2 - lse_log2[f][half]);
            }
          }
        }
#pragma unroll
        for (int step = 4; step < 32; step *= 2) share += __shfl_xor_sync(all_lanes, share, step);
        if (lane_row == 0) column_sums[threadIdx.x / 32][n * 8 + column + e] = share;
      }
    }
    __syncthreads();
    const int block = begin + static_cast<int>(threadIdx.x);
    if (threadIdx.x < block_keys && block >= of.begin && block < of.end) {
      shares[block] = column_sums[0][threadIdx.x] + column_sums[1][threadIdx.x] +
                      column_sums[2][threadIdx.x] + column_sums[3][threadIdx.x];
    }
    // The next tile's barrier comes before column_sums are written again.
  });
}

/// The second look. Grid: (pieces, kv_heads, splits of the entries * tiles of samples).
template <class T>
__global__ void __launch_bounds__(T::threads, T::blocks_per_sm)
    second_look_kernel(const __grid_constant__ ChoiceTask task,
                       const __grid_constant__ typename T::Sources sources, int first_piece) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Piece piece(task, first_piece + static_cast<int>(blockIdx.x));
  if (!piece.chooses(task)) return;
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t at = blockIdx.x * task.kv_heads + kv_head;
  const SampleTile tile{kv_head, static_cast<int>(blockIdx.z) / entry_splits * T::tile_rows,
                        piece.sampled() * task.group};
  if (tile.first >= tile.count) return;
  const int entry_count = task.entry_counts[at * 2 + 1];
  const int each = (entry_count + entry_splits - 1) / entry_splits;
  const int split_begin = static_cast<int>(blockIdx.z) % entry_splits * each;
  const int split_end = min(split_begin + each, entry_count);
  const int* entries = task.entries + at * task.most_entries;
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
  const int lane_row = static_cast<int>(threadIdx.x) % 32 / 4;
  const int warp_row = tile.first + static_cast<int>(threadIdx.x) / 32 * 16 * T::frags;
  typename T::Scorer scorer(task, sources, piece, tile, shared_address(shared));

  const auto use = [&](int entry, float(&scores)[T::frags][8][4]) {
    float mean[T::frags][2];
#pragma unroll
    for (int f = 0; f < T::frags; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = 0.0F;
#pragma unroll
        for (int n = 0; n < 8; ++n) sum += scores[f][n][half * 2] + scores[f][n][half * 2 + 1];
        mean[f][half] = row_sum(sum) / block_keys;
      }
    }
    cap<T>(task, scores);
    const int key = entries[entry] * block_keys;
#pragma unroll
    for (int f = 0; f < T::frags; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int sample = warp_row + f * 16 + half * 8 + lane_row;
        const bool valid = sample < tile.count;
        if (key + block_keys > piece.first + 1) {  // some sample does not see all of the block
          const int position = task.first + piece.sample(valid ? sample / task.group : 0);
#pragma unroll
          for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              if (key + n * 8 + column + e > position) scores[f][n][half * 2 + e] = -INFINITY;
            }
          }
        }
        float high = -INFINITY;
#pragma unroll
        for (int n = 0; n < 8; ++n)
          high = fmaxf(high, fmaxf(scores[f][n][half * 2], scores[f][n][half * 2 + 1]));
        high = row_max(high);
        const float offset = high == -INFINITY ? 0.0F : high * task.scale_log2;
        float sum = 0.0F;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          sum += exp2_fast(scores[f][n][half * 2] * task.scale_log2 - offset) +
                 exp2_fast(scores[f][n][half * 2 + 1] * task.scale_log2 - offset);
        }
        sum = row_sum(sum);
        if (!valid || column != 0) continue;
        const std::int64_t place = (at * task.samples + sample) * task.most_entries + entry;
        task.entry_lse[place] = high == -INFINITY ? -INFINITY : high * task.scale + logf(sum);
        float of_mean = mean[f][half];
        if (task.cap > 0.0F) {
          of_mean = task.cap -
                    2.0F * task.cap * reciprocal_fast(exp2_fast(of_mean * task.cap_rate) + 1.0F);
        }
        task.entry_mean[place] = of_mean * task.scale;
      }
    }
  };
  // Entries that follow each other and meet one form.
  for (int begin = split_begin, end = 0; begin < split_end; begin = end) {
    const int form = piece.form_of(entries[begin]);
    end = begin + 1;
    if (piece.own == 0) end = split_end;  // all are of the first chunk
    while (end < split_end && piece.form_of(entries[end]) == form) ++end;
    scorer.score(
        Scored::keys, form, task.first + piece.end, end - begin,
        [entries, begin](int i) { return entries[begin + i]; },
        [&](int i, float(&scores)[T::frags][8][4]) { use(begin + i, scores); });
  }
}

/// Lets a kernel have its shared memory on the current device.
template <class Kernel>
void prepare(Kernel* kernel, int bytes, int& prepared_for) {
  int device = 0;
  TOPKV_CUDA(cudaGetDevice(&device));
  if (device == prepared_for) return;
  TOPKV_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  prepared_for = device;
}

template <class T>
void look(const ChoiceTask& task, const typename T::Sources& sources, int first_piece,
          unsigned pieces, cudaStream_t stream, LookNumber number) {
  thread_local int prepared_first = -1;
  thread_local int prepared_second = -1;
  const auto kv_heads = static_cast<unsigned>(task.kv_heads);
  const auto tiles = static_cast<unsigned>((task.samples - 1) / T::tile_rows + 1);
  if (number == LookNumber::first) {
    prepare(first_look_kernel<T>, T::shared_bytes, prepared_first);
    first_look_kernel<T><<<dim3(pieces, kv_heads, tiles), T::threads, T::shared_bytes, stream>>>(
        task, sources, first_piece);
    check_launch("first look");
    return;
  }
  prepare(second_look_kernel<T>, T::shared_bytes, prepared_second);
  second_look_kernel<T>
      <<<dim3(pieces, kv_heads, entry_splits * tiles), T::threads, T::shared_bytes, stream>>>(
          task, sources, first_piece);
  check_launch("second look");
}

}  // namespace topkv::gpu
