#include <algorithm>
#include <cmath>

#include "bench/kernels/squeezed_rows.h"
#include "gpu/entries/entry_checks.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

constexpr int zero_rows = 256;    // what cuDNN may read at a time
constexpr int copied_rows = 256;  // by a block at a time
// Enough to fill a device: most rounds of pieces find none, and end sooner with fewer blocks.
constexpr std::int64_t most_blocks = 2048;

/// By one block: a running sum.
__global__ void __launch_bounds__(block)
    number_kernel(const int* counts, int head_steps, int rows, int* first) {
  __shared__ int of_warps[block / warp];
  await_previous();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  int before = 0;
  for (int at = 0; at < head_steps; at += block) {
    const int head_step = at + thread;
    int upto = head_step < head_steps ? (counts[head_step] + rows - 1) / rows : 0;
    const int mine = upto;
    for (int step = 1; step < warp; step *= 2) {
      const int other = __shfl_up_sync(all_lanes, upto, step);
      if (lane >= step) upto += other;
    }
    __syncthreads();
    if (lane == warp - 1) of_warps[thread / warp] = upto;
    __syncthreads();
    int total = 0;
    for (int w = 0; w < block / warp; ++w) {
      if (w < thread / warp) upto += of_warps[w];
      total += of_warps[w];
    }
    if (head_step < head_steps) first[head_step] = before + upto - mine;
    before += total;
  }
  if (thread == 0) first[head_steps] = before;
}

/// The head step that has a piece: the last whose pieces begin at or before it. REQUIRES: there is
/// such a piece.
__device__ __forceinline__ int head_step_of(const int* first, int head_steps, int piece) {
  int low = 0;
  int high = head_steps;  // first[low] <= piece < first[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first[middle] <= piece ? low : high) = middle;
  }
  return low;
}

/// What is copied of a piece: rows, of which each has so many chunks of 16 bytes.
template <int chunks>
struct PieceCopy {
  static constexpr int across = block / chunks;  // rows at the same time
  const SqueezedQueries& queries;
  const DeviceRows& rows;
  const ChosenEntries& chosen;
  const SqueezedPieces& pieces;
  int slot, head_step;
  int thread = static_cast<int>(threadIdx.x);
  int chunk = thread % chunks;

  /// Queries [begin, begin + copied_rows).
  __device__ void copy_queries(int begin) const {
    const auto group = static_cast<int>(queries.group);
    const auto vectors = static_cast<int>(queries.tokens) * group;
    const auto* from = reinterpret_cast<const uint4*>(queries.data) + chunk;
    auto* to =
        reinterpret_cast<uint4*>(pieces.queries) + std::int64_t{slot} * vectors * chunks + chunk;
    const int end = min(begin + copied_rows, vectors);
#pragma unroll 4
    for (int i = begin + thread / chunks; i < end; i += across) {
      const std::int64_t vector = (i / group * queries.head_steps + head_step) * group + i % group;
      to[std::int64_t{i} * chunks] = from[vector * chunks];
    }
  }

  /// Rows [begin, begin + copied_rows) of the piece, or zeros.
  __device__ void copy_rows(int begin) const {
    const int skip = (pieces.begin + slot - pieces.first[head_step]) * pieces.rows;
    const int count = min(pieces.rows, chosen.counts[head_step] - skip);
    if (begin == 0 && thread == 0) {
      pieces.tokens_of[slot] = static_cast<int>(queries.tokens);
      pieces.rows_of[slot] = count;
    }
    const int* entries = chosen.entries + head_step * chosen.capacity + skip;
    const std::int64_t base = head_step * rows.head_stride / 8 + chunk;
    const auto* keys = reinterpret_cast<const uint4*>(rows.keys) + base;
    const auto* values = reinterpret_cast<const uint4*>(rows.values) + base;
    const std::int64_t place = std::int64_t{slot} * pieces.rows * chunks + chunk;
    auto* to_keys = reinterpret_cast<uint4*>(pieces.keys) + place;
    auto* to_values = reinterpret_cast<uint4*>(pieces.values) + place;
    const int end = min(begin + copied_rows, (count + zero_rows - 1) / zero_rows * zero_rows);
#pragma unroll 4
    for (int i = begin + thread / chunks; i < end; i += across) {
      uint4 key{};
      uint4 value{};
      if (i < count) {
        const std::int64_t row = std::int64_t{entries[i]} * chunks;
        key = keys[row];
        value = values[row];
      }
      to_keys[std::int64_t{i} * chunks] = key;
      to_values[std::int64_t{i} * chunks] = value;
    }
  }
};

/// Blocks go through parts of pieces: some of rows, the others of queries.
template <int chunks>
__global__ void __launch_bounds__(block)
    pack_kernel(const SqueezedQueries queries, const DeviceRows rows, const ChosenEntries chosen,
                const SqueezedPieces pieces, int row_parts, int parts) {
  await_previous();
  const auto head_steps = static_cast<int>(queries.head_steps);
  const int there = max(0, min(pieces.slots, pieces.first[head_steps] - pieces.begin));
  if (blockIdx.x == 0) {
    for (int slot = there + static_cast<int>(threadIdx.x); slot < pieces.slots; slot += block)
      pieces.tokens_of[slot] = pieces.rows_of[slot] = 0;
  }
  for (std::int64_t item = blockIdx.x; item < std::int64_t{there} * parts; item += gridDim.x) {
    const auto slot = static_cast<int>(item / parts);
    const auto part = static_cast<int>(item % parts);
    const PieceCopy<chunks> copy{
        queries, rows, chosen,
        pieces,  slot, head_step_of(pieces.first, head_steps, pieces.begin + slot)};
    if (part < row_parts) {
      copy.copy_rows(part * copied_rows);
    } else {
      copy.copy_queries((part - row_parts) * copied_rows);
    }
  }
}

