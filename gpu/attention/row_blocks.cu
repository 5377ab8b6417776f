#include <cuda_fp16.h>

#include "gpu/attention/key_bias.cuh"
#include "gpu/attention/row_blocks.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

constexpr int block_elements = 32;  // one for each lane of a warp
constexpr int warps = block / warp;
constexpr std::int64_t learned_tokens = 1024;  // as RowStore has it
constexpr std::int64_t least_learned = 256;
constexpr int most_dims = 576;

__host__ __device__ constexpr int block_bytes(DType dtype) { return dtype == DType::q8 ? 34 : 20; }

__device__ __half half_at(const std::byte* at) {
  __half value;
  value = *reinterpret_cast<const __half*>(at);  // blocks and vectors lie at even addresses
  return value;
}

/// This lane's element of a block: written (where `to` is not null), and read back. All lanes of a
/// warp call it.
template <DType dtype>
__device__ float round_element(float x, std::byte* to) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  if constexpr (dtype == DType::q8) {
    const __half scale = __float2half_rn(__fdiv_rn(warp_max(fabsf(x)), 127.0F));
    const float by = __half2float(scale);
    const float code = by == 0 ? 0.0F : rintf(fmaxf(fminf(__fdiv_rn(x, by), 127.0F), -127.0F));
    if (to != nullptr) {
      if (lane == 0) *reinterpret_cast<__half*>(to) = scale;
      reinterpret_cast<signed char*>(to)[2 + lane] = static_cast<signed char>(code);
    }
    return __fmul_rn(static_cast<float>(static_cast<int>(code)), by);  // no zero with a sign
  } else {
    const __half low = __float2half_rn(-warp_max(-x));
    const float least = __half2float(low);
    const __half scale = __float2half_rn(__fdiv_rn(__fsub_rn(warp_max(x), least), 15.0F));
    const float by = __half2float(scale);
    float code = 0;
    if (by > 0 && !isinf(by))
      code = rintf(fminf(fmaxf(__fdiv_rn(__fsub_rn(x, least), by), 0.0F), 15.0F));
    const int own = static_cast<int>(code);
    const int other = __shfl_down_sync(all_lanes, own, 16);
    if (to != nullptr) {
      if (lane == 0) {
        reinterpret_cast<__half*>(to)[0] = scale;
        reinterpret_cast<__half*>(to)[1] = low;
      }
      if (lane < 16)
        reinterpret_cast<unsigned char*>(to)[4 + lane] =
            static_cast<unsigned char>(own | other << 4);
    }
    return __fmaf_rn(code, by, least);
  }
}

/// This lane's element of a block as it is stored.
template <DType dtype>
__device__ float read_element(const std::byte* from) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const float by = __half2float(half_at(from));
  if constexpr (dtype == DType::q8) {
    return __fmul_rn(static_cast<float>(reinterpret_cast<const signed char*>(from)[2 + lane]), by);
  } else {
    const int pair = reinterpret_cast<const unsigned char*>(from)[4 + lane % 16];
    const int code = lane < 16 ? pair & 15 : pair >> 4;
    return __fmaf_rn(static_cast<float>(code), by, __half2float(half_at(from + 2)));
  }
}

struct Half {
  const float* x;
  StoredKeys stored;        // nothing for values
  std::byte* bytes;         // null: not wanted
  std::int64_t head_bytes;  // between heads
  __nv_bfloat16* rows;
  bool values;
};

