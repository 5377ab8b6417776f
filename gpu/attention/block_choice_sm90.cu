#include <cuda.h>

#include <cmath>
#include <string>

#include "gpu/attention/attention_parts.cuh"
#include "gpu/attention/block_choice.cuh"
#include "gpu/attention/block_choice_sm90.h"
#include "gpu/attention/block_looks.cuh"
#include "gpu/runtime/kernel_parts.cuh"
#include "gpu/runtime/wgmma.cuh"
#include "topkv/error.h"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error this file is for sm_90a alone (gpu/CMakeLists.txt)
#endif

namespace topkv::gpu {
namespace {

constexpr int tile_keys = block_keys;
constexpr int swizzle_alignment = 1024;                  // of a box
constexpr int box_elements = 64;                         // of a row: 128 bytes, which are swizzled
constexpr int box_bytes = tile_keys * box_elements * 2;  // 64 rows of a tile

/// Two warpgroups have 64 rows each, and a thread of a third copies. Queries stay in registers, K
/// and V come through a ring of stages in shared memory.
template <int head_dim_>
struct RingTiling {
  using Rows = AttentionTiling<head_dim_, 1, 8, 1, tile_keys, 1>;  // a warp has 16 rows
  static constexpr int head_dim = head_dim_;
  static constexpr int boxes = head_dim / box_elements;
  static constexpr int tile_bytes = boxes * box_bytes;
  static constexpr int stage_bytes = 2 * tile_bytes;
  static constexpr int stages = 4;
  static constexpr int row_warps = Rows::warps;
  static constexpr int threads = Rows::threads + 128;  // registers are moved by warpgroups
  static constexpr int copy_registers = 24;
  static constexpr int row_registers = 240;
  static constexpr int shared_bytes = stages * stage_bytes + swizzle_alignment;
  static_assert(boxes * box_elements == head_dim);
};

/// Rows, [kv_heads, rows, head_dim], in boxes of 64 rows and 64 elements.
struct RowMaps {
  CUtensorMap keys;
  CUtensorMap values;  ///< for attention
  CUtensorMap means;   ///< of blocks of keys, for the looks
};

__device__ __forceinline__ std::uint32_t align_stage(std::uint32_t shared) {
  return (shared + swizzle_alignment - 1) / swizzle_alignment * swizzle_alignment;
}

/// The descriptor of a matrix in swizzled boxes. next_box: bytes from a box to the next along the
/// elements of a row.
__device__ __forceinline__ std::uint64_t matrix_at(std::uint32_t address, int next_box) {
  constexpr std::uint64_t swizzled_128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t eight_rows = 8 * 128;
  return swizzled_128 | (eight_rows >> 4) << 32 | static_cast<std::uint64_t>(next_box >> 4) << 16 |
         (address & 0x3ffffU) >> 4;
}

/// Begins scores = Q K^T for the keys at `keys`.
template <class R>
__device__ __forceinline__ void begin_scores(const std::uint32_t (&queries)[R::head_dim / 16][4],
                                             std::uint32_t keys, float (&scores)[8][4]) {
#pragma unroll
  for (int k = 0; k < R::head_dim / 16; ++k) {
    warpgroup_mma<false>(scores, queries[k], matrix_at(keys + k / 4 * box_bytes + k % 4 * 32, 16),
                         k > 0 ? 1 : 0);
  }
}

/// Begins out += weights V for the values at `values`.
template <class R>
__device__ __forceinline__ void begin_sums(const std::uint32_t (&weights)[tile_keys / 16][4],
                                           std::uint32_t values, float (&out)[R::head_dim / 8][4]) {
#pragma unroll
  for (int k = 0; k < tile_keys / 16; ++k)
    warpgroup_mma<true>(out, weights[k], matrix_at(values + k * 16 * 128, box_bytes), 1);
}

/// Raises the maxima and sums of the rows by scores, and turns these into weights. shrink: the
/// factor of what was before.
template <class T>
__device__ __forceinline__ void weigh(const AttentionTask& task, float (&scores)[8][4],
                                      Running<T>& running, float (&shrink)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float before = running.max[0][half];
    float high = before;
#pragma unroll
    for (int n = 0; n < 8; ++n)
      high = fmaxf(high, fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffU, high, 1));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffU, high, 2));
    running.max[0][half] = high;
    // As raise_max has it.
    const float offset = high == -INFINITY ? 0.0F : __fmul_rn(high, task.scale_log2);
    shrink[half] = exp2_fast(__fmul_rn(before, task.scale_log2) - offset);
    float sum = 0.0F;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = half * 2; e < half * 2 + 2; ++e) {
        scores[n][e] = exp2_fast(fmaf(scores[n][e], task.scale_log2, -offset));
        sum += scores[n][e];
      }
    }
    running.sum[0][half] = running.sum[0][half] * shrink[half] + sum;
  }
}

