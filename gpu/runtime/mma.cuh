// The tensor-core instructions of sm_80 and later that the attention kernel uses, and a layout in
// shared memory that they read without bank conflicts. The layouts of the fragments are in the PTX
// ISA, "Matrix Fragments for mma.m16n8k16".
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace topkv::gpu {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Begins a copy of 16 bytes to shared memory. If `valid` is false, it writes zeros and reads
/// nothing.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

/// Begins a copy of 4 bytes to shared memory. If `valid` is false, it writes zeros and reads
/// nothing.
__device__ __forceinline__ void copy_word_async(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}

/// Waits for this thread's copies. Other threads see them after the next barrier.
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Ends a group of this thread's copies, and waits for all groups except the last `left`.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int left>
__device__ __forceinline__ void wait_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/// Loads four 8x8 matrices of bf16. Lane i has the address of row i % 8 of matrix i / 8. Volatile,
/// so that a call sees writes of other threads since the last call.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&to)[4],
                                                         std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

/// c[16, 8] += a[16, 16] b[16, 8]. c: {row lane / 4, columns 2 (lane % 4) and + 1; row + 8, same}.
__device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Returns 2^x to 2 ulp, and 0 for -inf.
__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// Returns 1 / x to 1 ulp, and 0 for infinity.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

/// Keeps the compiler from computing values that depend on x before a loop. They would take
/// registers that the loop needs.
template <class T>
__device__ __forceinline__ T compute_here(T x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// Rows of head_dim bf16 in shared memory, in chunks of 16 bytes. The same chunk of 8 neighbouring
/// rows lies in different banks. If the length of a row is a power of two, chunks are exchanged
/// (xor with the row), else rows are an odd number of chunks apart. REQUIRES: if row_bytes is a
/// power of two, the tile begins at a multiple of it.
template <int head_dim>
struct SharedRows {
  static constexpr int chunks = head_dim / 8;
  static constexpr bool swizzled = (head_dim & (head_dim - 1)) == 0;
  static constexpr int row_bytes = 2 * head_dim + (swizzled ? 0 : 16);
  static_assert(chunks % 2 == 0 && chunks >= 8);

  static __device__ __forceinline__ std::uint32_t offset(int row, int chunk) {
    return static_cast<std::uint32_t>(row * row_bytes +
                                      (swizzled ? chunk ^ (row & 7) : chunk) * 16);
  }
  /// Moves an address of a chunk of a row by 2 * pairs chunks. REQUIRES: if chunks are exchanged,
  /// 2 * pairs and the chunk's number have no bit in common.
  static __device__ __forceinline__ std::uint32_t advance(std::uint32_t address, int pairs) {
    const auto bytes = static_cast<std::uint32_t>(pairs * 32);
    return swizzled ? address ^ bytes : address + bytes;
  }
};

}  // namespace topkv::gpu
