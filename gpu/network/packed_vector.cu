// Products of packed weights with one or two tokens, which is what decoding is made of, and those
// of experts: bound by reading the codes once, so everything else is kept short. Codes go into
// tensor cores as the integers that they are, or as float16 that masks and shifts make of them, and
// meet inputs as digits or halves (packed_inputs.cuh): a token has four of the operand's eight
// columns, one for each digit, or one. Sums over a group are scaled in float32.
//
// A team of a block's warps has a tile of a weight at a time, and each of these some of the inputs,
// a stage after the other (packed_stages.cuh). The first copies begin before the kernel in front
// has ended, for weights do not depend on it (which experts are read does). The warps' sums are
// added in a fixed order. Weights that share inputs (q, k and v) are one launch.
#include <algorithm>
#include <limits>

#include "gpu/network/packed_block.cuh"
#include "gpu/network/packed_inputs.cuh"
#include "gpu/network/packed_product.h"
#include "gpu/network/packed_stages.cuh"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

constexpr int most_slots = 64;

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

/// A barrier of so many warps.
__device__ __forceinline__ void meet(int barrier, int warps) {
  if (warps == 1) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(warps * warp) : "memory");
  }
}

template <Packing packing, int flush, bool row, bool offsets>
__global__ void __launch_bounds__(most_warps* warp, 1)
    vector_kernel(const __grid_constant__ VectorJob job) {
  using F = StageFormat<packing, flush, row, offsets>;
  using Planes = InputPlanes<packing, flush>;
  constexpr bool halves = Planes::halves;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ std::int32_t experts[most_slots];
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const int number_of_warp = static_cast<int>(threadIdx.x) / warp;
  const int warps = static_cast<int>(blockDim.x) / warp;
  const int blocks = (job.in_features - 1) / power_inputs + 1;
  const Planes x = Planes::in(shared, blocks, job.x_rows);
  float* const sums = reinterpret_cast<float*>(shared + Planes::bytes(blocks, job.x_rows));
  unsigned char* const ring = reinterpret_cast<unsigned char*>(sums) +
                              warps * 2 * job.tokens * tile * 4 +
                              number_of_warp * room * F::stage_bytes;

  const int member = number_of_warp % job.team;
  const int begin = job.stages_of_row * member / job.team;
  const int end = job.stages_of_row * (member + 1) / job.team;
  const int teams = warps / job.team;
  const int step = static_cast<int>(gridDim.x) * teams;
  const int first_tile = static_cast<int>(blockIdx.x) * teams + number_of_warp / job.team;
  StageLoader<packing, flush, row, offsets> loader{
      job, experts, shared_address(ring), begin, end, first_tile, step, lane};
  if (job.experts == nullptr) loader.start();
  await_previous();
  if (job.experts != nullptr) {
    for (int i = static_cast<int>(threadIdx.x); i < job.slots; i += static_cast<int>(blockDim.x))
      experts[i] = job.experts[i];
    __syncthreads();
    loader.start();
  }

  const int all = job.x_rows * blocks * 4;
  for (int i = static_cast<int>(threadIdx.x); i - lane < all; i += static_cast<int>(blockDim.x)) {
    // Whole warps: lanes behind the last have zeros, and write nothing.
    const int r = i / (blocks * 4);
    const int at = i % (blocks * 4);
    const int of_x = job.repeats > 1 ? r / job.repeats : r;
    Row from{job.x + std::int64_t{of_x} * job.in_features, job.order, i < all ? job.in_features : 0,
             job.vectors};
    if (job.order != nullptr && job.experts != nullptr && i < all) {
      from.order = reinterpret_cast<const std::int32_t*>(
          reinterpret_cast<const std::byte*>(job.order) + experts[r] * job.stride);
    }
    write_inputs(Inputs32::of(from, at * 32), r, at, i < all, x);
  }
  __syncthreads();

  // Of the operand's columns a lane has number column % 4 of token column / 4.
  const int column = lane / 4;
  const int quad = lane % 4;
  const bool there = column % 4 < Planes::planes_of_token && column / 4 < job.tokens;
  const int plane_bytes = Planes::plane_bytes(blocks);
  const unsigned char* const first_plane =
      x.planes + (there ? column / 4 * Planes::planes_of_token + column % 4 : 0) * plane_bytes +
      quad * 8 * Planes::input_bytes;
  // Of the sums it has two columns of a token: digits 0 and 1, or digit 2 and zeros.
  const int token = min(quad / 2, job.tokens - 1);
  const bool low = quad % 2 == 0;

  int slot = 0;
  int buffer = 0;
  const int tiles = job.slots * job.tiles;
  for (int number = first_tile; number < tiles; number += step) {
    const Tile of = Tile::of(job, experts, number);
    const unsigned char* const plane =
        first_plane + of.x_row * Planes::planes_of_token * plane_bytes;
    const float* const powers = x.powers + (of.x_row + token) * blocks;
    const float* const input_sums = x.sums + (of.x_row + token) * blocks * Planes::sums_of_block;
    float totals[2] = {};
    for (int stage = begin; stage < end; ++stage) {
      wait_copies();
      __syncwarp();
      loader.next();
      const unsigned char* const codes = ring + slot * F::stage_bytes;
      const auto* const factors = reinterpret_cast<const float*>(codes + F::code_bytes);
      PowerBlock<packing, flush, row, offsets> of_block{shared_address(codes), factors, lane, {}};
      constexpr int unrolled = flush < power_inputs ? 1 : F::blocks;  // so that nothing spills
#pragma unroll unrolled
      for (int i = 0; i < F::blocks; ++i) {
        const int at = stage * F::blocks + i;
        // Behind the last input codes are 0; inputs, powers and sums are not there.
        const bool inside = at < blocks;
        const float sums_too = with_input_sums<packing, offsets> && inside && low ? 1.0F : 0.0F;
        float scaled[2] = {};
        of_block.multiply(i, plane + at * power_inputs * Planes::input_bytes, there && inside,
                          input_sums + (inside ? at : 0) * Planes::sums_of_block, sums_too, scaled,
                          totals);
        float power = inside ? powers[at] : 0.0F;
        if constexpr (!halves) power *= low ? 1.0F : 65536.0F;
        totals[0] = fmaf(power, scaled[0], totals[0]);
        totals[1] = fmaf(power, scaled[1], totals[1]);
      }
      slot = (slot + 1) % room;
    }

#pragma unroll
    for (int h = 0; h < 2; ++h) {
      totals[h] += __shfl_xor_sync(all_lanes, totals[h], 1);
      if constexpr (row) {
        const std::int64_t r = min(of.first_row + column + 8 * h, of.last_row());
        totals[h] *= __ldg(of.at(job, of.part->scales) + r);
      }
    }
    // In two buffers: whoever writes one again has met its reader since, for the other.
    float* const tile_sums = sums + (buffer * warps + number_of_warp - member) * job.tokens * tile;
    if (low && quad / 2 < job.tokens) {
      float* const to = tile_sums + (member * job.tokens + quad / 2) * tile + column;
      to[0] = totals[0];
      to[8] = totals[1];
    }
    meet(1 + number_of_warp / job.team, job.team);
    if (member == 0 && lane < job.tokens * tile) {
      float sum = 0;
      for (int w = 0; w < job.team; ++w) sum += tile_sums[w * job.tokens * tile + lane];
      const std::int64_t width = of.part->out_features;
      const std::int64_t r = of.first_row + lane % tile;
      if (r < width) {
        float* const to = of.part->out + (of.slot + lane / tile) * width + r;
        if (of.part->bias != nullptr) sum += of.part->bias[of.expert * width + r];
        *to = job.accumulate ? *to + sum : sum;
      }
    }
    buffer ^= 1;
  }
}

