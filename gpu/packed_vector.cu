// Products of packed weights with one or two tokens, which is what decoding is made of: bound by
// reading the codes once, so everything else is kept short. Codes of 8 and 4 bits go into tensor
// cores as the integers that they are, and meet inputs as digits (packed_digits.cuh): the three
// digits of a token are three of the operand's eight columns. Sums over a group are exact, and
// scaled in float32.
//
// A block has 16 rows of a weight at a time, and each of its warps some of their inputs, a *stage*
// after the other: 256 bytes of each row with their scales, copied to shared memory while the stage
// before is multiplied. The first copies begin before the kernel in front has ended, for weights do
// not depend on it. The warps' sums are added in a fixed order. Weights that share inputs (q, k and
// v) are one launch.
#include <algorithm>

#include "gpu/kernel_parts.cuh"
#include "gpu/mma.cuh"
#include "gpu/packed_digits.cuh"
#include "gpu/packed_product.h"

namespace topkv::gpu {
namespace {

constexpr int tile = 16;        // rows of a tensor core's operand
constexpr int stage_row = 256;  // bytes of a row in a stage
constexpr int pieces = stage_row / 16;
constexpr int room = 2;  // stages that a warp has room for
constexpr int most_warps = 16;

struct Part {
  const std::byte* codes;
  const float* scales;
  const float* offsets;
  const float* bias;
  float* out;
  std::int64_t out_features;
  int first_tile;
};

struct Job {
  Part parts[most_products];
  int count;
  int tiles;
  int row_bytes;
  int in_features;
  int groups;
  int group;
  int stages_of_row;
  const std::int32_t* order;  // of the inputs; null: their own
  const __nv_bfloat16* x;
  bool vectors;  // rows of x are aligned to 16 bytes and read in their own order
  int tokens;
  bool accumulate;
};

/// Rows of x as eights of pairs; 0 behind the last.
struct Row {
  const __nv_bfloat16* x;
  const std::int32_t* order;
  int count;
  bool vectors;
  __device__ uint4 eight(int first) const {
    if (first >= count) return {};
    // Not through the read-only cache: the kernel in front, which wrote them, may have run beside
    // the beginning of this one.
    if (vectors) return *reinterpret_cast<const uint4*>(x + first);
    unsigned pairs[4];
    for (int i = 0; i < 4; ++i) {
      const auto bits = [&](int at) -> unsigned {
        if (at >= count) return 0U;
        return unsigned{__bfloat16_as_ushort(x[order == nullptr ? at : order[at]])};
      };
      pairs[i] = bits(first + 2 * i) | bits(first + 2 * i + 1) << 16;
    }
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
};

template <int bytes>
__device__ __forceinline__ void copy_factors(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(bytes),
               "r"(valid ? bytes : 0)
               : "memory");
}

/// c[16, 8] += a[16, 32] b[32, 8], integers.
template <bool of_signed>
__device__ __forceinline__ void multiply(int (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                         unsigned a3, unsigned b0, unsigned b1) {
  if constexpr (of_signed) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}
/// c[16, 8] += a[16, 16] b[16, 8].
__device__ __forceinline__ void multiply16(int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

/// flush: inputs between two times that sums are scaled; a group has a multiple of them. row: a row
/// has one scale, and no offset.
template <Packing packing, int flush, bool row, bool offsets>
struct Format {
  static constexpr int inputs = stage_row * (packing == Packing::int4 ? 2 : 1);  // of a stage
  static constexpr int flushes = inputs / flush;
  static constexpr int factors = row ? 0 : flushes;  // of a row in a stage
  static constexpr int code_bytes = tile * stage_row;
  static constexpr int stage_bytes = code_bytes + factors * tile * (offsets ? 2 : 1) * 4;
};

__device__ __forceinline__ const Part& part_of(const Job& job, int of_tile) {
  int p = 0;
  if (job.count > 1 && of_tile >= job.parts[1].first_tile) p = 1;
  if (job.count > 2 && of_tile >= job.parts[2].first_tile) p = 2;
  return job.parts[p];
}

/// Where piece p of row r of a stage lies: the same piece of eight neighbouring rows in different
/// banks.
__device__ __forceinline__ std::uint32_t place_of(int r, int p) {
  return static_cast<std::uint32_t>(r * stage_row + (p ^ (r & 7)) * 16);
}

/// Copies of a warp's stages, one after the other, over all tiles that it has.
template <Packing packing, int flush, bool row, bool offsets>
struct Loader {
  using F = Format<packing, flush, row, offsets>;
  static constexpr int rows_at_once = warp / pieces;
  static constexpr int rows_of_lane = tile / rows_at_once;

  const Job& job;
  std::uint32_t ring;
  int begin, end;     // stages of a row that are the warp's
  int of_tile, step;  // tiles
  int lane;
  int stage = 0;
  int slot = 0;
  const std::byte* codes = nullptr;  // of the lane's piece of its first row
  const std::byte* last = nullptr;   // of the last row's
  const float* factors = nullptr;

  __device__ void begin_tile() {
    if (of_tile >= job.tiles) return;
    const Part& part = part_of(job, of_tile);
    const std::int64_t first = std::int64_t{of_tile - part.first_tile} * tile;
    const std::byte* const piece = part.codes + lane % pieces * 16;
    codes = piece + (first + lane / pieces) * job.row_bytes;
    last = piece + (part.out_features - 1) * job.row_bytes;
    if constexpr (!row) {
      const std::int64_t r = min(first + lane % tile, part.out_features - 1);
      factors = (lane >= tile ? part.offsets : part.scales) + r * job.groups;
    }
  }

  /// Begins the copies of the next stage, if there is one.
  __device__ void next() {
    if (of_tile < job.tiles && begin < end) {
      const std::uint32_t to = ring + static_cast<std::uint32_t>(slot * F::stage_bytes);
      const int at = stage * stage_row;
      const bool there = at + lane % pieces * 16 < job.row_bytes;
#pragma unroll
      for (int k = 0; k < rows_of_lane; ++k) {
        // Rows behind the last are read as the last, and not written.
        const std::byte* const own = codes + std::int64_t{k} * rows_at_once * job.row_bytes;
        copy_async(to + place_of(lane / pieces + k * rows_at_once, lane % pieces),
                   (own < last ? own : last) + at, there);
      }
      if constexpr (!row) {
        if (offsets || lane < tile) copy_all_factors(to + F::code_bytes);
      }
      if (++stage == end) {
        stage = begin;
        of_tile += step;
        begin_tile();
      }
      slot = (slot + 1) % room;
    }
  }

  __device__ void copy_all_factors(std::uint32_t stage_factors) {
    const std::uint32_t to = stage_factors + static_cast<std::uint32_t>(lane * F::factors * 4);
    const int first = stage * F::factors;
    if (job.group == flush && F::factors % 4 == 0 && job.groups % 4 == 0) {
#pragma unroll
      for (int i = 0; i < F::factors; i += 4)
        copy_factors<16>(to + i * 4, factors + first + i, first + i < job.groups);
    } else {
#pragma unroll
      for (int i = 0; i < F::factors; ++i) {
        const int group = (first + i) * flush / job.group;
        copy_factors<4>(to + i * 4, factors + group, group < job.groups);
      }
    }
  }
};

template <Packing packing, int flush, bool row, bool offsets>
__global__ void __launch_bounds__(most_warps* warp) vector_kernel(const __grid_constant__ Job job) {
  using F = Format<packing, flush, row, offsets>;
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const int number = static_cast<int>(threadIdx.x) / warp;
  const int warps = static_cast<int>(blockDim.x) / warp;
  const int blocks = (job.in_features - 1) / digit_inputs + 1;
  const DigitPlanes x = digit_planes(shared, blocks, job.tokens);
  float* const sums = reinterpret_cast<float*>(shared + digits_bytes(blocks, job.tokens, flush));
  unsigned char* const ring = reinterpret_cast<unsigned char*>(sums) +
                              warps * 2 * job.tokens * tile * 4 + number * room * F::stage_bytes;

  const int first_tile = static_cast<int>(blockIdx.x);
  const int step = static_cast<int>(gridDim.x);
  const int begin = job.stages_of_row * number / warps;
  const int end = job.stages_of_row * (number + 1) / warps;
  Loader<packing, flush, row, offsets> loader{
      job, shared_address(ring), begin, end, first_tile, step, lane, begin};
  loader.begin_tile();
  loader.next();

  await_previous();
  const int all = job.tokens * blocks * 4;
  for (int i = static_cast<int>(threadIdx.x); i - lane < all; i += static_cast<int>(blockDim.x)) {
    // Whole warps: lanes behind the last have zeros, and write nothing.
    const int token = i / (blocks * 4);
    const int at = i % (blocks * 4);
    const Row from{job.x + std::int64_t{token} * job.in_features, job.order,
                   i < all ? job.in_features : 0, job.vectors};
    write_digits<packing, flush>(inputs32(from, at * 32), token, at, i < all, x);
  }
  __syncthreads();

  // Of the operand's columns a lane has the one of token column / 4 and digit column % 4.
  const int column = lane / 4;
  const int quad = lane % 4;
  const bool there = column % 4 < digits && column / 4 < job.tokens;
  const unsigned char* const plane =
      x.planes + (there ? column / 4 * digits + column % 4 : 0) * plane_bytes(blocks) + quad * 8;
  // Of the sums it has two columns of a token: digits 0 and 1, or digit 2 and zeros.
  const int token = min(quad / 2, job.tokens - 1);
  const bool low = quad % 2 == 0;
  const float* const powers = x.powers + token * blocks;
  const float* const input_sums = x.sums + token * blocks * (digit_inputs / flush);

  constexpr bool with_sums = offsets || packing == Packing::int4;
  int slot = 0;
  int buffer = 0;
  for (int of_tile = first_tile; of_tile < job.tiles; of_tile += step) {
    float totals[2] = {};
    for (int stage = begin; stage < end; ++stage) {
      wait_copies();
      __syncwarp();
      loader.next();
      unsigned char* const codes = ring + slot * F::stage_bytes;
      const std::uint32_t rows = shared_address(codes);
      const auto* const factors = reinterpret_cast<const float*>(codes + F::code_bytes);
      int c[4] = {};
      const auto scaled = [&](int i) {  // flush number i of the stage
        const int at = stage * F::flushes + i;
        // Behind the last input codes and digits are 0; powers and sums are not there.
        const bool inside = at * flush < blocks * digit_inputs;
        const float power =
            inside ? powers[at * flush / digit_inputs] * (low ? 1.0F : 65536.0F) : 0.0F;
        const float inputs = inside && low && with_sums ? input_sums[at] : 0.0F;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float sum = static_cast<float>(c[2 * h] + 256 * c[2 * h + 1]) * power;
          c[2 * h] = c[2 * h + 1] = 0;
          if constexpr (row) {
            totals[h] += sum;
          } else {
            const float scale = factors[(column + 8 * h) * F::factors + i];
            totals[h] = fmaf(scale, sum, totals[h]);
            if constexpr (with_sums) {
              float offset = offsets ? factors[(tile + column + 8 * h) * F::factors + i] : 0.0F;
              if constexpr (packing == Packing::int4) offset -= 8 * scale;  // codes are 8 more
              totals[h] = fmaf(offset, inputs, totals[h]);
            }
          }
        }
      };
#pragma unroll
      for (int p = 0; p < pieces; p += 2) {
        // Two pieces of 8 rows and of the 8 below them.
        std::uint32_t a[4];
        load_matrices(a, rows + place_of(lane % 16, p + lane / 16));
        if constexpr (packing == Packing::int8) {
          const int input = stage * F::inputs + p * 16;
          uint2 b{};
          if (there && input < blocks * digit_inputs)
            b = *reinterpret_cast<const uint2*>(plane + input);
          if constexpr (flush == 16) {
            multiply16(c, a[0], a[1], b.x);
            scaled(p);
            multiply16(c, a[2], a[3], b.y);
            scaled(p + 1);
          } else {
            multiply<true>(c, a[0], a[1], a[2], a[3], b.x, b.y);
            if ((p / 2 + 1) % (flush / 32) == 0) scaled((p / 2 + 1) / (flush / 32) - 1);
          }
        } else {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int input = stage * F::inputs + (p + h) * 32;
            uint2 b{};
            if (there && input < blocks * digit_inputs)
              b = *reinterpret_cast<const uint2*>(plane + input);
            constexpr unsigned nibbles = 0x0f0f0f0fU;
            multiply<false>(c, a[2 * h] & nibbles, a[2 * h + 1] & nibbles, a[2 * h] >> 4 & nibbles,
                            a[2 * h + 1] >> 4 & nibbles, b.x, b.y);
            if ((p + h + 1) % (flush / 32) == 0) scaled((p + h + 1) / (flush / 32) - 1);
          }
        }
      }
      slot = (slot + 1) % room;
    }

    const Part& part = part_of(job, of_tile);
    const std::int64_t first = std::int64_t{of_tile - part.first_tile} * tile;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      totals[h] += __shfl_xor_sync(all_lanes, totals[h], 1);
      if constexpr (row)
        totals[h] *= __ldg(part.scales + min(first + column + 8 * h, part.out_features - 1));
    }
    // In two buffers: whoever writes one again has met its reader since, for the other.
    float* const tile_sums = sums + buffer * warps * job.tokens * tile;
    if (low && quad / 2 < job.tokens) {
      float* const to = tile_sums + (number * job.tokens + quad / 2) * tile + column;
      to[0] = totals[0];
      to[8] = totals[1];
    }
    __syncthreads();
    if (number == 0 && lane < job.tokens * tile) {
      float sum = 0;
      for (int w = 0; w < warps; ++w) sum += tile_sums[w * job.tokens * tile + lane];
      const std::int64_t r = first + lane % tile;
      if (r < part.out_features) {
        float* const to = part.out + lane / tile * part.out_features + r;
        if (part.bias != nullptr) sum += part.bias[r];
        *to = job.accumulate ? *to + sum : sum;
      }
    }
    buffer ^= 1;
  }
}

template <Packing packing, int flush, bool row, bool offsets>
bool launch(Job& job, const VectorLimits& limits, cudaStream_t stream) {
  constexpr int reserved = 1024;  // of a block's shared memory, by CUDA
  job.stages_of_row = (job.row_bytes - 1) / stage_row + 1;
  const int fixed = digits_bytes((job.in_features - 1) / digit_inputs + 1, job.tokens, flush);
  const int of_warp =
      room * Format<packing, flush, row, offsets>::stage_bytes + 2 * job.tokens * tile * 4;
  // Warps of a block, and blocks of a processor: the first that fit.
  constexpr int cuts[][2] = {
      {most_warps / 2, 2}, {most_warps, 1}, {most_warps / 2, 1}, {most_warps / 4, 1}};
  for (const auto& [warps, of_processor] : cuts) {
    const int bytes = fixed + warps * of_warp;
    if (bytes > limits.block_bytes || of_processor * (bytes + reserved) > limits.processor_bytes)
      continue;
    auto* const kernel = vector_kernel<packing, flush, row, offsets>;
    TOPKV_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    launch_overlapped(
        kernel, static_cast<unsigned>(std::min(job.tiles, limits.processors * of_processor)),
        static_cast<unsigned>(warps * warp), static_cast<std::size_t>(bytes), stream, job);
    check_launch("the packed product kernel of few tokens");
    return true;
  }
  return false;
}

template <Packing packing, bool offsets>
bool launch_groups(Job& job, const VectorLimits& limits, cudaStream_t stream) {
  if (job.groups == 1 || job.group % digit_inputs == 0)
    return launch<packing, digit_inputs, false, offsets>(job, limits, stream);
  if (job.group % 32 == 0) return launch<packing, 32, false, offsets>(job, limits, stream);
  if constexpr (packing == Packing::int8)
    return launch<packing, 16, false, offsets>(job, limits, stream);
  return false;
}

}  // namespace