/// The weights as products take them.
__device__ __forceinline__ void pack(const float (&scores)[8][4],
                                     std::uint32_t (&weights)[tile_keys / 16][4]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      weights[n / 2][n % 2 * 2 + half] = pack_bf16(scores[n][half * 2], scores[n][half * 2 + 1]);
  }
}

/// The thread that copies.
template <class R>
__device__ __forceinline__ void copy_tiles(const ListedRows& of, const RowMaps& maps,
                                           std::uint32_t stages, std::uint32_t full,
                                           std::uint32_t empty) {
  for (int i = 0; i < of.count; ++i) {
    const int stage = i % R::stages;
    if (i >= R::stages) wait_for(empty + stage * 8, (i / R::stages - 1) % 2);
    const std::uint32_t to = stages + stage * R::stage_bytes;
    const int row = of.blocks[i] * tile_keys;
    arrive_expecting(full + stage * 8, R::stage_bytes);
#pragma unroll
    for (int box = 0; box < R::boxes; ++box) {
      copy_box(to + box * box_bytes, maps.keys, full + stage * 8, box * box_elements, row,
               of.rows.kv_head);
    }
#pragma unroll
    for (int box = 0; box < R::boxes; ++box) {
      copy_box(to + R::tile_bytes + box * box_bytes, maps.values, full + stage * 8,
               box * box_elements, row, of.rows.kv_head);
    }
  }
}

/// The lane's part of its rows' queries, zeros beyond the rows.
template <class R>
__device__ __forceinline__ void load_queries(const AttentionTask& task, const RowTile& rows,
                                             std::uint32_t (&queries)[R::head_dim / 16][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + half * 8;
    const bool valid = row < rows.rows;
    const auto* from = reinterpret_cast<const std::uint32_t*>(
        task.queries + rows.head_index(valid ? row : 0, task) * R::head_dim + lane % 4 * 2);
#pragma unroll
    for (int k = 0; k < R::head_dim / 16; ++k) {
      queries[k][half] = valid ? from[k * 8] : 0U;
      queries[k][2 + half] = valid ? from[k * 8 + 4] : 0U;
    }
  }
}

/// The products of tile i + 1's scores run while tile i is weighed by the other warpgroup, and the
/// sums of tile i while tile i + 1 is weighed (Shah et al. 2024, FlashAttention-3).
template <class R>
__device__ __forceinline__ void attend_tiles(const AttentionTask& task, const ListedRows& of,
                                             std::uint32_t stages, std::uint32_t full,
                                             std::uint32_t empty) {
  using T = typename R::Rows;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  // Tiles from this number on cross the causal edge of some row.
  const int whole = count_below(of.blocks, of.count, bounds_of(task, of.rows).end_min / tile_keys);
  std::uint32_t queries[R::head_dim / 16][4];
  load_queries<R>(task, of.rows, queries);
  Running<T> running;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    running.max[0][half] = -INFINITY;
    running.sum[0][half] = 0.0F;
  }
