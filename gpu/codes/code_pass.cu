// One pass over the codes of a layer: lists the rows above the threshold, and sums up what the
// others weigh.
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>

#include "gpu/codes/code_relative.cuh"
#include "gpu/codes/code_score.cuh"
#include "gpu/codes/code_stages.h"
#include "gpu/runtime/kernel_parts.cuh"
#include "gpu/runtime/mma.cuh"

namespace topkv::gpu {
namespace {

constexpr int pass_warps = 8;
constexpr int pass_threads = pass_warps * warp;
constexpr int pass_blocks = 2;          // of a multiprocessor
constexpr int most_stages = 4;          // units of a warp on their way
constexpr int ring_memory = 96 << 10;   // for a block's units: what all devices since sm_80 have
constexpr float largest_weight = 4096;  // of those kept as halves; beyond it a warp rescales

constexpr int stages_of(int unit_bytes) {
  return std::min(most_stages, ring_memory / (pass_warps * unit_bytes));
}
/// Floats of one head in shared memory: no bank conflicts.
template <int V>
constexpr int sums_row = sum_axes(V) + 4;

template <int K, int V>
constexpr int shared_bytes() {
  constexpr int unit = unit_bytes(K, V);
  return std::max(pass_warps * stages_of(unit) * unit,
                  pass_warps * code_group * (sums_row<V> + 2) * 4);
}

__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  std::uint32_t y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
__device__ __forceinline__ float2 unpack(std::uint32_t x) {
  return __half22float2(*reinterpret_cast<__half2*>(&x));
}
__device__ __forceinline__ std::uint32_t max_pair(std::uint32_t a, std::uint32_t b) {
  std::uint32_t y;
  asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ std::uint32_t add_pair(std::uint32_t a, std::uint32_t b) {
  std::uint32_t y;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ std::uint32_t multiply_pair(std::uint32_t a, std::uint32_t b) {
  std::uint32_t y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ bool either_above(std::uint32_t x, std::uint32_t limit) {
  std::uint32_t y;
  asm("{.reg .pred a, b; setp.gt.f16x2 a|b, %1, %2; or.pred a, a, b; selp.u32 %0, 1, 0, a;}"
      : "=r"(y)
      : "r"(x), "r"(limit));
  return y != 0;
}
/// A pair of halves a little below x.
__device__ __forceinline__ std::uint32_t pair_below(float x) {
  const __half2 pair = __half2half2(__float2half_rd(fminf(x * 0.999F, largest_weight)));
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ __forceinline__ uint4 load_shared4(std::uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at));
  return x;
}
__device__ __forceinline__ std::uint32_t load_shared(std::uint32_t at) {
  std::uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at));
  return x;
}

/// c[16, 8] += a[16, 16] b[16, 8] of halves, where a is all ones: sums of b's columns.
__device__ __forceinline__ void mma_sum(float (&c)[4], std::uint32_t one, std::uint32_t b0,
                                        std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%4,%4,%4},{%5,%6},"
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(one), "r"(b0), "r"(b1));
}

/// c[16, 8] += of each of 16 axes the weights that its bits choose, for 16 keys and 8 heads; lanes
/// 2 S and 2 S + 1 of each four bring the bits.
template <int S>
__device__ __forceinline__ void mma_choose(float (&c)[4], std::uint32_t one,
                                           const std::uint32_t (&b)[4], std::uint32_t bits) {
  asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3},{%4,%4,%4,%4},{%5,%6,%7,%8},{%0,%1,%2,%3},%9,%10;"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(one), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(bits), "n"(S));
}

/// Units of a warp on their way to shared memory, `stages` of them.
template <int bytes>
class Ring {
 public:
  static constexpr int stages = stages_of(bytes);
  static_assert(stages >= 2, "one is taken, another on its way");

