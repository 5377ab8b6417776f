#include <cuda.h>

#include <cmath>

#include "gpu/attention/attention_parts.cuh"
#include "gpu/attention/block_choice.cuh"
#include "gpu/attention/listed_attention.h"
#include "gpu/runtime/kernel_parts.cuh"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error this file is for sm_90a alone (gpu/CMakeLists.txt)
#endif

namespace topkv::gpu {
namespace {

constexpr int tile_keys = block_keys;
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
  static constexpr int alignment = 1024;  // of a swizzled box
  static constexpr int shared_bytes = stages * stage_bytes + alignment;
  static_assert(boxes * box_elements == head_dim);
};

/// K and V, [kv_heads, rows, head_dim], in boxes of 64 rows and 64 elements.
struct RowMaps {
  CUtensorMap keys, values;
};

// Barriers in shared memory (PTX ISA, mbarrier).

__device__ __forceinline__ void init_barrier(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives, and lets the phase end only when `bytes` bytes have been copied too.
__device__ __forceinline__ void arrive_expecting(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// Waits for the end of the phase with this parity.
__device__ __forceinline__ void wait_for(std::uint32_t barrier, int parity) {
  std::uint32_t done = 0;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}

/// Begins the copy of a box; rows beyond the map become zeros.
__device__ __forceinline__ void copy_box(std::uint32_t to, const CUtensorMap& map,
                                         std::uint32_t barrier, int element, int row, int head) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(element), "r"(row), "r"(head)
      : "memory");
}

// Warpgroup products (PTX ISA, wgmma). a: as mma.m16n8k16 has it. to: likewise, eight columns at a
// time, of a warp's 16 rows. b: the descriptor of 16 rows (transposed) or columns in shared memory.

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int left>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}
/// Keeps the compiler from moving accesses to the registers of products over this place.
template <int n>
__device__ __forceinline__ void pin(float (&x)[n][4]) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(x[i][e])::"memory");
  }
}