/// By a warp, `each` elements a lane: head `number` of all tokens' heads.
template <int each>
__device__ __forceinline__ void merge_head(const SqueezedQueries& queries,
                                           const SqueezedPieces& pieces, const PartialView& partial,
                                           bool merge, std::int64_t number) {
  const std::int64_t heads = queries.head_steps * queries.group;
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const std::int64_t token = number / heads;
  const std::int64_t head_step = number % heads / queries.group;
  const std::int64_t g = number % queries.group;
  const int begin = max(pieces.first[head_step], pieces.begin) - pieces.begin;
  const int end = min(pieces.first[head_step + 1], pieces.begin + pieces.slots) - pieces.begin;
  if (begin >= end && merge) return;
  constexpr int dim = each * warp;
  float* const out = partial.out + number * dim + lane * each;
  const float before = merge ? partial.lse[number] : -INFINITY;
  const auto lse_of = [&](int slot) {
    return pieces.partial.lse[(slot * queries.group + g) * queries.tokens + token];
  };
  float most = before;
  for (int slot = begin; slot < end; ++slot) most = fmaxf(most, lse_of(slot));
  float sum = 0;
  float x[each] = {};
  if (before != -INFINITY) {
    sum = __expf(before - most);
#pragma unroll
    for (int i = 0; i < each; ++i) x[i] = sum * out[i];
  }
  for (int slot = begin; slot < end; ++slot) {
    const float lse = lse_of(slot);
    if (lse == -INFINITY) continue;
    const float weight = __expf(lse - most);
    sum += weight;
    const __nv_bfloat16* from = pieces.partial.out +
                                ((slot * queries.tokens + token) * queries.group + g) * dim +
                                lane * each;
#pragma unroll
    for (int i = 0; i < each; i += 2) {
      const unsigned pair = *reinterpret_cast<const unsigned*>(from + i);
      x[i] += weight * low(pair);
      x[i + 1] += weight * high(pair);
    }
  }
  __syncwarp();  // all lanes have read what one writes now
  const float factor = sum > 0 ? 1 / sum : 0.0F;
#pragma unroll
  for (int i = 0; i < each; ++i) out[i] = factor * x[i];
  if (lane == 0) partial.lse[number] = sum > 0 ? most + logf(sum) : -INFINITY;
}

template <int each>
__global__ void __launch_bounds__(block)
    merge_kernel(const SqueezedQueries queries, const SqueezedPieces pieces,
                 const PartialView partial, bool merge) {
  await_previous();
  if (merge && pieces.first[queries.head_steps] <= pieces.begin) return;
  const std::int64_t count = queries.tokens * queries.head_steps * queries.group;
  const std::int64_t step = std::int64_t{gridDim.x} * block / warp;
  for (std::int64_t number =
           (std::int64_t{blockIdx.x} * block + static_cast<int>(threadIdx.x)) / warp;
       number < count; number += step)
    merge_head<each>(queries, pieces, partial, merge, number);
}

}  // namespace

void number_pieces(const int* counts, std::int64_t head_steps, const SqueezedPieces& pieces,
                   cudaStream_t stream) {
  launch_overlapped(number_kernel, dim3(1), block, 0, stream, counts, static_cast<int>(head_steps),
                    pieces.rows, pieces.first);
}

void pack_pieces(const SqueezedQueries& queries, const DeviceRows& rows,
                 const ChosenEntries& chosen, const SqueezedPieces& pieces, cudaStream_t stream) {
  const auto row_parts = static_cast<int>(all_blocks(pieces.rows, copied_rows));
  const int parts =
      row_parts + static_cast<int>(all_blocks(queries.tokens * queries.group, copied_rows));
  const auto blocks =
      static_cast<unsigned>(std::min(most_blocks, std::int64_t{parts} * pieces.slots));
  const auto launch = [&](auto kernel) {
    launch_overlapped(kernel, dim3(blocks), block, 0, stream, queries, rows, chosen, pieces,
                      row_parts, parts);
  };
  if (queries.head_dim == 64) {
    launch(pack_kernel<8>);
  } else {
    launch(pack_kernel<16>);
  }
}

void merge_pieces(const SqueezedQueries& queries, const SqueezedPieces& pieces,
                  const PartialView& partial, Into into, cudaStream_t stream) {
  const std::int64_t heads = queries.tokens * queries.head_steps * queries.group;
  const auto blocks =
      static_cast<unsigned>(std::min(most_blocks, std::int64_t{all_blocks(heads, block / warp)}));
  const auto launch = [&](auto kernel) {
    launch_overlapped(kernel, dim3(blocks), block, 0, stream, queries, pieces, partial,
                      into == Into::merge);
  };
  if (queries.head_dim == 64) {
    launch(merge_kernel<2>);
  } else {
    launch(merge_kernel<4>);
  }
}

}  // namespace topkv::gpu