#pragma unroll
  for (int d = 0; d < R::head_dim / 8; ++d) {
#pragma unroll
    for (float& x : running.out[0][d]) x = 0.0F;
  }
  float scores[1][8][4];
  std::uint32_t weights[tile_keys / 16][4];
  float shrink[2];
  const auto finish_scores = [&](int i) {
    if (task.cap > 0.0F) cap_scores<T>(task, scores);
    if (i >= whole) {
      mask<T>(task, of.rows, row, of.blocks[i] * tile_keys + lane % 4 * 2, task.count, scores);
    }
  };

  if (of.count > 0) {
    wait_for(full, 0);
    begin_products();
    begin_scores<R>(queries, stages, scores[0]);
    commit_products();
    wait_products<0>();
    pin(scores[0]);
    finish_scores(0);
    weigh<T>(task, scores[0], running, shrink);
    pack(scores[0], weights);
  }
  for (int i = 1; i < of.count; ++i) {
    const int stage = i % R::stages;
    const int before = (i - 1) % R::stages;
    wait_for(full + stage * 8, i / R::stages % 2);
    pin(scores[0]);
    pin(running.out[0]);
    begin_products();
    begin_scores<R>(queries, stages + stage * R::stage_bytes, scores[0]);
    commit_products();
    begin_sums<R>(weights, stages + before * R::stage_bytes + R::tile_bytes, running.out[0]);
    commit_products();
    wait_products<1>();
    pin(scores[0]);
    finish_scores(i);
    weigh<T>(task, scores[0], running, shrink);
    wait_products<0>();
    pin(running.out[0]);
    if (lane == 0) arrive(empty + before * 8);
    if (__any_sync(0xffffffffU, shrink[0] != 1.0F || shrink[1] != 1.0F)) {
#pragma unroll
      for (int d = 0; d < R::head_dim / 8; ++d) {
#pragma unroll
        for (int e = 0; e < 4; ++e) running.out[0][d][e] *= shrink[e / 2];
      }
    }
    pack(scores[0], weights);
  }
  if (of.count > 0) {
    pin(running.out[0]);
    begin_products();
    begin_sums<R>(weights, stages + (of.count - 1) % R::stages * R::stage_bytes + R::tile_bytes,
                  running.out[0]);
    commit_products();
    wait_products<0>();
    pin(running.out[0]);
  }
  sum_lanes<T>(running);
  store_rows<T>(task, of.rows, running);
}

/// Grid: (row tiles of pieces, kv_heads).
template <class R>
__global__ void __launch_bounds__(R::threads, 1)
    ring_attention_kernel(const __grid_constant__ AttentionTask task,
                          const __grid_constant__ ChoiceTask choice,
                          const __grid_constant__ RowMaps maps, int first_piece, int form) {
  extern __shared__ unsigned char shared[];
  __shared__ __align__(8) std::uint64_t barriers[2 * R::stages];
  const ListedRows of = listed_rows<R::Rows::tile_rows>(task, choice, first_piece, form);
  if (of.rows.rows <= 0 || (of.count == 0 && task.merge)) return;
  const std::uint32_t stages = align_stage(shared_address(shared));
  const std::uint32_t full = shared_address(barriers);
  const std::uint32_t empty = full + R::stages * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < R::stages; ++i) {
      init_barrier(full + i * 8, 1);
      init_barrier(empty + i * 8, R::row_warps);
    }
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x >= R::Rows::threads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R::copy_registers));
    if (threadIdx.x == R::Rows::threads) copy_tiles<R>(of, maps, stages, full, empty);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R::row_registers));
    attend_tiles<R>(task, of, stages, full, empty);
  }
}

template <int head_dim_>
struct RingScorer;

/// Scores of 64 samples with 64 keys by one warpgroup. Queries stay in registers, keys come through
/// a ring of stages.
template <int head_dim_>
struct RingLook {
  using Sources = RowMaps;
  using Scorer = RingScorer<head_dim_>;
  static constexpr int head_dim = head_dim_;
  static constexpr int frags = 1;
  static constexpr int threads = 128;
  static constexpr int tile_rows = 64;
  static constexpr int blocks_per_sm = 4;
  static constexpr int boxes = head_dim / box_elements;
  static constexpr int stage_bytes = boxes * box_bytes;
  static constexpr int stages = 3;
  static constexpr int shared_bytes = stages * stage_bytes + swizzle_alignment;
};