/// Warps that have a tile together, out of so many of each block: those whose blocks end first,
/// where a warp takes as long as its stages, and half a stage more for every tile.
int team_of(const VectorJob& job, int warps, int blocks) {
  int best = warps;
  int least = std::numeric_limits<int>::max();
  for (int team = warps; team > 0; team /= 2) {
    const int tiles = (job.slots * job.tiles - 1) / (blocks * (warps / team)) + 1;  // of a team
    const int halves_of_stages = tiles * (2 * ((job.stages_of_row - 1) / team + 1) + 1);
    if (halves_of_stages < least) {
      least = halves_of_stages;
      best = team;
    }
  }
  return best;
}

/// False: the device's shared memory has no room.
template <Packing packing, int flush, bool row, bool offsets>
bool launch(VectorJob job, const VectorLimits& limits, cudaStream_t stream) {
  job.factors_at_once = job.group != flush || job.groups % 2 != 0 ? 1 : job.groups % 4 != 0 ? 2 : 4;
  constexpr int reserved = 1024 + most_slots * 4;  // of a block's shared memory
  const int fixed =
      InputPlanes<packing, flush>::bytes((job.in_features - 1) / power_inputs + 1, job.x_rows);
  const int of_warp =
      room * StageFormat<packing, flush, row, offsets>::stage_bytes + 2 * job.tokens * tile * 4;
  // Warps of a block, and blocks of a processor: the first that fit.
  constexpr int cuts[][2] = {
      {most_warps / 2, 2}, {most_warps, 1}, {most_warps / 2, 1}, {most_warps / 4, 1}};
  for (const auto& [warps, of_processor] : cuts) {
    const int bytes = fixed + warps * of_warp;
    if (bytes + reserved > limits.block_bytes ||
        of_processor * (bytes + reserved) > limits.processor_bytes)
      continue;
    auto* const kernel = vector_kernel<packing, flush, row, offsets>;
    TOPKV_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    job.team = team_of(job, warps, limits.processors * of_processor);
    const int tiles = (job.slots * job.tiles - 1) / (warps / job.team) + 1;  // of blocks
    launch_overlapped(
        kernel, static_cast<unsigned>(std::min(tiles, limits.processors * of_processor)),
        static_cast<unsigned>(warps * warp), static_cast<std::size_t>(bytes), stream, job);
    check_launch("the packed product kernel of few tokens");
    return true;
  }
  return false;
}

