// Rows to bf16.
#include "gpu/network/elementwise.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

__device__ bool not_finite(unsigned bf16_bits) { return (bf16_bits & 0x7f80U) == 0x7f80U; }

/// Packs K or V of one row. name: twice the number of the row's first element, plus 1 for V.
/// to: null when a later token takes the slot. Returns the least name of a nonfinite element, or
/// nonfinite.
__device__ unsigned long long pack_row(const float* from, __nv_bfloat16* to, std::int64_t head_dim,
                                       std::int64_t vectors, std::int64_t name,
                                       unsigned long long nonfinite) {
  const auto note = [&](unsigned bits, std::int64_t i) {
    if (not_finite(bits)) nonfinite = min(nonfinite, static_cast<unsigned long long>(name + 2 * i));
  };
  for (std::int64_t v = threadIdx.x; v < vectors; v += blockDim.x) {
    const uint2 four = pack4(load4(from + 4 * v));
    if (to != nullptr) *reinterpret_cast<uint2*>(to + 4 * v) = four;
    note(four.x, 4 * v);
    note(four.x >> 16, 4 * v + 1);
    note(four.y, 4 * v + 2);
    note(four.y >> 16, 4 * v + 3);
  }
  for (std::int64_t i = 4 * vectors + threadIdx.x; i < head_dim; i += blockDim.x) {
    const __nv_bfloat16 one = __float2bfloat16_rn(from[i]);
    if (to != nullptr) to[i] = one;
    note(__bfloat16_as_ushort(one), i);
  }
  return nonfinite;
}

__global__ void finite_kernel(const float* x, std::int64_t count, std::int64_t vectors,
                              __nv_bfloat16* out, unsigned long long* nonfinite) {
  unsigned long long worst = all_finite;
  const auto note = [&](unsigned bits, std::int64_t i) {
    if (not_finite(bits)) worst = min(worst, static_cast<unsigned long long>(i));
  };
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (std::int64_t v = first; v < vectors; v += stride) {
    const uint2 four = pack4(load4(x + 4 * v));
    *reinterpret_cast<uint2*>(out + 4 * v) = four;
    note(four.x, 4 * v);
    note(four.x >> 16, 4 * v + 1);
    note(four.y, 4 * v + 2);
    note(four.y >> 16, 4 * v + 3);
  }
  for (std::int64_t i = 4 * vectors + first; i < count; i += stride) {
    const __nv_bfloat16 one = __float2bfloat16_rn(x[i]);
    out[i] = one;
    note(__bfloat16_as_ushort(one), i);
  }
  if (worst != all_finite) atomicMin(nonfinite, worst);
}

// blockDim: (elements, tokens); gridDim: (tokens, heads). target.first is below target.ring.
__global__ void pack_kernel(const float* keys, const float* values, std::int64_t tokens,
                            std::int64_t kv_heads, std::int64_t head_dim, PackTarget target,
                            std::int64_t vectors, unsigned long long* nonfinite) {
  unsigned long long worst = all_finite;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.y;
  for (std::int64_t h = blockIdx.y; h < kv_heads; h += gridDim.y) {
    for (std::int64_t t = first; t < tokens; t += stride) {
      std::int64_t slot = t;
      bool kept = true;
      if (target.ring > 0) {
        slot += target.first;
        if (slot >= target.ring) slot -= target.ring;  // nearly always enough
        if (slot >= target.ring) slot %= target.ring;
        kept = t + target.ring >= tokens;
      }
      const std::int64_t from = (t * kv_heads + h) * head_dim;
      const std::int64_t to = h * target.head_stride + slot * head_dim;
      worst = pack_row(keys + from, kept ? target.keys + to : nullptr, head_dim, vectors, 2 * from,
                       worst);
      if (values == nullptr) continue;
      worst = pack_row(values + from, kept ? target.values + to : nullptr, head_dim, vectors,
                       2 * from + 1, worst);
    }
  }
  if (worst != all_finite) atomicMin(nonfinite, worst);
}

}  // namespace

void to_finite_bf16(const float* x, std::int64_t count, __nv_bfloat16* out,
                    unsigned long long* nonfinite, cudaStream_t stream) {
  if (count == 0) return;
  const std::int64_t vectors =
      flat_vectors(count, aligned({x}, sizeof(float4)) && aligned({out}, sizeof(uint2)));
  finite_kernel<<<blocks_for(vectors > 0 ? (count - 1) / 4 + 1 : count, block), block, 0, stream>>>(
      x, count, vectors, out, nonfinite);
  check_launch("the rounding kernel");
}

void pack_rows(const float* keys, const float* values, std::int64_t tokens, std::int64_t kv_heads,
               std::int64_t head_dim, const PackTarget& target, unsigned long long* nonfinite,
               cudaStream_t stream) {
  if (tokens == 0 || kv_heads == 0 || head_dim == 0) return;
  const bool vector_aligned = aligned({keys, values}, sizeof(float4)) &&
                              aligned({target.keys, target.values}, sizeof(uint2)) &&
                              target.head_stride % 4 == 0;
  const std::int64_t vectors = row_vectors(head_dim, 4, vector_aligned);
  PackTarget reduced = target;
  if (target.ring > 0) reduced.first = target.first % target.ring;
  const dim3 threads = row_block(vectors > 0 ? vectors : head_dim);
  const dim3 blocks(blocks_for(tokens, threads.y),
                    static_cast<unsigned>(std::min<std::int64_t>(kv_heads, 65535)));
  pack_kernel<<<blocks, threads, 0, stream>>>(keys, values, tokens, kv_heads, head_dim, reduced,
                                              vectors, nonfinite);
  check_launch("the row packing kernel");
}

}  // namespace topkv::gpu
