// Instructions of sm_90a: barriers in shared memory, tensor copies (TMA) and warpgroup products
// (wgmma). They are in the PTX ISA.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace topkv::gpu {

// Barriers in shared memory (mbarrier).

__device__ __forceinline__ void init_barrier(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Lets other threads, after a barrier, and copies see barriers that this thread has initialised.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
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

// Warpgroup products (wgmma). a: as mma.m16n8k16 has it. to: likewise, eight columns at a
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

}  // namespace topkv::gpu