template <Packing packing, bool offsets>
bool launch_groups(const VectorJob& job, const VectorLimits& limits, cudaStream_t stream) {
  if constexpr (!offsets && !in_nibbles(packing)) {
    if (job.groups == 1) return launch<packing, power_inputs, true, false>(job, limits, stream);
  }
  if constexpr (packing != Packing::fp4) {
    if (job.groups == 1 || job.group % power_inputs == 0)
      return launch<packing, power_inputs, false, offsets>(job, limits, stream);
  }
  if (job.group % 32 == 0) return launch<packing, 32, false, offsets>(job, limits, stream);
  if constexpr (!in_nibbles(packing))
    return launch<packing, 16, false, offsets>(job, limits, stream);
  return false;
}

bool launch_packing(const Matrix& form, const VectorJob& job, const VectorLimits& limits,
                    cudaStream_t stream) {
  const bool offsets = form.has_offsets;
  switch (form.packing) {
    case Packing::int8:
      return offsets ? launch_groups<Packing::int8, true>(job, limits, stream)
                     : launch_groups<Packing::int8, false>(job, limits, stream);
    case Packing::int4:
      return offsets ? launch_groups<Packing::int4, true>(job, limits, stream)
                     : launch_groups<Packing::int4, false>(job, limits, stream);
    case Packing::fp8:
      return !offsets && launch_groups<Packing::fp8, false>(job, limits, stream);
    case Packing::fp4:
      return !offsets && launch_groups<Packing::fp4, false>(job, limits, stream);
    case Packing::none:
      break;
  }
  return false;
}

