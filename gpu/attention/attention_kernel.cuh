// The attention kernel: online softmax over key tiles that stay in registers between the two
// products (Dao 2023, algorithm 1).
//
// A block takes a tile of rows of one KV head. A row is a pair of a token and a query head of the
// group, row = token * group + g. All heads of a group thus share each tile of K and V. If there
// are many rows, the warps split the rows. If there are few, the warps split the keys of each tile,
// and merge at the end. The blocks of a cluster may also split the key tiles. K and V are copied
// one tile before their use.
//
// The registers of a warp do not hold the results of heads of more than 256 dims. Several warps
// then share rows and keys. Each computes a part of the columns of V, and the products of a part of
// the dims of Q and K, which they add up.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "gpu/attention/attention.h"
#include "gpu/runtime/mma.cuh"

namespace topkv::gpu {

/// The arguments of attend(), with positions relative to the first row, in 32 bits.
struct AttentionTask {
  const __nv_bfloat16* queries;
  const __nv_bfloat16* keys;
  const __nv_bfloat16* values;
  float* out;
  float* lse;
  std::int64_t head_stride;
  const __nv_bfloat16* keys_behind;
  const __nv_bfloat16* values_behind;
  std::int64_t stride_behind;
  std::int64_t rows;  ///< tokens * group
  int group;
  int q_heads;
  int count;
  int split;  ///< rows from this number on lie in the second blocks of DeviceRows
  /// Token t sees key i < min(count, t + end) for which i < sinks or i >= t + begin.
  int end;
  int begin;
  int sinks;
  float scale;
  float scale_log2;  ///< scale / ln 2
  float cap;         ///< softcap / scale, the bound of unscaled scores; 0: no cap
  float cap_rate;    ///< 2 / (cap ln 2)
  bool merge;
};

/// Returns the arguments. Throws as attend() does for what there is no kernel for.
AttentionTask attention_task(const LayerHeads& heads, const QueryView<__nv_bfloat16>& queries,
                             const DeviceRows& rows, const DeviceVisibility& visible,
                             const PartialView& partial, Into into);

/// Where the values of a tile lie in shared memory: behind its keys, or there are none apart from
/// the keys.
enum class Values : bool { behind_keys, are_keys };

/// frags: 16-row fragments of a warp. column_warps: the warps that share rows and keys, and split
/// the columns of V. Shared memory holds the queries and two stages of K and V.
template <int head_dim_, int frags_, int row_warps_, int key_warps_, int tile_keys_, int residency,
          int column_warps_ = 1, Values values_ = Values::behind_keys>
struct AttentionTiling {
  static constexpr int head_dim = head_dim_;
  static constexpr int frags = frags_;
  static constexpr int row_warps = row_warps_;
  static constexpr int key_warps = key_warps_;
  static constexpr int tile_keys = tile_keys_;
  static constexpr int blocks_per_sm = residency;
  static constexpr int column_warps = column_warps_;
  static constexpr bool has_values = values_ == Values::behind_keys;
  static constexpr int warps = row_warps * key_warps * column_warps;
  static constexpr int threads = 32 * warps;
  static constexpr int warp_columns = head_dim / column_warps;
  static constexpr int tile_rows = 16 * frags * row_warps;
  static constexpr int warp_keys = tile_keys / key_warps;
  static constexpr bool splits_keys = row_warps == 1;

  using Shared = SharedRows<head_dim>;
  static constexpr int query_bytes = tile_rows * Shared::row_bytes;
  static constexpr int tile_bytes = tile_keys * Shared::row_bytes;
  static constexpr int stage_bytes = (has_values ? 2 : 1) * tile_bytes;
  /// The products that a warp gives away: of half its keys, a float4 per lane and fragment.
  static constexpr int given_floats4 =
      column_warps == 1 ? 0 : 32 * frags * (tile_keys / key_warps / 16);
  static constexpr int exchange_bytes = 16 * warps * given_floats4;
  static constexpr int exchange = query_bytes + 2 * stage_bytes;  ///< where it begins
  static constexpr int shared_bytes = exchange + exchange_bytes;