template <bool transposed>
__device__ __forceinline__ void warpgroup_mma(float (&to)[8][4], const std::uint32_t (&a)[4],
                                              std::uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n"
      "}\n"
      : "+f"(to[0][0]), "+f"(to[0][1]), "+f"(to[0][2]), "+f"(to[0][3]), "+f"(to[1][0]),
        "+f"(to[1][1]), "+f"(to[1][2]), "+f"(to[1][3]), "+f"(to[2][0]), "+f"(to[2][1]),
        "+f"(to[2][2]), "+f"(to[2][3]), "+f"(to[3][0]), "+f"(to[3][1]), "+f"(to[3][2]),
        "+f"(to[3][3]), "+f"(to[4][0]), "+f"(to[4][1]), "+f"(to[4][2]), "+f"(to[4][3]),
        "+f"(to[5][0]), "+f"(to[5][1]), "+f"(to[5][2]), "+f"(to[5][3]), "+f"(to[6][0]),
        "+f"(to[6][1]), "+f"(to[6][2]), "+f"(to[6][3]), "+f"(to[7][0]), "+f"(to[7][1]),
        "+f"(to[7][2]), "+f"(to[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(transposed ? 1 : 0));
}

template <bool transposed>
__device__ __forceinline__ void warpgroup_mma(float (&to)[16][4], const std::uint32_t (&a)[4],
                                              std::uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n"
      "}\n"
      : "+f"(to[0][0]), "+f"(to[0][1]), "+f"(to[0][2]), "+f"(to[0][3]), "+f"(to[1][0]),
        "+f"(to[1][1]), "+f"(to[1][2]), "+f"(to[1][3]), "+f"(to[2][0]), "+f"(to[2][1]),
        "+f"(to[2][2]), "+f"(to[2][3]), "+f"(to[3][0]), "+f"(to[3][1]), "+f"(to[3][2]),
        "+f"(to[3][3]), "+f"(to[4][0]), "+f"(to[4][1]), "+f"(to[4][2]), "+f"(to[4][3]),
        "+f"(to[5][0]), "+f"(to[5][1]), "+f"(to[5][2]), "+f"(to[5][3]), "+f"(to[6][0]),
        "+f"(to[6][1]), "+f"(to[6][2]), "+f"(to[6][3]), "+f"(to[7][0]), "+f"(to[7][1]),
        "+f"(to[7][2]), "+f"(to[7][3]), "+f"(to[8][0]), "+f"(to[8][1]), "+f"(to[8][2]),
        "+f"(to[8][3]), "+f"(to[9][0]), "+f"(to[9][1]), "+f"(to[9][2]), "+f"(to[9][3]),
        "+f"(to[10][0]), "+f"(to[10][1]), "+f"(to[10][2]), "+f"(to[10][3]), "+f"(to[11][0]),
        "+f"(to[11][1]), "+f"(to[11][2]), "+f"(to[11][3]), "+f"(to[12][0]), "+f"(to[12][1]),
        "+f"(to[12][2]), "+f"(to[12][3]), "+f"(to[13][0]), "+f"(to[13][1]), "+f"(to[13][2]),
        "+f"(to[13][3]), "+f"(to[14][0]), "+f"(to[14][1]), "+f"(to[14][2]), "+f"(to[14][3]),
        "+f"(to[15][0]), "+f"(to[15][1]), "+f"(to[15][2]), "+f"(to[15][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(transposed ? 1 : 0));
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
  const std::uint32_t stages =
      (shared_address(shared) + R::alignment - 1) / R::alignment * R::alignment;
  const std::uint32_t full = shared_address(barriers);
  const std::uint32_t empty = full + R::stages * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < R::stages; ++i) {
      init_barrier(full + i * 8, 1);
      init_barrier(empty + i * 8, R::row_warps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
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

bool encode(const __nv_bfloat16* rows, std::int64_t head_dim, const AttentionTask& task,
            std::int64_t kv_heads, CUtensorMap& map) {
  const cuuint64_t dims[] = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(task.count),
                             static_cast<cuuint64_t>(kv_heads)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(head_dim * 2),
                                static_cast<cuuint64_t>(task.head_stride * 2)};  // bytes
  const cuuint32_t box[] = {box_elements, tile_keys, 1};
  const cuuint32_t steps[] = {1, 1, 1};
  return encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<__nv_bfloat16*>(rows),
                   dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
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
bool attend_with(const AttentionTask& task, const ChoiceTask& choice, int first_piece,
                 unsigned pieces, int form, cudaStream_t stream) {
  if (!is_ready<R>()) return false;
  RowMaps maps;
  if (!encode(task.keys, R::head_dim, task, choice.kv_heads, maps.keys)) return false;
  if (!encode(task.values, R::head_dim, task, choice.kv_heads, maps.values)) return false;
  constexpr int tile_rows = R::Rows::tile_rows;
  const auto tiles =
      static_cast<unsigned>((block_tokens * choice.group + tile_rows - 1) / tile_rows);
  ring_attention_kernel<R>
      <<<dim3(pieces * tiles, static_cast<unsigned>(choice.kv_heads)), R::threads, R::shared_bytes,
         stream>>>(task, choice, maps, first_piece, form);
  check_launch("attention over blocks (wgmma)");
  return true;
}

}  // namespace

bool attend_listed_on_sm90(std::int64_t head_dim, const AttentionTask& task,
                           const ChoiceTask& choice, int first_piece, unsigned pieces, int form,
                           cudaStream_t stream) {
  if (head_dim == 64)
    return attend_with<RingTiling<64>>(task, choice, first_piece, pieces, form, stream);
  if (head_dim == 128)
    return attend_with<RingTiling<128>>(task, choice, first_piece, pieces, form, stream);
  return false;
}

}  // namespace topkv::gpu
