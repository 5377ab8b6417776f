// The float32 matrix product of the library beneath (oneDNN), on the calling thread alone.
#pragma once

#include <cstdint>

namespace topkv {

enum class Transposed : bool { no, yes };

/// C = A B + beta C, row-major: A is [m, k], C is [m, n] and B is [k, n], or [n, k] when
/// b_transposed. lda, ldb, ldc: elements from one row to the next. Call it inside a parallel_for,
/// which holds oneDNN to one thread. Throws Error when oneDNN refuses.
///
/// Asynchronous signals are held back meanwhile: the AVX-512 kernel of oneDNN 2.6 keeps the stack
/// pointer in a heap buffer, where a signal handler's frame would overwrite the heap.
void matrix_product(Transposed b_transposed, std::int64_t m, std::int64_t n, std::int64_t k,
                    const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta,
                    float* c, std::int64_t ldc);

}  // namespace topkv