  /// Partials of the key warps, the first of which becomes the block's. They use all shared memory
  /// after the last tile: sums [tile_rows, sum_stride], maxima [tile_rows], weights [tile_rows].
  static constexpr int sum_stride = head_dim + 8;  // so that 4 rows of float2 lie in other banks
  static constexpr int partial_floats = tile_rows * (sum_stride + 2);
  static_assert(splits_keys ? frags == 1 && key_warps <= 32 : key_warps == 1);
  static_assert(!splits_keys || key_warps * partial_floats * 4 <= shared_bytes);
  static_assert(column_warps <= 2 && head_dim % column_warps == 0 && warp_columns % 16 == 0);
  static_assert(warp_keys % 16 == 0);
  static_assert(tile_keys * Shared::chunks % threads == 0);
  static_assert(shared_bytes <= 99 * 1024, "what a block of sm_86, sm_89 and sm_120 may have");
};

/// A warp's running softmax, for rows lane / 4 and lane / 4 + 8 of each fragment. `out` has the
/// warp's columns. `sum` covers only this lane's keys; `max` is the maximum of unscaled scores.
template <class T>
struct Running {
  float out[T::frags][T::warp_columns / 8][4];
  float max[T::frags][2];
  float sum[T::frags][2];
};

/// The rows of a block.
struct RowTile {
  int token;  ///< of row 0
  int head;   ///< of row 0 within its group
  int kv_head;
  int rows;

  __device__ __forceinline__ int token_of(int row, int group) const {
    return token + (head + row) / group;
  }
  /// Index into [tokens, q_heads].
  __device__ __forceinline__ std::int64_t head_index(int row, const AttentionTask& task) const {
    const int token_offset = (head + row) / task.group;
    return static_cast<std::int64_t>(token + token_offset) * task.q_heads + kv_head * task.group +
           (head + row - token_offset * task.group);
  }
};

/// The key tiles that a row of a block sees: tiles of the sinks, then tiles from `window` on.
struct KeyTiles {
  int sinks;
  int window;
  int count;