template <int head_dim>
struct RingScorer {
  using L = RingLook<head_dim>;
  const ChoiceTask& task;
  const RowMaps& maps;
  const Piece& piece;
  const SampleTile& tile;
  std::uint32_t stages, full;
  int next = 0;  // number of the next tile in the ring
  int form_here = -1;
  std::uint32_t queries[head_dim / 16][4];

  __device__ __forceinline__ RingScorer(const ChoiceTask& of, const RowMaps& from,
                                        const Piece& tokens, const SampleTile& samples,
                                        std::uint32_t memory)
      : task(of), maps(from), piece(tokens), tile(samples) {
    __shared__ __align__(8) std::uint64_t barriers[L::stages];
    stages = align_stage(memory);
    full = shared_address(barriers);
    if (threadIdx.x == 0) {
      for (int i = 0; i < L::stages; ++i) init_barrier(full + i * 8, 1);
      publish_barriers();
    }
    __syncthreads();
  }

  template <class Blocks, class Use>
  __device__ __forceinline__ void score(Scored what, int form, int /*key_count*/, int count,
                                        const Blocks& blocks, const Use& use) {
    const CUtensorMap& map = what == Scored::means ? maps.means : maps.keys;
    const int begin = next;
    const auto copy = [&](int i) {
      const int stage = (begin + i) % L::stages;
      const int row = blocks(i) * block_keys;
      arrive_expecting(full + stage * 8, L::stage_bytes);
#pragma unroll
      for (int box = 0; box < L::boxes; ++box) {
        copy_box(stages + stage * L::stage_bytes + box * box_bytes, map, full + stage * 8,
                 box * box_elements, row, tile.kv_head);
      }
    };
    if (threadIdx.x == 0) {
      for (int i = 0; i < min(count, L::stages); ++i) copy(i);
    }
    if (form != form_here) load_samples(form);
    form_here = form;
    float scores[1][8][4];
    for (int i = 0; i < count; ++i) {
      const int stage = (begin + i) % L::stages;
      wait_for(full + stage * 8, (begin + i) / L::stages % 2);
      pin(scores[0]);
      begin_products();
      begin_scores<L>(queries, stages + stage * L::stage_bytes, scores[0]);
      commit_products();
      wait_products<0>();
      pin(scores[0]);
      __syncthreads();  // all have read the stage
      if (threadIdx.x == 0 && i + L::stages < count) copy(i + L::stages);
      use(i, scores);
    }
    next = begin + count;
  }

 private:
  /// The lane's part of the samples' queries, zeros beyond the samples.
  __device__ __forceinline__ void load_samples(int form) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int sample = tile.first + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + half * 8;
      const bool valid = sample < tile.count;
      const int token = piece.sample(valid ? sample / task.group : 0);
      const int head = tile.kv_head * task.group + (valid ? sample % task.group : 0);
      const auto* from = reinterpret_cast<const std::uint32_t*>(
          task.queries + form * task.form_stride +
          (static_cast<std::int64_t>(token) * task.q_heads + head) * head_dim + lane % 4 * 2);
#pragma unroll
      for (int k = 0; k < head_dim / 16; ++k) {
        queries[k][half] = valid ? from[k * 8] : 0U;
        queries[k][2 + half] = valid ? from[k * 8 + 4] : 0U;
      }
    }
  }
};

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// The driver's function; null if it has none.
EncodeTiled find_encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                              12000, cudaEnableDefault, &result);
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  return status == cudaSuccess && result == cudaDriverEntryPointSuccess
             ? reinterpret_cast<EncodeTiled>(found)
             : nullptr;
}

EncodeTiled encoder() {
  static const EncodeTiled found = find_encoder();
  return found;
}

bool encode(const __nv_bfloat16* rows, std::int64_t head_dim, std::int64_t count,
            std::int64_t head_stride, std::int64_t kv_heads, CUtensorMap& map) {
  const cuuint64_t dims[] = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(count),
                             static_cast<cuuint64_t>(kv_heads)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(head_dim * 2),
                                static_cast<cuuint64_t>(head_stride * 2)};  // bytes
  const cuuint32_t box[] = {box_elements, tile_keys, 1};
  const cuuint32_t steps[] = {1, 1, 1};
  return encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<__nv_bfloat16*>(rows),
                   dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