/// A warp for each block of each vector.
template <DType dtype>
__device__ void pack_half(const Half& half, std::int64_t tokens, std::int64_t kv_heads,
                          std::int64_t head_dim, const PackTarget& target,
                          unsigned long long* nonfinite) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const std::int64_t blocks = (head_dim - 1) / block_elements + 1;
  const std::int64_t first = std::int64_t{blockIdx.x} * warps + threadIdx.x / warp;
  unsigned long long worst = all_finite;
  for (std::int64_t w = first; w < tokens * kv_heads * blocks;
       w += std::int64_t{gridDim.x} * warps) {
    const std::int64_t b = w % blocks;
    const std::int64_t h = w / blocks % kv_heads;
    const std::int64_t t = w / blocks / kv_heads;
    const std::int64_t i = b * block_elements + lane;
    const bool inside = i < head_dim;
    const std::int64_t from = (t * kv_heads + h) * head_dim + i;
    const float* channels = half.stored.channels;
    const float channel = inside && channels != nullptr ? channels[h * head_dim + i] : 1;
    const bool biased = inside && half.stored.bias != nullptr;
    const float bias = biased ? turned_bias(half.stored, head_dim, h, t, i) : 0.0F;
    const float given = inside ? half.x[from] : 0.0F;
    const float x = __fdiv_rn(biased ? __fsub_rn(given, bias) : given, channel);
    std::byte* to = half.bytes == nullptr
                        ? nullptr
                        : half.bytes + h * half.head_bytes + (t * blocks + b) * block_bytes(dtype);
    float value = __fmul_rn(round_element<dtype>(x, to), channel);
    if (!inside) continue;
    if (biased) value = __fadd_rn(value, bias);
    // (The largest of some numbers and one that is none is a number.)
    if (!isfinite(value) || !isfinite(x)) {
      worst = min(worst, static_cast<unsigned long long>(2 * from + (half.values ? 1 : 0)));
    }
    std::int64_t slot = t;
    if (target.ring > 0) {
      slot = (t + target.first) % target.ring;
      if (t + target.ring < tokens) continue;  // a later token takes the slot
    }
    half.rows[h * target.head_stride + slot * head_dim + i] = __float2bfloat16_rn(value);
  }
  if (worst != all_finite) atomicMin(nonfinite, worst);
}

/// Keys, and values in another row of blocks if there are any.
template <DType key_type, DType value_type>
__global__ void pack_kernel(Half keys, Half values, std::int64_t tokens, std::int64_t kv_heads,
                            std::int64_t head_dim, PackTarget target,
                            unsigned long long* nonfinite) {
  if (blockIdx.y == 0) {
    pack_half<key_type>(keys, tokens, kv_heads, head_dim, target, nonfinite);
  } else {
    pack_half<value_type>(values, tokens, kv_heads, head_dim, target, nonfinite);
  }
}

template <DType dtype>
__global__ void unpack_kernel(const std::byte* from, std::int64_t head_bytes, std::int64_t count,
                              std::int64_t heads, std::int64_t head_dim, StoredKeys stored,
                              __nv_bfloat16* out, std::int64_t head_stride) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const std::int64_t blocks = (head_dim - 1) / block_elements + 1;
  const std::int64_t first = std::int64_t{blockIdx.x} * warps + threadIdx.x / warp;
  for (std::int64_t w = first; w < heads * count * blocks; w += std::int64_t{gridDim.x} * warps) {
    const std::int64_t b = w % blocks;
    const std::int64_t t = w / blocks % count;
    const std::int64_t h = w / blocks / count;
    const std::int64_t i = b * block_elements + lane;
    const float value =
        read_element<dtype>(from + h * head_bytes + (t * blocks + b) * block_bytes(dtype));
    if (i >= head_dim) continue;
    const float channel = stored.channels != nullptr ? stored.channels[h * head_dim + i] : 1;
    float whole = __fmul_rn(value, channel);
    if (stored.bias != nullptr) whole = __fadd_rn(whole, turned_bias(stored, head_dim, h, t, i));
    out[h * head_stride + t * head_dim + i] = __float2bfloat16_rn(whole);
  }
}