  __device__ __forceinline__ int operator[](int i) const {
    return i < sinks ? i : i - sinks + window;
  }
};

/// The place of this thread's warp: which of the warps that split the columns, and which of those
/// that split rows or keys.
template <class T>
struct WarpPlace {
  int columns = static_cast<int>(threadIdx.x) / 32 % T::column_warps;
  int part = static_cast<int>(threadIdx.x) / 32 / T::column_warps;
};

struct Bounds {
  int end_min, end_max, begin_min, begin_max;  ///< over the rows of a block
};

template <class T>
__device__ __forceinline__ KeyTiles key_tiles(const Bounds& bounds, int sinks) {
  KeyTiles tiles;
  const int end = (bounds.end_max + T::tile_keys - 1) / T::tile_keys;
  tiles.sinks = min((min(sinks, bounds.end_max) + T::tile_keys - 1) / T::tile_keys, end);
  tiles.window = max(bounds.begin_min / T::tile_keys, tiles.sinks);
  tiles.count = tiles.sinks + max(end - tiles.window, 0);
  return tiles;
}

/// Begins the copy of one tile of K and V to `stage`. Rows past the count become zeros, because the
/// memory there may hold NaN.
template <class T>
__device__ __forceinline__ void copy_tile(const AttentionTask& task, int kv_head, int tile,
                                          int count, std::uint32_t stage) {
  constexpr int chunks = T::Shared::chunks;
  const unsigned thread = compute_here(threadIdx.x);
  const std::int64_t head = compute_here(kv_head);
  const std::int64_t front = head * task.head_stride;
  const std::int64_t back = head * task.stride_behind - std::int64_t{task.split} * T::head_dim;
#pragma unroll
  for (unsigned step = 0; step < T::tile_keys * chunks / T::threads; ++step) {
    // Where a step is whole rows, written so that the steps differ by constants.
    constexpr bool whole = T::threads % chunks == 0;
    const unsigned index = step * T::threads + thread;
    const int row =
        static_cast<int>(whole ? thread / chunks + step * (T::threads / chunks) : index / chunks);
    const int chunk = static_cast<int>((whole ? thread : index) % chunks);
    const int key = tile * T::tile_keys + row;
    const bool valid = key < count;
    const int number = valid ? key : 0;
    const bool behind = number >= task.split;
    const std::int64_t from =
        (behind ? back : front) + static_cast<std::int64_t>(number) * T::head_dim + chunk * 8;
    const std::uint32_t to = stage + T::Shared::offset(row, chunk);
    copy_async(to, (behind ? task.keys_behind : task.keys) + from, valid);
    if constexpr (T::has_values)
      copy_async(to + T::tile_bytes, (behind ? task.values_behind : task.values) + from, valid);
  }
}

template <class T>
__device__ __forceinline__ void copy_queries(const AttentionTask& task, const RowTile& rows,
                                             std::uint32_t to) {
  constexpr int chunks = T::Shared::chunks;
  for (int index = static_cast<int>(threadIdx.x); index < T::tile_rows * chunks;
       index += T::threads) {
    const int row = index / chunks;
    const int chunk = index % chunks;
    const bool valid = row < rows.rows;
    const std::int64_t from = rows.head_index(valid ? row : 0, task) * T::head_dim + chunk * 8;
    copy_async(to + T::Shared::offset(row, chunk), task.queries + from, valid);
  }
}

/// Computes scores = Q K^T for this warp's rows, keys and part of the dims, unscaled. queries,
/// keys: the lane's ldmatrix addresses, at the first of these dims.
template <class T, int key_frags>
__device__ __forceinline__ void multiply_keys(std::uint32_t queries, std::uint32_t keys,
                                              float (&scores)[T::frags][key_frags][4]) {
  using S = typename T::Shared;
#pragma unroll
  for (int f = 0; f < T::frags; ++f) {
#pragma unroll
    for (int n = 0; n < key_frags; ++n) {
#pragma unroll
      for (float& score : scores[f][n]) score = 0.0F;
    }
  }
#pragma unroll
  for (int k = 0; k < T::warp_columns / 16; ++k) {
    std::uint32_t a[T::frags][4];
#pragma unroll
    for (int f = 0; f < T::frags; ++f)
      load_matrices(a[f], S::advance(queries, k) + f * 16 * S::row_bytes);
#pragma unroll
    for (int n = 0; n < key_frags; n += 2) {
      std::uint32_t b[4];
      load_matrices(b, S::advance(keys, k) + n * 8 * S::row_bytes);
#pragma unroll
      for (int f = 0; f < T::frags; ++f) {
        mma(scores[f][n], a[f], b[0], b[1]);
        mma(scores[f][n + 1], a[f], b[2], b[3]);
      }
    }
  }
}

/// Adds the scores of the two warps that share rows and keys: each has those of half the dims. A
/// warp adds up half of the keys and takes the sums of the others, so that both have the same bits.
template <class T, int key_frags>
__device__ __forceinline__ void add_halves(std::uint32_t shared,
                                           float (&scores)[T::frags][key_frags][4]) {
  constexpr int half = key_frags / 2;
  const WarpPlace<T> warp;
  const bool second = warp.columns == 1;  // it adds up the second half
  float4* begin = static_cast<float4*>(__cvta_shared_to_generic(shared + T::exchange)) +
                  warp.part * 2 * T::given_floats4 + threadIdx.x % 32;
  float4* mine = begin + (second ? T::given_floats4 : 0);
  float4* other = begin + (second ? 0 : T::given_floats4);
  const auto sync = [&] {  // of these two warps
    asm volatile("bar.sync %0, 64;" ::"r"(1 + warp.part) : "memory");
  };
  const auto pick = [](bool first, const float(&a)[4], const float(&b)[4]) {
    return make_float4(first ? a[0] : b[0], first ? a[1] : b[1], first ? a[2] : b[2],
                       first ? a[3] : b[3]);
  };
  const auto put = [](float(&to)[4], bool change, const float4& x) {
    to[0] = change ? x.x : to[0];
    to[1] = change ? x.y : to[1];
    to[2] = change ? x.z : to[2];
    to[3] = change ? x.w : to[3];
  };
#pragma unroll
  for (int f = 0; f < T::frags; ++f) {
#pragma unroll
    for (int n = 0; n < half; ++n)
      other[(f * half + n) * 32] = pick(second, scores[f][n], scores[f][n + half]);
  }
  sync();
#pragma unroll
  for (int f = 0; f < T::frags; ++f) {
#pragma unroll
    for (int n = 0; n < half; ++n) {
      float4 sums = pick(!second, scores[f][n], scores[f][n + half]);
      float4& at = mine[(f * half + n) * 32];
      sums = make_float4(sums.x + at.x, sums.y + at.y, sums.z + at.z, sums.w + at.w);
      at = sums;
      put(scores[f][n], !second, sums);
      put(scores[f][n + half], second, sums);
    }
  }
  sync();
#pragma unroll
  for (int f = 0; f < T::frags; ++f) {
#pragma unroll
    for (int n = 0; n < half; ++n) {
      const float4 sums = other[(f * half + n) * 32];
      put(scores[f][n], second, sums);
      put(scores[f][n + half], !second, sums);
    }
  }
}

/// Computes cap * tanh(score / cap), by tanh x = 1 - 2 / (e^(2x) + 1), to cap * 2^-20.
template <class T, int key_frags>
__device__ __forceinline__ void cap_scores(const AttentionTask& task,
                                           float (&scores)[T::frags][key_frags][4]) {
#pragma unroll
  for (int f = 0; f < T::frags; ++f) {
#pragma unroll
    for (int n = 0; n < key_frags; ++n) {
#pragma unroll
      for (float& score : scores[f][n]) {
        // Where 2^x overflows, its inverse is 0; where it vanishes, 1.
        const float share = reciprocal_fast(exp2_fast(score * task.cap_rate) + 1.0F);
        score = fmaf(-2.0F * task.cap, share, task.cap);
      }
    }
  }
}

/// Sets the scores of keys that a row does not see to -inf. first_key: of this lane's columns; row:
/// of its rows.
template <class T, int key_frags>
__device__ __forceinline__ void mask(const AttentionTask& task, const RowTile& rows, int row,
                                     int first_key, int count,
                                     float (&scores)[T::frags][key_frags][4]) {
#pragma unroll
  for (int f = 0; f < T::frags; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = rows.token_of(row + f * 16 + half * 8, task.group);
      const int end = min(count, token + task.end);
      const int begin = token + task.begin;
#pragma unroll
      for (int n = 0; n < key_frags; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = first_key + n * 8 + e;
          if (key >= end || (key >= task.sinks && key < begin))
            scores[f][n][half * 2 + e] = -INFINITY;
        }
      }
    }
  }
}

