// Attention over the rows that a scan lists, where they lie in device memory. Only for .cu files.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#include "gpu/attention/key_bias.cuh"
#include "gpu/codes/code_merge.cuh"
#include "gpu/codes/code_score.cuh"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {

/// What attend_listed_part keeps in shared memory, besides the queries, for rows of D dims at most.
template <int D>
struct ListedShared {
  static constexpr int tile = D > many_dims ? 8 : D > few_dims ? 32 : 64;  // rows at once
  int count;                                                               // of the part's rows
  int positions[most_listed];                                              // in any order
  std::uint16_t order[most_listed];                                        // by position
  alignas(16) float values[tile][D];
  float scores[code_group][tile];
  float weights[tile][code_group];
  float high[code_group], mass[code_group], before[code_group];
};

template <int D>
__host__ __device__ constexpr int listed_shared_bytes(int forms) {
  return static_cast<int>(sizeof(ListedShared<D>) + sizeof(float) * forms * code_group * D);
}

/// Four elements of a vector as they are stored, the first of them a multiple of four. Loading
/// converts nothing, so that loads of many rows are on their way at once.
struct StoredFour {
  uint2 bits;
  unsigned scale;  // of q8 and q4: what the block begins with

  __device__ __forceinline__ void load(const std::byte* vector, DType type, int i) {
    constexpr int block_elements = 32;  // of q8 and q4
    const int at = i % block_elements;
    if (type == DType::bf16) {
      bits = *reinterpret_cast<const uint2*>(vector + i * 2);
    } else if (type == DType::q8) {
      const auto* block = reinterpret_cast<const std::uint16_t*>(vector + i / block_elements * 34);
      scale = block[0];
      bits = {block[1 + at / 2], block[2 + at / 2]};
    } else {
      const auto* block = reinterpret_cast<const unsigned*>(vector + i / block_elements * 20);
      scale = block[0];
      bits.x = block[1 + at % 16 / 4];
    }
  }

  __device__ __forceinline__ float4 as(DType type, int i) const {
    if (type == DType::bf16) return {low(bits.x), high(bits.x), low(bits.y), high(bits.y)};
    const float2 of_block = __half22float2(*reinterpret_cast<const __half2*>(&scale));
    if (type == DType::q8) {
      const auto byte = [&](unsigned pair, int shift) {
        return static_cast<float>(static_cast<signed char>(pair >> shift)) * of_block.x;
      };
      return {byte(bits.x, 0), byte(bits.x, 8), byte(bits.y, 0), byte(bits.y, 8)};
    }
    const unsigned nibbles = i % 32 < 16 ? bits.x : bits.x >> 4;
    const auto nibble = [&](int shift) {
      return fmaf(static_cast<float>(nibbles >> shift & 15), of_block.x, of_block.y);
    };
    return {nibble(0), nibble(8), nibble(16), nibble(24)};
  }
};

/// Sums of eight numbers of each lane over a warp: lane i has that of number i % 8.
__device__ __forceinline__ float warp_sums(float (&x)[code_group]) {
  static_assert(code_group == 8);
  const int lane = static_cast<int>(threadIdx.x) % warp;
#pragma unroll
  for (int half = code_group / 2; half >= 1; half /= 2) {
    const bool upper = (lane & half) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float other = __shfl_xor_sync(all_lanes, upper ? x[i] : x[i + half], half);
      x[i] = (upper ? x[i + half] : x[i]) + other;
    }
  }
  x[0] += __shfl_xor_sync(all_lanes, x[0], 8);
  return x[0] + __shfl_xor_sync(all_lanes, x[0], 16);
}

