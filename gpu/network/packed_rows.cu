// Rows of packed weights as plain elements: tiles of a weight for products with many tokens, and
// the rows of an embedding that tokens name. Memory-bound: each reads codes once and writes
// elements once.
#include "gpu/network/packed_codes.cuh"
#include "gpu/network/packed_product.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

struct Rows {
  const std::byte* codes;
  const float* scales;
  const float* offsets;
  std::int64_t row_bytes;
  int in_features;
  int group;
  const std::int32_t* order;  // of the inputs; null: their own
  std::int64_t first;
  const std::int32_t* tokens;  // rows to take; null: first and on
  std::int64_t count;
};

/// Inputs of a word. Groups are made of whole words, but for a group that is a whole row.
template <Packing packing, class Out>
__device__ __forceinline__ void write_word(unsigned word, float scale, float offset, int input,
                                           const Rows& rows, bool vectors, Out* row) {
  using C = Codes<packing>;
  float values[C::per_word];
  const auto widen = [&](int i, unsigned pair) {
    values[2 * i] = fmaf(low(pair), scale, offset);
    values[2 * i + 1] = fmaf(high(pair), scale, offset);
  };
  widen(0, C::template pair<0>(word));
  widen(1, C::template pair<1>(word));
  if constexpr (C::pairs == 4) {
    widen(2, C::template pair<2>(word));
    widen(3, C::template pair<3>(word));
  }
#pragma unroll
  for (int i = 0; i < C::per_word; i += 4) {
    if (vectors) {
      store4(row + input + i, {values[i], values[i + 1], values[i + 2], values[i + 3]});
    } else {
#pragma unroll
      for (int j = i; j < i + 4; ++j) {
        if (input + j >= rows.in_features) break;
        store(row + (rows.order == nullptr ? input + j : rows.order[input + j]), values[j]);
      }
    }
  }
}

template <Packing packing, class Out>
__global__ void unpack_kernel(const Rows rows, bool vectors, Out* out) {
  constexpr int per_word = Codes<packing>::per_word;
  const int groups = rows.in_features / rows.group;
  for (std::int64_t r = blockIdx.x; r < rows.count; r += gridDim.x) {
    const std::int64_t row = rows.tokens == nullptr ? rows.first + r : std::int64_t{rows.tokens[r]};
    const auto* words = reinterpret_cast<const unsigned*>(rows.codes + row * rows.row_bytes);
    Out* to = out + r * rows.in_features;
    for (int input = static_cast<int>(threadIdx.x) * per_word; input < rows.in_features;
         input += static_cast<int>(blockDim.x) * per_word) {
      const std::int64_t factor = row * groups + input / rows.group;
      write_word<packing>(__ldg(words + input / per_word), __ldg(rows.scales + factor),
                          rows.offsets == nullptr ? 0.0F : __ldg(rows.offsets + factor), input,
                          rows, vectors, to);
    }
  }
}

template <class Out>
void launch(const Matrix& weight, Rows rows, Out* out, cudaStream_t stream) {
  if (rows.count == 0) return;
  rows.codes = weight.data;
  rows.scales = weight.scales();
  rows.offsets = weight.offsets();
  rows.row_bytes = weight.row_bytes();
  rows.in_features = static_cast<int>(weight.in_features);
  rows.group = static_cast<int>(weight.group);
  const int per_word = in_nibbles(weight.packing) ? 8 : 4;
  rows.order = weight.order();
  const bool vectors =
      !weight.has_order && weight.in_features % per_word == 0 && aligned({out}, 4 * sizeof(Out));
  const unsigned threads = threads_for((weight.in_features - 1) / per_word + 1);
  const auto run = [&](auto kernel) {
    kernel<<<blocks_for(rows.count, 1), threads, 0, stream>>>(rows, vectors, out);
  };
  if (weight.packing == Packing::int4) {
    run(unpack_kernel<Packing::int4, Out>);
  } else if (weight.packing == Packing::fp4) {
    run(unpack_kernel<Packing::fp4, Out>);
  } else if (weight.packing == Packing::fp8) {
    run(unpack_kernel<Packing::fp8, Out>);
  } else {
    run(unpack_kernel<Packing::int8, Out>);
  }
  check_launch("the unpacking kernel");
}

}  // namespace

void unpack_rows(const Matrix& weight, std::int64_t first, std::int64_t rows, __nv_bfloat16* out,
                 cudaStream_t stream) {
  Rows job{};
  job.first = first;
  job.count = rows;
  launch(weight, job, out, stream);
}

void unpack_embedding(const Matrix& table, const std::int32_t* tokens, std::int64_t count,
                      float* out, cudaStream_t stream) {
  Rows job{};
  job.tokens = tokens;
  job.count = count;
  launch(table, job, out, stream);
}

}  // namespace topkv::gpu