/// Raises the running maxima to the scores' maxima. offsets: receives the value to subtract from
/// scaled scores.
template <class T, int key_frags>
__device__ __forceinline__ void raise_max(const AttentionTask& task,
                                          const float (&scores)[T::frags][key_frags][4],
                                          Running<T>& running, float (&offsets)[T::frags][2]) {
  float shrink[T::frags][2];
  bool changed = false;
#pragma unroll
  for (int f = 0; f < T::frags; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = running.max[f][half];
      float high = before;
#pragma unroll
      for (int n = 0; n < key_frags; ++n)
        high = fmaxf(high, fmaxf(scores[f][n][half * 2], scores[f][n][half * 2 + 1]));
      high = fmaxf(high, __shfl_xor_sync(0xffffffffU, high, 1));
      high = fmaxf(high, __shfl_xor_sync(0xffffffffU, high, 2));
      running.max[f][half] = high;
      // A row that has seen nothing yet keeps sums of 0: 2^(-inf - 0), never inf - inf.
      offsets[f][half] = high == -INFINITY ? 0.0F : __fmul_rn(high, task.scale_log2);
      // Not fused: an unchanged maximum must give exactly 1, however many tiles there are.
      shrink[f][half] = exp2_fast(__fmul_rn(before, task.scale_log2) - offsets[f][half]);
      changed = changed || high != before;
    }
  }
  if (!__any_sync(0xffffffffU, changed)) return;  // most tiles of a long row raise no maximum
#pragma unroll
  for (int f = 0; f < T::frags; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      running.sum[f][half] *= shrink[f][half];
#pragma unroll
      for (int d = 0; d < T::warp_columns / 8; ++d) {
        running.out[f][d][half * 2] *= shrink[f][half];
        running.out[f][d][half * 2 + 1] *= shrink[f][half];
      }
    }
  }
}

/// Computes out += 2^(scores) V, 16 keys at a time. values: the lane's ldmatrix address.
template <class T, int key_frags>
__device__ __forceinline__ void multiply_values(const AttentionTask& task, std::uint32_t values,
                                                const float (&scores)[T::frags][key_frags][4],
                                                const float (&offsets)[T::frags][2],
                                                Running<T>& running) {
  using S = typename T::Shared;
#pragma unroll
  for (int n = 0; n < key_frags; n += 2) {
    std::uint32_t a[T::frags][4];
#pragma unroll
    for (int f = 0; f < T::frags; ++f) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {  // rows: part % 2, keys: part / 2
        const int half = part % 2;
        const float(&score)[4] = scores[f][n + part / 2];
        const float low = exp2_fast(fmaf(score[half * 2], task.scale_log2, -offsets[f][half]));
        const float high = exp2_fast(fmaf(score[half * 2 + 1], task.scale_log2, -offsets[f][half]));
        running.sum[f][half] += low + high;
        a[f][part] = pack_bf16(low, high);
      }
    }
#pragma unroll
    for (int d = 0; d < T::warp_columns / 8; d += 2) {
      std::uint32_t b[4];
      load_matrices_transposed(b, S::advance(values, d / 2) + n * 8 * S::row_bytes);
#pragma unroll
      for (int f = 0; f < T::frags; ++f) {
        mma(running.out[f][d], a[f], b[0], b[1]);
        mma(running.out[f][d + 1], a[f], b[2], b[3]);
      }
    }
  }
}