void encode_or_throw(const __nv_bfloat16* rows, std::int64_t head_dim, std::int64_t count,
                     std::int64_t head_stride, std::int64_t kv_heads, CUtensorMap& map) {
  if (encode(rows, head_dim, count, head_stride, kv_heads, map)) return;
  throw Error("CUDA: no tensor map of " + std::to_string(count) + " rows of " +
              std::to_string(kv_heads) + " heads of " + std::to_string(head_dim) + " elements");
}

/// Prepares the kernel for the current device. Returns whether the device runs it.
template <class R>
bool is_ready() {
  thread_local int asked_for = -1;
  thread_local bool ready = false;
  int device = 0;
  TOPKV_CUDA(cudaGetDevice(&device));
  if (device == asked_for) return ready;
  asked_for = device;
  cudaFuncAttributes attributes{};
  ready = encoder() != nullptr &&
          cudaFuncGetAttributes(&attributes, ring_attention_kernel<R>) == cudaSuccess;
  if (ready) {
    TOPKV_CUDA(cudaFuncSetAttribute(ring_attention_kernel<R>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, R::shared_bytes));
  } else {
    static_cast<void>(cudaGetLastError());  // the device has another architecture
  }
  return ready;
}

template <class R>
void attend_with(const AttentionTask& task, const ChoiceTask& choice, int first_piece,
                 unsigned pieces, int form, cudaStream_t stream) {
  RowMaps maps{};
  encode_or_throw(task.keys, R::head_dim, task.count, task.head_stride, choice.kv_heads, maps.keys);
  encode_or_throw(task.values, R::head_dim, task.count, task.head_stride, choice.kv_heads,
                  maps.values);
  constexpr int tile_rows = R::Rows::tile_rows;
  const auto tiles =
      static_cast<unsigned>((block_tokens * choice.group + tile_rows - 1) / tile_rows);
  ring_attention_kernel<R>
      <<<dim3(pieces * tiles, static_cast<unsigned>(choice.kv_heads)), R::threads, R::shared_bytes,
         stream>>>(task, choice, maps, first_piece, form);
  check_launch("attention over blocks (wgmma)");
}

template <class T>
void look_with(const ChoiceTask& task, int first_piece, unsigned pieces, LookNumber number,
               cudaStream_t stream) {
  const std::int64_t count = task.first + task.tokens;
  if (count < block_keys) return;  // no piece chooses
  RowMaps maps{};
  encode_or_throw(task.keys, T::head_dim, count, task.head_stride, task.kv_heads, maps.keys);
  encode_or_throw(task.means, T::head_dim, count / block_keys, task.most_blocks * T::head_dim,
                  task.kv_heads, maps.means);
  look<T>(task, maps, first_piece, pieces, stream, number);
}

}  // namespace

bool runs_on_sm90(std::int64_t head_dim) {
  return head_dim == 64 ? is_ready<RingTiling<64>>()
                        : head_dim == 128 && is_ready<RingTiling<128>>();
}

void look_on_sm90(std::int64_t head_dim, const ChoiceTask& task, int first_piece, unsigned pieces,
                  LookNumber number, cudaStream_t stream) {
  if (head_dim == 64) {
    look_with<RingLook<64>>(task, first_piece, pieces, number, stream);
  } else {
    look_with<RingLook<128>>(task, first_piece, pieces, number, stream);
  }
}

void attend_listed_on_sm90(std::int64_t head_dim, const AttentionTask& task,
                           const ChoiceTask& choice, int first_piece, unsigned pieces, int form,
                           cudaStream_t stream) {
  if (head_dim == 64) {
    attend_with<RingTiling<64>>(task, choice, first_piece, pieces, form, stream);
  } else {
    attend_with<RingTiling<128>>(task, choice, first_piece, pieces, form, stream);
  }
}

}  // namespace topkv::gpu