  __device__ Ring(std::uint32_t to, const std::uint8_t* units, int first, int end, int lane)
      : begin_(to),
        at_(to),
        into_(to),
        from_(units + 16 * lane),
        next_(first),
        end_(end),
        lane_(lane) {
    for (int s = 0; s + 1 < stages; ++s) send();
  }

  /// The next unit's place; the one before it may be overwritten.
  __device__ __forceinline__ std::uint32_t take() {
    asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2) : "memory");
    __syncwarp();
    const std::uint32_t at = at_;
    at_ = advance(at_);
    send();
    return at;
  }

 private:
  __device__ __forceinline__ std::uint32_t advance(std::uint32_t at) const {
    return at + bytes == begin_ + stages * bytes ? begin_ : at + bytes;
  }
  __device__ __forceinline__ void send() {
    if (next_ < end_) {
      const std::uint8_t* from = from_ + static_cast<std::int64_t>(next_) * bytes;
#pragma unroll
      for (int i = 0; i < bytes; i += 16 * warp) copy_async(into_ + i + 16 * lane_, from + i, true);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    next_ += pass_warps;
    into_ = advance(into_);
  }

  std::uint32_t begin_, at_, into_;
  const std::uint8_t* from_;
  int next_, end_, lane_;
};

/// A warp's sums over the keys it has met.
template <int V>
struct Sums {
  static constexpr int tiles = V / 2;         // of 16 axes
  float mass[4] = {};                         // of heads 2 t and 2 t + 1, in [0] and [1]
  float axes[tiles > 0 ? tiles : 1][4] = {};  // axes 16 m + r (and + 8), heads 2 t and 2 t + 1
};

/// Each block a stretch of one KV head's keys for one token, and of each form of its query what
/// that meets there; its warps take units in turn. The tokens' blocks for a stretch follow each
/// other, so that codes come from memory once. A row goes to the host when it is met; the last warp
/// of a head step says how many they are.
template <int K, int V, bool capped>
__global__ void __launch_bounds__(pass_threads, pass_blocks)
    pass_kernel(const __grid_constant__ CodeScan scan, std::uint32_t one, std::uint32_t eights) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const int warp_id = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / warp, 0);
  const int r = lane / 4;
  const int t = lane % 4;
  const int number = static_cast<int>(blockIdx.x) / scan.tokens;
  const int token = static_cast<int>(blockIdx.x) % scan.tokens;
  const int head = number / scan.splits;
  const int split = number % scan.splits;
  const int head_step = token * scan.kv_heads + head;
  const ScanRange whole = scan.range[head_step];
  const int first_unit = whole.begin / unit_keys;
  const std::int64_t units =
      whole.end > whole.begin ? (whole.end + unit_keys - 1) / unit_keys - first_unit : 0;
  const int stretch_begin = first_unit + static_cast<int>(units * split / scan.splits);
  const int stretch_end = first_unit + static_cast<int>(units * (split + 1) / scan.splits);
  // Of the stretch, what a form of the query meets. (Two forms may share a unit.)
  ScanRange range;
  int begin, end;
  const auto take_form = [&](int form) {
    range = scan.form_range(form, head_step);
    begin = max(stretch_begin, range.begin / unit_keys) + warp_id;
    end = range.end > range.begin ? min(stretch_end, (range.end + unit_keys - 1) / unit_keys) : 0;
  };
  int form = 0;
  for (take_form(0); form + 1 < scan.forms && begin >= end + warp_id;) take_form(++form);
  using Units = Ring<unit_bytes(K, V)>;
  const auto ring_of_form = [&] {
    return Units(shared_address(shared) + warp_id * Units::stages * unit_bytes(K, V),
                 scan.units + head * scan.head_bytes, begin, end, lane);
  };
  Units ring = ring_of_form();
  wait_for_previous_kernel();  // codes do not change; the query is new
  let_next_kernel_start();

  const auto scores_of_form = [&] {
    const int form_step = scan.form_step(form, head_step);
    return RelativeScores<K, capped>(scan, scan.plans[form_step * code_group + r],
                                     scan.coefficients + form_step * 16 * key_slots(K), lane);
  };
  RelativeScores<K, capped> scores = scores_of_form();
  const float threshold =
      scan.wanted >= whole.end - whole.begin ? 0.0F : exp2f(-scan_threshold_log2);
  std::uint32_t limit = pair_below(threshold * exp2f(scan_bias_log2));
  const auto list_at = [&](int list) {
    const std::int64_t before = list * scan.kv_heads + head;
    return scan.token[token].found + before * (1 + scan.capacity);
  };
  float moved = 0;  // log2 that the reference was moved by since the start
  Sums<V> sums;
  // The reference of head r has moved by so much.
  const auto move = [&](float by) {
    moved += by;
    limit = pair_below(fmaxf(threshold * exp2f(scan_bias_log2 - moved), 0x1p-24F));
    const float even = exp2f(-__shfl_sync(all_lanes, by, 8 * t));
    const float odd = exp2f(-__shfl_sync(all_lanes, by, 8 * t + 4));
    sums.mass[0] *= even;
    sums.mass[1] *= odd;
#pragma unroll
    for (auto& tile : sums.axes) {
      tile[0] *= even;
      tile[1] *= odd;
      tile[2] *= even;
      tile[3] *= odd;
    }
  };

  std::uint32_t weight[8];  // of keys 8 i + 2 t (low) and the next, for head r, as halves
  int unit = begin;
  // Goes on to the next form where the units of one end.
  const auto has_unit = [&] {
    while (unit >= end) {
      if (form + 1 >= scan.forms) return false;
      take_form(++form);
      __syncwarp();  // all lanes have read the last unit
      ring = ring_of_form();
      scores = scores_of_form();
      move(scores.raise_by(moved) - moved);
      unit = begin;
    }
    return true;
  };