/// What a block's rows see.
__device__ __forceinline__ Bounds bounds_of(const AttentionTask& task, const RowTile& rows) {
  const int first = rows.token_of(0, task.group);
  const int last = rows.token_of(rows.rows - 1, task.group);
  return {min(task.count, first + task.end), min(task.count, last + task.end),
          max(0, first + task.begin), max(0, last + task.begin)};
}

/// Loops over the key tiles `tiles`, which hold all keys that the block's rows see. rank, ranks:
/// this block takes every ranks-th tile from number `rank` on.
template <class T, class Tiles>
__device__ __forceinline__ void run_tiles(const AttentionTask& task, const RowTile& rows,
                                          const Bounds& bounds, const Tiles& tiles,
                                          std::uint32_t shared, int rank, int ranks,
                                          Running<T>& running) {
  using S = typename T::Shared;
  constexpr int key_frags = T::warp_keys / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const WarpPlace<T> warp;
  const int warp_row = T::splits_keys ? 0 : warp.part * 16 * T::frags;
  const int warp_key = T::splits_keys ? warp.part * T::warp_keys : 0;

  const int count = task.count;
  const std::uint32_t stages = shared + T::query_bytes;
  const int first_dims = warp.columns * (T::warp_columns / 16);
  const std::uint32_t query_address =
      S::advance(shared + S::offset(warp_row + lane % 16, lane / 16), first_dims);
  const std::uint32_t key_address =
      S::advance(stages + S::offset(warp_key + lane % 8 + lane / 16 * 8, lane / 8 % 2), first_dims);
  const std::uint32_t value_address =
      stages + (T::has_values ? T::tile_bytes : 0) +
      S::offset(warp_key + lane % 16, warp.columns * (T::warp_columns / 8) + lane / 16);

#pragma unroll
  for (int f = 0; f < T::frags; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      running.max[f][half] = -INFINITY;
      running.sum[f][half] = 0.0F;
    }
#pragma unroll
    for (int d = 0; d < T::warp_columns / 8; ++d) {
#pragma unroll
      for (float& x : running.out[f][d]) x = 0.0F;
    }
  }
  if (rank >= tiles.count) return;

  copy_queries<T>(task, rows, shared);
  copy_tile<T>(task, rows.kv_head, tiles[rank], count, stages);
  std::uint32_t stage = 0;
  for (int i = rank; i < tiles.count; i += ranks) {
    wait_copies();
    __syncthreads();  // the tile is here, and nobody reads the other stage any more
    if (i + ranks < tiles.count) {
      copy_tile<T>(task, rows.kv_head, tiles[i + ranks], count, stages + (stage ^ T::stage_bytes));
    }
    float scores[T::frags][key_frags][4];
    multiply_keys<T>(compute_here(query_address), key_address + stage, scores);
    if constexpr (T::column_warps > 1) add_halves<T>(shared, scores);
    if (task.cap > 0.0F) cap_scores<T>(task, scores);

    const int begin = tiles[i] * T::tile_keys;
    const int end = begin + T::tile_keys;
    const bool all_visible =
        end <= bounds.end_min && (end <= task.sinks || begin >= bounds.begin_max);
    if (!all_visible) {
      mask<T>(task, rows, compute_here(warp_row + lane / 4), begin + warp_key + lane % 4 * 2, count,
              scores);
    }
    float offsets[T::frags][2];
    raise_max<T>(task, scores, running, offsets);
    multiply_values<T>(task, value_address + stage, scores, offsets, running);
    stage ^= T::stage_bytes;
  }
}

/// Adds the sums of the four lanes that share a row.
template <class T>
__device__ __forceinline__ void sum_lanes(Running<T>& running) {
#pragma unroll
  for (int f = 0; f < T::frags; ++f) {
#pragma unroll
    for (float& sum : running.sum[f]) {
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
    }
  }
}

}  // namespace topkv::gpu