/// A block for each KV head, a thread for each channel.
__global__ void choose_kernel(const float* keys, std::int64_t tokens, std::int64_t kv_heads,
                              int head_dim, StoredKeys stored, float* channels) {
  __shared__ double squares[most_dims];
  __shared__ double median;
  const int i = static_cast<int>(threadIdx.x);
  const std::int64_t h = blockIdx.x;
  double sum = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    float key = keys[(t * kv_heads + h) * head_dim + i];
    if (stored.bias != nullptr) key = __fsub_rn(key, turned_bias(stored, head_dim, h, t, i));
    const double x = key;
    sum = __dadd_rn(sum, __dmul_rn(x, x));
  }
  squares[i] = sum;
  __syncthreads();
  int below = 0;
  for (int j = 0; j < head_dim; ++j)
    below += squares[j] < sum || (squares[j] == sum && j < i) ? 1 : 0;
  if (below == head_dim / 2) median = sum;
  __syncthreads();
  const double over = median > 0 ? sum / median : 0;
  const bool out_lies = over > 1 && isfinite(over);
  channels[h * head_dim + i] =
      out_lies ? ldexpf(1.0F, static_cast<int>(min(lround(log2(over) / 2), 24L))) : 1.0F;
}

template <class Launch>
void with_blocks(DType dtype, const Launch& launch) {
  if (dtype == DType::q8) {
    launch(std::integral_constant<DType, DType::q8>());
  } else {
    launch(std::integral_constant<DType, DType::q4>());
  }
}

}  // namespace

void pack_blocks(const float* keys, const float* values, std::int64_t tokens, std::int64_t kv_heads,
                 std::int64_t head_dim, KvDType dtype, const StoredKeys& stored,
                 const BlockTarget& blocks, const PackTarget& rows, unsigned long long* nonfinite,
                 cudaStream_t stream) {
  const std::int64_t all = tokens * kv_heads * ((head_dim + block_elements - 1) / block_elements);
  if (all == 0) return;
  const Half of_keys{keys, stored, blocks.keys, blocks.head_bytes, rows.keys, false};
  const Half of_values{values, {}, blocks.values, blocks.head_bytes, rows.values, true};
  const dim3 grid(blocks_for(all, warps), values != nullptr ? 2 : 1);
  with_blocks(dtype.keys, [&](auto key_type) {
    with_blocks(dtype.values, [&](auto value_type) {
      pack_kernel<decltype(key_type)::value, decltype(value_type)::value>
          <<<grid, block, 0, stream>>>(of_keys, of_values, tokens, kv_heads, head_dim, rows,
                                       nonfinite);
    });
  });
  check_launch("the kernel that packs rows in blocks");
}

void unpack_blocks(const std::byte* from, std::int64_t head_bytes, std::int64_t count,
                   std::int64_t heads, std::int64_t head_dim, DType dtype, const StoredKeys& stored,
                   __nv_bfloat16* out, std::int64_t head_stride, cudaStream_t stream) {
  const std::int64_t all = count * heads * ((head_dim + block_elements - 1) / block_elements);
  if (all == 0) return;
  with_blocks(dtype, [&](auto type) {
    unpack_kernel<decltype(type)::value><<<blocks_for(all, warps), block, 0, stream>>>(
        from, head_bytes, count, heads, head_dim, stored, out, head_stride);
  });
  check_launch("the kernel that unpacks rows in blocks");
}

void choose_channels(const float* keys, std::int64_t tokens, std::int64_t kv_heads,
                     std::int64_t head_dim, const StoredKeys& stored, float* channels,
                     cudaStream_t stream) {
  if (kv_heads == 0) return;
  // Of no tokens all scales are 1.
  const std::int64_t learned = tokens < least_learned ? 0 : std::min(tokens, learned_tokens);
  choose_kernel<<<static_cast<unsigned>(kv_heads), static_cast<unsigned>(head_dim), 0, stream>>>(
      keys, learned, kv_heads, static_cast<int>(head_dim), stored, channels);
  check_launch("the kernel that chooses scales of channels");
}

}  // namespace topkv::gpu