#pragma unroll 1
  for (; has_unit(); unit += pass_warps) {
    const std::uint32_t at = ring.take();
    const auto weigh = [&] {
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        uint4 words[K / part_bytes];
#pragma unroll
        for (int p = 0; p < K / part_bytes; ++p)
          words[p] = load_shared4(at + lane * 16 + g * 32 * K + p * 512);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 score = scores.of([&](int p) { return word_of(words[p], i); });
          weight[4 * g + i] = pack(exp2_fast(score.x), exp2_fast(score.y));
        }
      }
    };
    const auto in_range = [&](int key) { return key >= range.begin && key < range.end; };
    const auto drop_ends = [&] {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int key = unit * unit_keys + 8 * i + 2 * t;
        weight[i] &= (in_range(key) ? 0xFFFFU : 0U) | (in_range(key + 1) ? 0xFFFF0000U : 0U);
      }
    };
    const auto any_above = [&](std::uint32_t bound) {
      std::uint32_t most = weight[0];
#pragma unroll
      for (int i = 1; i < 8; ++i) most = max_pair(most, weight[i]);
      return __any_sync(all_lanes, either_above(most, bound));
    };
    weigh();
    const bool at_end = unit * unit_keys < range.begin || (unit + 1) * unit_keys > range.end;
    if (at_end) drop_ends();
    if (any_above(limit)) {
      // Where a weight comes near the end of what a half holds, this warp moves the reference up.
      while (any_above(0x6BFF6BFFU)) {
        float most = -INFINITY;
#pragma unroll 1
        for (int i = 0; i < 8; ++i) {
          const std::uint32_t word = at + lane * 16 + i / 4 * 32 * K + i % 4 * 4;
          const float2 score = scores.of([&](int p) { return load_shared(word + p * 512); });
          const int key = unit * unit_keys + 8 * i + 2 * t;
          if (in_range(key)) most = fmaxf(most, score.x);
          if (in_range(key + 1)) most = fmaxf(most, score.y);
        }
        most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 1));
        most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 2));
        move(scores.raise_for(most));
        weigh();
        drop_ends();
      }
      const float unit_weight = exp2f(moved - scan_bias_log2);
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        // Every lane gets the largest weight, over all heads, of one of 32 keys.
        float v[8];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 w = unpack(weight[4 * g + i]);
          v[2 * i] = w.x * unit_weight;
          v[2 * i + 1] = w.y * unit_weight;
        }
