// Products of the rows of two matrices that are folded at once. For each row of one matrix, a fold
// keeps one result of its products with all rows of the other: the largest product, or a sum of
// exponentials. Products stay in registers, because writing and reading them would take longer than
// computing them for rows as short as a head. Only for .cu files.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "gpu/runtime/kernel_parts.cuh"
#include "gpu/runtime/mma.cuh"

namespace topkv::gpu {

/// Matrices of [count, dim] elements, with rows 16-byte aligned. Fold number z of a launch uses
/// matrix number z / sharing.
template <class T>
struct FoldRows {
  const T* data = nullptr;
  int count = 0;
  std::int64_t stride = 0;  ///< elements from one row to the next
  std::int64_t matrix_stride = 0;
  int sharing = 1;

  __device__ const T* of(int z) const { return data + z / sharing * matrix_stride; }
};

/// Of the matrix whose rows are gone through, that are in shared memory at a time.
inline constexpr int fold_tile = 64;
/// Offsets for so many rows that pass.
inline std::int64_t fold_padded(std::int64_t count) {
  return (count + fold_tile - 1) / fold_tile * fold_tile;
}

/// A fold of scale * (kept_i · passed_j) + offset_j over the rows j of `passed`, for each row i of
/// `kept`.
template <class T>
struct FoldTask {
  FoldRows<T> kept, passed;
  float scale = 1;
  /// [matrices of `passed`, fold_padded(passed.count)], -inf behind passed.count.
  const float* offsets = nullptr;
};

__device__ __forceinline__ void multiply_tile(float (&c)[4], const std::uint32_t (&a)[4],
                                              std::uint32_t b0, std::uint32_t b1, __nv_bfloat16) {
  mma(c, a, b0, b1);
}
__device__ __forceinline__ void multiply_tile(float (&c)[4], const std::uint32_t (&a)[4],
                                              std::uint32_t b0, std::uint32_t b1, __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Warps keep their rows of `kept` in registers. Rows of `passed` come in shared memory, for all
/// warps.
template <int dim_>
struct FoldTiling {
  static constexpr int dim = dim_;
  static constexpr int warps = 4;  // of several blocks, so that some multiply while others fold
  static constexpr int threads = warps * warp;
  static constexpr int row_tiles = dim > 128 ? 1 : 2;  // of 16 rows, of a warp
  static constexpr int warp_rows = 16 * row_tiles;
  static constexpr int block_rows = warps * warp_rows;
  static constexpr int at_once = 32;  // rows that pass
  static constexpr int stages = 3;
  using Rows = SharedRows<dim>;
  static constexpr int tile_bytes = fold_tile * Rows::row_bytes;
  static constexpr int shared_bytes = stages * (tile_bytes + fold_tile * 4);
  static constexpr int blocks_each = dim > 64 ? 2 : 3;  // of a multiprocessor
};

/// Fold: begin() sets the state of a thread's row. add() adds products to it; x[n][e] belongs to
/// column `column` + 8 n + e. finish() combines the states of the four threads of a row.
template <class T, class Tiling, class Fold>
__global__ void __launch_bounds__(Tiling::threads, Tiling::blocks_each)
    fold_kernel(const FoldTask<T> task, const Fold fold) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Rows = typename Tiling::Rows;
  constexpr int dim = Tiling::dim;
  constexpr int depth = dim / 16;
  await_previous();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  const int z = static_cast<int>(blockIdx.y);
  const int first =
      static_cast<int>(blockIdx.x) * Tiling::block_rows + thread / warp * Tiling::warp_rows;

  const int count = task.passed.count;
  const int tiles = (count + fold_tile - 1) / fold_tile;
  const T* passed = task.passed.of(z);
  const float* offsets = task.offsets + z / task.passed.sharing * std::int64_t{tiles} * fold_tile;
  const std::uint32_t base = shared_address(shared);
  const auto* shared_offsets =
      reinterpret_cast<const float*>(shared + Tiling::stages * Tiling::tile_bytes);
  const auto begin_copy = [&](int tile) {
    if (tile < tiles) {
      const int stage = tile % Tiling::stages;
      const std::uint32_t to = base + static_cast<std::uint32_t>(stage * Tiling::tile_bytes);
#pragma unroll
      for (int i = thread; i < fold_tile * Rows::chunks; i += Tiling::threads) {
        const int row = i / Rows::chunks;
        const int from = tile * fold_tile + row;
        const bool there = from < count;
        copy_async(to + Rows::offset(row, i % Rows::chunks),
                   passed + (there ? from : 0) * task.passed.stride + i % Rows::chunks * 8, there);
      }
      if (thread < fold_tile / 4)
        copy_async(shared_address(shared_offsets + stage * fold_tile + 4 * thread),
                   offsets + tile * fold_tile + 4 * thread, true);
    }
    commit_copies();
  };
#pragma unroll
  for (int tile = 0; tile < Tiling::stages - 1; ++tile) begin_copy(tile);

  std::uint32_t a[Tiling::row_tiles][depth][4];
  typename Fold::State state[Tiling::row_tiles][2];
  const T* kept = task.kept.of(z);
#pragma unroll
  for (int i = 0; i < Tiling::row_tiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      fold.begin(state[i][half]);
      const int row = first + 16 * i + 8 * half + lane / 4;
      const T* from = kept + row * task.kept.stride + lane % 4 * 2;
#pragma unroll
      for (int k = 0; k < depth; ++k) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          a[i][k][2 * part + half] =
              row < task.kept.count
                  ? *reinterpret_cast<const std::uint32_t*>(from + 16 * k + 8 * part)
                  : 0U;
        }
      }
    }
  }

  // Of the four matrices that a lane's address is for: two of eight rows, of each two chunks.
  const std::uint32_t of_lane = Rows::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  for (int tile = 0; tile < tiles; ++tile) {
    wait_groups<Tiling::stages - 2>();
    __syncthreads();  // all have read the stage that is written next, too
    begin_copy(tile + Tiling::stages - 1);
    const int stage = tile % Tiling::stages;
    const std::uint32_t rows =
        base + static_cast<std::uint32_t>(stage * Tiling::tile_bytes) + of_lane;
#pragma unroll
    for (int column = 0; column < fold_tile; column += Tiling::at_once) {
      constexpr int pairs = Tiling::at_once / 16;
      float c[Tiling::row_tiles][2 * pairs][4] = {};
#pragma unroll
      for (int k = 0; k < depth; ++k) {
#pragma unroll
        for (int pair = 0; pair < pairs; ++pair) {
          std::uint32_t b[4];
          load_matrices(
              b, Rows::advance(
                     rows + static_cast<std::uint32_t>((column + 16 * pair) * Rows::row_bytes), k));
#pragma unroll
          for (int i = 0; i < Tiling::row_tiles; ++i) {
            multiply_tile(c[i][2 * pair], a[i][k], b[0], b[1], T());
            multiply_tile(c[i][2 * pair + 1], a[i][k], b[2], b[3], T());
          }
        }
      }
      float2 offset[2 * pairs];
#pragma unroll
      for (int n = 0; n < 2 * pairs; ++n) {
        offset[n] = *reinterpret_cast<const float2*>(shared_offsets + stage * fold_tile + column +
                                                     8 * n + lane % 4 * 2);
      }
#pragma unroll
      for (int i = 0; i < Tiling::row_tiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float x[2 * pairs][2];
#pragma unroll
          for (int n = 0; n < 2 * pairs; ++n) {
            x[n][0] = fmaf(c[i][n][2 * half], task.scale, offset[n].x);
            x[n][1] = fmaf(c[i][n][2 * half + 1], task.scale, offset[n].y);
          }
          fold.add(state[i][half], x, tile * fold_tile + column + lane % 4 * 2);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Tiling::row_tiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      fold.finish(state[i][half], z, first + 16 * i + 8 * half + lane / 4);
  }
}

/// Runs several folds in one launch. If the rows of `kept` end within a block, finish() is called
/// for the rows behind them too.
template <int dim, class T, class Fold>
void launch_fold(const FoldTask<T>& task, int folds, const Fold& fold, cudaStream_t stream) {
  using Tiling = FoldTiling<dim>;
  const auto kernel = fold_kernel<T, Tiling, Fold>;
  TOPKV_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  Tiling::shared_bytes));
  const auto blocks =
      static_cast<unsigned>((task.kept.count + Tiling::block_rows - 1) / Tiling::block_rows);
  launch_overlapped(kernel, dim3(blocks, static_cast<unsigned>(folds)), dim3(Tiling::threads),
                    Tiling::shared_bytes, stream, task, fold);
}

}  // namespace topkv::gpu