/// One part of the rows that a KV head's lists have, for all heads of the group: a block. A row's
/// part depends on its position alone, and a part's rows are added in the order of positions, so
/// that the result does not depend on the order in which they were listed.
///
/// number: scan_listed_parts * KV head + part; memory: listed_shared_bytes of shared memory.
template <int D, int threads>
__device__ void attend_listed_part(const CodeScan& scan, int number, std::uint8_t* memory) {
  using Shared = ListedShared<D>;
  auto& shared = *reinterpret_cast<Shared*>(memory);
  auto* const queries = reinterpret_cast<float*>(memory + sizeof(Shared));
  constexpr int fours = (D + 4 * warp - 1) / (4 * warp);  // of a row's elements, of a lane
  constexpr int warps = threads / warp;
  constexpr int tile = Shared::tile;
  constexpr int at_once = (tile + warps - 1) / warps;  // rows of a warp
  static_assert(warps >= code_group, "a warp finds the weights of a head");
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  const int warp_id = thread / warp;
  const int head = number / scan_listed_parts;
  const int part = number % scan_listed_parts;
  const int dim = scan.head_dim;
  const int group = scan.group;
  const ListedRows& rows = scan.listed_rows;
  for (int i = thread; i < scan.forms * code_group * D; i += threads) {
    const int g = i / D % code_group;
    const int d = i % D;
    queries[i] =
        g < group && d < dim ? scan.scale * query_of(scan, i / (code_group * D), head, g)[d] : 0.0F;
  }
  if (thread < code_group) {
    shared.high[thread] = -INFINITY;
    shared.mass[thread] = 0;
  }
  if (thread == 0) shared.count = 0;
  wait_for_previous_kernel();

  const int* const list =
      scan.token[0].found + static_cast<std::int64_t>(head) * (1 + scan.capacity);
  const int listed = list[0];
  int position = thread < scan.capacity ? list[1 + thread] : 0;  // asked for beside their number
  __syncthreads();
  for (int i = thread; i < listed;) {
    if (list_of(position, scan_listed_parts) == part)
      shared.positions[atomicAdd(&shared.count, 1)] = position;
    i += threads;
    if (i < listed) position = list[1 + i];
  }
  __syncthreads();
  const int count = shared.count;
  for (int i = thread; i < count; i += threads) {
    const int mine = shared.positions[i];
    int rank = 0;
    for (int j = 0; j < count; ++j) rank += shared.positions[j] < mine ? 1 : 0;
    shared.order[rank] = static_cast<std::uint16_t>(i);
  }
  __syncthreads();

  const std::byte* const keys = rows.keys + head * rows.head_bytes;
  const std::byte* const values = rows.values + head * rows.head_bytes;
  const SoftCap cap(scan.softcap);
  constexpr int outputs = code_group * D / threads;
  float sums[outputs] = {};
#pragma unroll 1
  for (int first = 0; first < count; first += tile) {
    const int of_tile = min(tile, count - first);
    int at[at_once];
    StoredFour key[at_once][fours];
    StoredFour value[at_once][fours];
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
      const int row = r * warps + warp_id;
      at[r] = row < of_tile ? shared.positions[shared.order[first + row]] : -1;
#pragma unroll
      for (int f = 0; f < fours; ++f) {
        const int i = 4 * (f * warp + lane);
        if (at[r] < 0 || i >= dim) continue;
        key[r][f].load(keys + at[r] * rows.key_bytes, rows.key_type, i);
        value[r][f].load(values + at[r] * rows.value_bytes, rows.value_type, i);
      }
    }
#pragma unroll
    for (int r = 0; r < at_once; ++r) {
      const int row = r * warps + warp_id;
      if (at[r] < 0) continue;
      int form = 0;
      while (form + 1 < scan.forms && at[r] < rows.form_begin[form]) ++form;
      const float* const query = queries + form * code_group * D;
      float score[code_group] = {};
#pragma unroll
      for (int f = 0; f < fours; ++f) {
        const int i = 4 * (f * warp + lane);
        if (i >= dim) continue;
        store4(&shared.values[row][i], value[r][f].as(rows.value_type, i));
        float4 k = key[r][f].as(rows.key_type, i);
        if (rows.stored.channels != nullptr) {
          const float* const channel = rows.stored.channels + head * dim + i;
          k = {k.x * channel[0], k.y * channel[1], k.z * channel[2], k.w * channel[3]};
        }
        if (rows.stored.bias != nullptr) {
          const auto bias = [&](int e) {
            return turned_bias(rows.stored, dim, head, at[r], i + e);
          };
          k = {k.x + bias(0), k.y + bias(1), k.z + bias(2), k.w + bias(3)};
        }
#pragma unroll
        for (int g = 0; g < code_group; ++g) {
          const float4 q = load4(query + g * D + i);
          score[g] = fmaf(q.x, k.x, fmaf(q.y, k.y, fmaf(q.z, k.z, fmaf(q.w, k.w, score[g]))));
        }
      }
      float whole = warp_sums(score);
      if (scan.softcap > 0) whole = cap.of(whole);
      if (lane < code_group) shared.scores[lane][row] = whole;
    }
    __syncthreads();
    if (warp_id < code_group) {
      const int g = warp_id;
      constexpr int per_lane = (tile + warp - 1) / warp;
      float score[per_lane];
      float most = -INFINITY;
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        const int row = i * warp + lane;
        score[i] = row < of_tile ? shared.scores[g][row] : -INFINITY;
        most = fmaxf(most, score[i]);
      }
      most = fmaxf(shared.high[g], warp_max(most));
      float mass = 0;
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        const int row = i * warp + lane;
        const float weight = expf(score[i] - most);
        if (row < tile) shared.weights[row][g] = weight;
        mass += weight;
      }
      mass = warp_sum(mass);
      if (lane == 0) {
        shared.before[g] = expf(shared.high[g] - most);
        shared.mass[g] = shared.mass[g] * shared.before[g] + mass;
        shared.high[g] = most;
      }
    }
    __syncthreads();
#pragma unroll
    for (int o = 0; o < outputs; ++o) {
      const int g = (thread + o * threads) / D;
      const int d = (thread + o * threads) % D;
      sums[o] *= shared.before[g];
#pragma unroll 4
      for (int row = 0; row < of_tile; ++row)
        sums[o] = fmaf(shared.weights[row][g], shared.values[row][d], sums[o]);
    }
    __syncthreads();  // all have read the tile
  }

  const int heads = scan.kv_heads * group;
#pragma unroll
  for (int o = 0; o < outputs; ++o) {
    const int g = (thread + o * threads) / D;
    const int d = (thread + o * threads) % D;
    if (g >= group || d >= dim) continue;
    const float mass = shared.mass[g];
    const int of = part * heads + head * group + g;
    scan.listed_parts.out[static_cast<std::int64_t>(of) * dim + d] =
        mass > 0 ? sums[o] / mass : 0.0F;
    if (d == 0) scan.listed_parts.lse[of] = mass > 0 ? shared.high[g] + logf(mass) : -INFINITY;
  }
  const bool last = merge_parts<scan_listed_parts, threads>(scan, head, scan.listed_parts,
                                                            scan.listed_arrived, rows.to);
  if (last && thread == 0) atomicAdd(rows.attended, static_cast<double>(listed));
}

}  // namespace topkv::gpu