#pragma unroll
        for (int half = 4; half >= 1; half /= 2) {
          const bool upper = (lane & (4 * half)) != 0;
#pragma unroll
          for (int i = 0; i < half; ++i) {
            const float other = __shfl_xor_sync(all_lanes, upper ? v[i] : v[i + half], 4 * half);
            v[i] = fmaxf(upper ? v[i + half] : v[i], other);
          }
        }
        const bool above = v[0] > threshold;
        const std::uint32_t all = __ballot_sync(all_lanes, above);
        if (all == 0) continue;
        // Lane bits 4, 3, 2 (r) are bits 2, 1, 0 of which of the eight is here.
        const int key = unit * unit_keys + 32 * g + r / 2 * 8 + 2 * t + r % 2;
        bool listed = false;
        if (above) {
          const int* before = scan.rare_before + head * (scan.unit_slots + 1) + unit;
          const int position =
              position_of(key, scan.rare_keys + head * scan.rare_slots, before[0], before[1]);
          const int list = list_of(position, scan.lists);
          const int place = atomicAdd(scan.count + head_step * scan_lists + list, 1);
          listed = place < scan.capacity;
          int* found = list_at(list);
          if (listed) *const_cast<volatile int*>(found + 1 + place) = position;
        }
        const std::uint32_t gone = __ballot_sync(all_lanes, listed) >> t;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          weight[4 * g + i] &= ~((gone >> (8 * i) & 1 ? 0xFFFFU : 0U) |
                                 (gone >> (8 * i + 4) & 1 ? 0xFFFF0000U : 0U));
        }
      }
    }

    std::uint32_t values[V > 0 ? V / 2 : 1];  // this lane's words of them
    if constexpr (V > 0) {
#pragma unroll
      for (int x = 0; x < V / 8; ++x) {
        const uint4 words = load_shared4(at + unit_keys * K + 512 * x + lane * 16);
        values[4 * x] = words.x;
        values[4 * x + 1] = words.y;
        values[4 * x + 2] = words.z;
        values[4 * x + 3] = words.w;
      }
    }
    mma_sum(sums.mass, one,
            add_pair(add_pair(weight[0], weight[1]), add_pair(weight[2], weight[3])),
            add_pair(add_pair(weight[4], weight[5]), add_pair(weight[6], weight[7])));
#pragma unroll
    for (int h = 0; h < 4 && V > 0; ++h) {  // 16 keys each
      constexpr std::uint32_t low_one = 0x00003C00U;
      constexpr std::uint32_t high_one = 0x3C000000U;
      const std::uint32_t w[4] = {
          multiply_pair(weight[2 * h], low_one), multiply_pair(weight[2 * h], high_one),
          multiply_pair(weight[2 * h + 1], low_one), multiply_pair(weight[2 * h + 1], high_one)};
#pragma unroll
      for (int m = 0; m < V / 4; ++m) {  // 32 axes each
        const std::uint32_t word = values[V / 8 * h + m / 2];
        const std::uint32_t bits = ((m % 2 == 1 ? word >> 1 : word) & 0x55555555U) | eights;
        mma_choose<0>(sums.axes[2 * m], one, w, bits);
        mma_choose<1>(sums.axes[2 * m + 1], one, w, bits);
      }
    }
  }
  // (What this warp counted is there: it has waited for its places in lists.)
  int before = lane == 0 ? atomicAdd(scan.arrived + head_step, 1) : 0;
  before = __shfl_sync(all_lanes, before, 0);
  if (before + 1 == scan.splits * pass_warps && lane < scan.lists) {
    if (lane == 0) scan.arrived[head_step] = 0;
    // Who waits looks at each place: a fence between rows and their number would take longer.
    const int count = atomicAdd(scan.count + head_step * scan_lists + lane, 0);
    *const_cast<volatile int*>(list_at(lane)) = min(count, scan.capacity);
  }

  // The block's warps together, relative to the largest of their references.
  __syncthreads();
  constexpr int row = sums_row<V>;
  constexpr int axes = sum_axes(V);
  auto* all = reinterpret_cast<float*>(shared);  // [warps][heads][row]
  float* mass = all + pass_warps * code_group * row;
  float* moves = mass + pass_warps * code_group;
  if (t == 0) moves[warp_id * code_group + r] = moved;
  if (r == 0) {
    mass[warp_id * code_group + 2 * t] = sums.mass[0];
    mass[warp_id * code_group + 2 * t + 1] = sums.mass[1];
  }
  float* mine = all + warp_id * code_group * row;