VectorLimits vector_limits(int device) {
  VectorLimits limits;
  TOPKV_CUDA(cudaDeviceGetAttribute(&limits.processors, cudaDevAttrMultiProcessorCount, device));
  TOPKV_CUDA(
      cudaDeviceGetAttribute(&limits.block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  TOPKV_CUDA(cudaDeviceGetAttribute(&limits.processor_bytes,
                                    cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  return limits;
}

bool packed_vectors(const Product* products, std::int64_t count, const __nv_bfloat16* x,
                    std::int64_t tokens, bool accumulate, const VectorLimits& limits,
                    cudaStream_t stream) {
  const Matrix& form = products->weight;
  if (tokens < 1 || tokens > most_vector_tokens || count > most_products) return false;
  if (form.packing != Packing::int8 && form.packing != Packing::int4) return false;
  Job job{};
  for (std::int64_t i = 0; i < count; ++i) {
    const Product& product = products[i];
    const Matrix& weight = product.weight;
    const bool alike = weight.packing == form.packing && weight.group == form.group &&
                       weight.in_features == form.in_features &&
                       weight.has_offsets == form.has_offsets && !weight.has_order;
    if (count > 1 && !alike) return false;
    if (weight.out_features == 0) return false;
    job.parts[job.count++] = {weight.data, weight.scales(),     weight.offsets(), product.bias,
                              product.out, weight.out_features, job.tiles};
    job.tiles += static_cast<int>((weight.out_features - 1) / tile + 1);
  }
  job.row_bytes = static_cast<int>(form.row_bytes());
  job.in_features = static_cast<int>(form.in_features);
  job.groups = static_cast<int>(form.groups());
  job.group = static_cast<int>(form.group);
  job.order = form.order();
  job.x = x;
  job.vectors = !form.has_order && form.in_features % 8 == 0 && aligned({x}, 16);
  job.tokens = static_cast<int>(tokens);
  job.accumulate = accumulate;
  if (form.packing == Packing::int4) {
    return form.has_offsets ? launch_groups<Packing::int4, true>(job, limits, stream)
                            : launch_groups<Packing::int4, false>(job, limits, stream);
  }
  if (form.has_offsets) return launch_groups<Packing::int8, true>(job, limits, stream);
  if (job.groups == 1) return launch<Packing::int8, digit_inputs, true, false>(job, limits, stream);
  return launch_groups<Packing::int8, false>(job, limits, stream);
}

}  // namespace topkv::gpu