/// What depends on the form of the weights alone.
VectorJob job_of(const Matrix& form, const __nv_bfloat16* x) {
  VectorJob job{};
  job.row_bytes = static_cast<int>(form.row_bytes());
  job.in_features = static_cast<int>(form.in_features);
  job.groups = static_cast<int>(form.groups());
  job.group = static_cast<int>(form.group);
  job.stages_of_row = (job.row_bytes - 1) / stage_row + 1;
  job.order = form.order();
  job.x = x;
  job.vectors = !form.has_order && form.in_features % 8 == 0 && aligned({x}, 16);
  job.slots = job.sharing = job.repeats = job.x_rows = job.tokens = 1;
  return job;
}

bool alike(const Matrix& a, const Matrix& b) {
  return a.packing == b.packing && a.group == b.group && a.in_features == b.in_features &&
         a.has_offsets == b.has_offsets;
}

void add_part(const Matrix& weight, const float* bias, float* out, VectorJob& job) {
  job.parts[job.count++] = {weight.data, weight.scales(),     weight.offsets(), bias,
                            out,         weight.out_features, job.tiles};
  job.tiles += static_cast<int>((weight.out_features - 1) / tile + 1);
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
  if (!form.packed() || tokens < 1 || tokens > most_vector_tokens || count > most_products)
    return false;
  VectorJob job = job_of(form, x);
  for (const Product* product = products; product != products + count; ++product) {
    const Matrix& weight = product->weight;
    if (count > 1 && (!alike(weight, form) || weight.has_order)) return false;
    if (weight.out_features == 0) return false;
    add_part(weight, product->bias, product->out, job);
  }
  job.x_rows = job.tokens = static_cast<int>(tokens);
  job.accumulate = accumulate;
  return launch_packing(form, job, limits, stream);
}

bool packed_experts(const ExpertProduct* products, std::int64_t count, const __nv_bfloat16* x,
                    std::int64_t sharing, const std::int32_t* experts, std::int64_t rows,
                    const VectorLimits& limits, cudaStream_t stream) {
  const ExpertMatrices& first_weights = *products->weights;
  const Matrix& form = first_weights.form;
  VectorJob job = job_of(form, x);
  std::int64_t together = 0;
  for (; together < std::min(count, most_products); ++together) {
    const auto& [weights, biases, out] = products[together];
    if (together > 0 && (!alike(weights->form, form) || weights->form.has_order ||
                         weights->stride != first_weights.stride))
      break;
    add_part(weights->form, biases, out, job);
  }
  job.stride = first_weights.stride;
  job.sharing = form.has_order ? 1 : static_cast<int>(sharing);
  job.repeats = form.has_order ? static_cast<int>(sharing) : 1;
  // As many slots at a time as shared memory has inputs of: of several rows of x, or of one.
  std::int64_t at_once = most_slots;
  for (std::int64_t first = 0; first < rows;) {
    std::int64_t slots = at_once;
    if (slots >= sharing) {
      slots = std::min(slots / sharing * sharing, rows - first);
    } else {
      slots = std::min(slots, sharing - first % sharing);
    }
    job.slots = static_cast<int>(slots);
    job.x_rows = static_cast<int>((slots - 1) / job.sharing + 1);
    job.experts = experts + first;
    job.x = x + first / sharing * form.in_features;
    if (launch_packing(form, job, limits, stream)) {
      for (int p = 0; p < job.count; ++p) job.parts[p].out += slots * job.parts[p].out_features;
      first += slots;
    } else if (at_once /= 2; at_once == 0) {
      return false;
    }
  }
  return together == count || packed_experts(products + together, count - together, x, sharing,
                                             experts, rows, limits, stream);
}

}  // namespace topkv::gpu