#pragma unroll
  for (int m = 0; m < V / 2; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      mine[(2 * t + i % 2) * row + r + 8 * (2 * m + i / 2)] = sums.axes[m][i];
  }
  __syncthreads();
  const std::int64_t place =
      (static_cast<std::int64_t>(head_step) * scan.splits + split) * code_group;
  for (int i = static_cast<int>(threadIdx.x); i < scan.group * axes; i += pass_threads) {
    const int g = i / axes;
    const int axis = i % axes;
    float reference = 0;
    for (int w = 0; w < pass_warps; ++w) reference = fmaxf(reference, moves[w * code_group + g]);
    float sum = 0;
    float whole = 0;
    for (int w = 0; w < pass_warps; ++w) {
      const float f = exp2_fast(moves[w * code_group + g] - reference);
      if (axis < V * 8) sum += f * all[(w * code_group + g) * row + axis];
      whole += f * mass[w * code_group + g];
    }
    if (axis < V * 8) scan.sums[(place + g) * axes + axis] = sum;
    if (axis == 0) {
      scan.masses[place + g] = {whole,
                                scan.plans[head_step * code_group + g].reference + reference};
    }
  }
}

/// Calls use with the kernel for a scan's codes and the shared memory that it wants.
template <class Use>
void with_pass(const CodeScan& scan, const Use& use) {
  for_key_bytes(scan.key_bytes, [&](auto key_bytes) {
    constexpr int k = key_bytes;
    for_value_bytes(scan.value_bytes, [&](auto value_bytes) {
      constexpr int v = value_bytes;
      const auto kernel = scan.softcap > 0 ? pass_kernel<k, v, true> : pass_kernel<k, v, false>;
      use(kernel, shared_bytes<k, v>());
    });
  });
}

}  // namespace

int scan_splits(const CodeScan& scan) {
  int device = 0;
  int processors = 0;
  TOPKV_CUDA(cudaGetDevice(&device));
  TOPKV_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  int blocks = 0;
  with_pass(scan, [&](auto kernel, int bytes) {
    TOPKV_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    TOPKV_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, pass_threads, bytes));
  });
  allow_attend_rare(scan.head_dim);
  allow_attend_rest(scan.head_dim);
  return std::clamp(processors * blocks / scan.kv_heads, 1, most_splits);
}

void pass_codes(const CodeScan& scan, cudaStream_t stream) {
  // Constants given as arguments stay in registers.
  const std::uint32_t one = 0x3C003C00U;
  const std::uint32_t eights = 0x88888888U;
  with_pass(scan, [&](auto kernel, int bytes) {
    launch_early(scan, dim3(static_cast<unsigned>(scan.head_steps() * scan.splits)), pass_threads,
                 bytes, stream, kernel, one, eights);
  });
}

}  // namespace topkv::gpu
