// What a pass over codes must know of a query: its coefficients, and, from a sample of the codes,
// the threshold above which rows are listed.
#include <cmath>

#include "gpu/codes/code_score.cuh"
#include "gpu/codes/code_stages.h"
#include "gpu/runtime/kernel_parts.cuh"
#include "gpu/runtime/mma.cuh"

namespace topkv::gpu {
namespace {

constexpr int prepare_threads = 1024;
constexpr int plan_threads = 1024;
constexpr int per_thread = most_sampled / plan_threads;
static_assert(per_thread == maximum_keys, "a thread of the plan knows the largest of its scores");
constexpr int steady_rank = 8;  // of the sample's best, that the threshold is taken from at least
constexpr float furthest = 32;  // above the sample's best, that a threshold is set
constexpr float tie = 0x1p-9F;  // log2: scores this near to each other may have the same weight
constexpr int search_rounds = 24;
constexpr float most_offset = 0x1p28F;  // in units of lo: 2^20 of the high ones (code_score.cuh)

/// A block's work.
__device__ void copy_to_host(const StepInput& input) {
  for (int form = 0; form < input.forms; ++form) {
    for (std::int64_t i = threadIdx.x; i < input.q_count; i += blockDim.x)
      input.host_q[form * input.q_count + i] = input.q[form][i];
  }
  for (std::int64_t i = threadIdx.x; i < input.kv_count; i += blockDim.x) {
    input.host_k[i] = input.k[i];
    if (input.v != nullptr) input.host_v[i] = input.v[i];
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *const_cast<volatile int*>(input.taken) = input.turn;
}

/// Coefficients of one form of a query head: a block. Also empties the head step's lists, and tells
/// the host that the scan has begun.
template <int K, int D>
__global__ void __launch_bounds__(prepare_threads)
    prepare_kernel(const __grid_constant__ CodeScan scan, int* begun, int turn) {
  constexpr int slots = key_slots(K);
  constexpr HeadTables table{D};
  __shared__ __align__(16) float query[D];
  __shared__ float along[slots];
  __shared__ float at_middle;
  const int form_step = static_cast<int>(blockIdx.x) / code_group;
  const int form = form_step / scan.head_steps();
  const int head_step = form_step % scan.head_steps();
  const int head = head_step % scan.kv_heads;
  const int g = static_cast<int>(blockIdx.x) % code_group;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  std::uint8_t* to = scan.coefficients + (form_step * 16 + g) * slots;
  QueryScale* result = scan.scales + form_step * code_group + g;
  // A warp a row: the middle, then slots; as many at once as registers hold, the first of them
  // before there is a query.
  const float* tables = scan.tables + static_cast<std::int64_t>(head) * table.floats(K);
  constexpr int vectors = D / (4 * warp);  // of four elements, that a lane has of a row
  constexpr int rows = 1 + slots;
  constexpr int warps = prepare_threads / warp;
  constexpr int rounds = (rows + warps - 1) / warps;
  constexpr int at_most = vectors == 1 ? 5 : vectors == 2 ? 3 : 1;
  constexpr int at_once = rounds < at_most ? rounds : at_most;
  float4 loaded[at_once][vectors];
  const auto load_rows = [&](int first) {
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const int row = thread / warp + (first + i) * warps;
      const int from = row == 0 ? table.middle : table.slots + (row - 1) * D;
#pragma unroll
      for (int v = 0; v < vectors; ++v)
        if (row < rows) loaded[i][v] = load4(tables + from + 4 * (v * warp + lane));
    }
  };
  let_next_kernel_start();
  load_rows(0);
  wait_for_previous_kernel();
  if (blockIdx.x == 0 && thread == 0 && begun != nullptr) *const_cast<volatile int*>(begun) = turn;
  if (form == 0 && g == 0 && thread < scan.lists) scan.count[head_step * scan_lists + thread] = 0;
  const auto weigh_nothing = [&] {
    if (thread < slots) to[thread] = to[8 * slots + thread] = 0;
    if (thread == 0) *result = {0.0F, -INFINITY};
  };
  if (g >= scan.group) return weigh_nothing();

  const float* q = query_of(scan, form, head_step, g);
  if (thread < D) query[thread] = thread < scan.head_dim ? q[thread] : 0.0F;
  __syncthreads();
  float4 mine[vectors];
#pragma unroll
  for (int v = 0; v < vectors; ++v) mine[v] = load4(query + 4 * (v * warp + lane));
#pragma unroll 1
  for (int first = 0; first < rounds; first += at_once) {
    if (first > 0) load_rows(first);
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const int row = thread / warp + (first + i) * warps;
      if (row >= rows) break;
      float dot = 0;
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        const float4 x = loaded[i][v];
        const float4 q4 = mine[v];
        dot += x.x * q4.x + x.y * q4.y + x.z * q4.z + x.w * q4.w;
      }
      dot = warp_sum(dot);
      if (lane == 0) (row == 0 ? at_middle : along[row - 1]) = dot;
    }
  }
  __syncthreads();
  if (thread >= warp) return;

  const float scale = scan.scale * log2_of_e;
  float most = 0;
  for (int slot = lane; slot < slots; slot += warp) {
    along[slot] = along[slot] / static_cast<float>(1 << (2 * (slot / K)));
    most = fmaxf(most, fabsf(along[slot]));
  }
  most = warp_max(most) * scale;
  float add = at_middle * scale;
  // 16 bits of the largest coefficient; the offset must fit beside the sums. 13 bits of lo, so that
  // 257 lo * magic is exact.
  const float unit = fmaxf(fmaxf(most / 32512.0F, fabsf(add) * 0x1p-27F), 0x1p-24F);
  // Not finite: the host refuses the step. Beyond what sums in float32 hold: nothing is listed.
  if (!(isfinite(add) && unit < 1e30F)) {
    if (lane == 0) *result = {0.0F, -INFINITY};
    for (int slot = lane; slot < slots; slot += warp) to[slot] = to[8 * slots + slot] = 0;
    return;
  }
  const float lo = __uint_as_float((__float_as_uint(unit) + 0x7FFU) & ~0x7FFU);
  int middle = 0;  // what the slots' middle, 1.5, adds up to twice
  for (int slot = lane; slot < slots; slot += warp) {
    const int value = __float2int_rn(along[slot] * scale / lo);
    const int high = (value + 128) >> 8;
    to[slot] = static_cast<std::uint8_t>(high);
    to[8 * slots + slot] = static_cast<std::uint8_t>(value - high * 256);
    middle += value * (3 << (2 * (slot / K)));
  }
  middle = __reduce_add_sync(all_lanes, middle);
  add -= static_cast<float>(middle) * 0.5F * lo;
  if (lane == 0) *result = {lo, add};
}

/// Scores of sampled keys: a warp a unit. Those out of range score -inf.
template <int K, bool capped>
__global__ void __launch_bounds__(block) sample_kernel(const __grid_constant__ CodeScan scan) {
  const int head_step = static_cast<int>(blockIdx.y);
  const int head = head_step % scan.kv_heads;
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const int i = static_cast<int>(blockIdx.x * (block / warp) + threadIdx.x / warp);
  const ScanRange range = scan.range[head_step];
  const int first = range.begin / unit_keys;
  const int units = (range.end + unit_keys - 1) / unit_keys - first;
  const int r = lane / 4;
  const int t = lane % 4;
  auto* to = scan.scores + (head_step * code_group + r) * most_sampled + i * unit_keys;
  float* maxima =
      scan.maxima + (head_step * code_group + r) * plan_threads + i * (unit_keys / maximum_keys);
  const bool empty = range.end <= range.begin || i >= units;
  const int unit = empty ? 0 : sampled_unit(range, i);
  // Codes do not change: they are asked for before there is a query.
  uint4 words[2][K / part_bytes];
#pragma unroll
  for (int g = 0; g < 2 && !empty; ++g) {
    const std::uint8_t* from = scan.units + head * scan.head_bytes +
                               std::int64_t{unit} * unit_bytes(K, scan.value_bytes) + 16 * lane;
#pragma unroll
    for (int p = 0; p < K / part_bytes; ++p)
      words[g][p] = *reinterpret_cast<const uint4*>(from + 32 * K * g + 512 * p);
  }
  let_next_kernel_start();
  wait_for_previous_kernel();
  if (empty) {
    for (int x = 0; x < unit_keys / 4; ++x) to[4 * x + t] = -INFINITY;
    if (t < unit_keys / maximum_keys) maxima[t] = -INFINITY;
    return;
  }
  const auto whole = [&](float score) {
    if constexpr (!capped) return score;
    const SoftCap cap(scan.softcap * log2_of_e);
    return score == -INFINITY ? score : cap.of(score);  // (-inf: there is no such head)
  };
  float2 kept[unit_keys / 8];  // of keys 8 x + 2 t and the next
#pragma unroll
  for (auto& pair : kept) pair = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (int form = 0; form < scan.forms; ++form) {
    const ScanRange of = scan.form_range(form, head_step);
    if (of.end <= unit * unit_keys || of.begin >= (unit + 1) * unit_keys) continue;
    const int form_step = scan.form_step(form, head_step);
    KeyScores<K> keys;
    keys.load(scan.coefficients + form_step * 16 * key_slots(K), lane);
    const QueryScale scale = scan.scales[form_step * code_group + r];
    keys.lo = scale.lo;
    keys.add = -257.0F * scale.lo * magic;
    keys.high = keys.low = magic_bits;
#pragma unroll
    for (int g = 0; g < 2; ++g) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float2 score = keys.of([&](int p) { return word_of(words[g][p], x); });
        const int key = unit * unit_keys + 32 * g + 8 * x + 2 * t;
        const auto keep = [&](int at, float value, float& into) {
          if (at >= of.begin && at < of.end) into = whole(value + scale.add);
        };
        keep(key, score.x, kept[4 * g + x].x);
        keep(key + 1, score.y, kept[4 * g + x].y);
      }
    }
  }
#pragma unroll
  for (int g = 0; g < 2; ++g) {
    float most = -INFINITY;
#pragma unroll
    for (int x = 4 * g; x < 4 * g + 4; ++x) {
      *reinterpret_cast<float2*>(to + 8 * x + 2 * t) = kept[x];
      most = fmaxf(most, fmaxf(kept[x].x, kept[x].y));
    }
    most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 2));
    if (t == 0) maxima[g] = most;
  }
}

/// An integer that is ordered as the number is.
__device__ __forceinline__ std::uint32_t ordered_bits(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFU : 0x80000000U);
}
__device__ __forceinline__ float of_ordered_bits(std::uint32_t bits) {
  return __uint_as_float(bits ^ (bits >> 31 != 0 ? 0x80000000U : 0xFFFFFFFFU));
}

constexpr int most_selected = 255;  // a larger rank is searched for

template <class Use>
__device__ __forceinline__ void each_of(const float* numbers, const Use& use) {
  float4 x[per_thread / 4];
#pragma unroll
  for (int i = 0; i < per_thread / 4; ++i) x[i] = load4(numbers + 4 * i);
#pragma unroll
  for (int i = 0; i < per_thread / 4; ++i) {
    use(x[i].x);
    use(x[i].y);
    use(x[i].z);
    use(x[i].w);
  }
}

/// Of a block's numbers, per_thread of each thread, the one that `rank` others are above (at most
/// most_selected; equal ones in any order). NaN where too many may be it.
struct Selection {
  float kept[plan_threads];
  int count;
  float chosen;

  /// largest: of this thread's numbers; of_all: of the block's. Few threads read theirs.
  __device__ float of(const float* numbers, float largest, float of_all, int rank) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
      count = 0;
      chosen = NAN;
    }
    // What rank + 1 threads or a few more reach with their largest: so many numbers reach it.
    const std::uint32_t key = ordered_bits(largest);
    const std::uint32_t most = ordered_bits(of_all);
    std::uint32_t found = 0;
#pragma unroll 1
    for (std::uint32_t bit = 1U << 31; bit >= 1U << 12; bit >>= 1) {
      if ((found | bit) > most) continue;  // nobody does
      const int reached = __syncthreads_count(key >= (found | bit) ? 1 : 0);
      if (reached <= rank) continue;
      found |= bit;
      if (reached <= rank + warp) break;
    }
    const float least = of_ordered_bits(found);
    if (largest >= least) {
      each_of(numbers, [&](float x) {
        if (!(x >= least)) return;
        const int place = atomicAdd(&count, 1);
        if (place < plan_threads) kept[place] = x;
      });
    }
    __syncthreads();
    if (thread < count && count <= plan_threads) {
      const float mine = kept[thread];
      int above = 0;
      for (int i = 0; i < count; ++i)
        above += kept[i] > mine || (kept[i] == mine && i < thread) ? 1 : 0;
      if (above == rank) chosen = mine;
    }
    __syncthreads();
    return chosen;
  }
};

/// How many of a thread's scores are of keys in the range.
__device__ float sampled_keys(const ScanRange& range, int thread) {
  const int first = range.begin / unit_keys;
  const int units = (range.end + unit_keys - 1) / unit_keys - first;
  const int i = thread / (unit_keys / maximum_keys);
  if (i >= units) return 0;
  const int begin =
      sampled_unit(range, i) * unit_keys + thread % (unit_keys / maximum_keys) * maximum_keys;
  return static_cast<float>(max(0, min(range.end, begin + maximum_keys) - max(range.begin, begin)));
}

/// A number that about `rank` of the block's are above; most: the largest.
__device__ float search(const float* from, float most, float rank, bool exact, float* shared,
                        int (*counts)[plan_threads / warp]) {
  const int thread = static_cast<int>(threadIdx.x);
  float score[per_thread];
  int given = 0;
  float least = INFINITY;
  each_of(from, [&](float x) {
    score[given++] = x;
    least = fminf(least, x == -INFINITY ? INFINITY : x);
  });
  float low = -block_max<plan_threads>(-least, shared) - 1;  // more are above than rank, or as many
  float high = most;                                         // fewer are
  for (int i = 0; i < search_rounds; ++i) {
    const float middle = 0.5F * (low + high);
    int mine = 0;
#pragma unroll
    for (int j = 0; j < per_thread; ++j) mine += score[j] > middle ? 1 : 0;
    int* sums = counts[i % 2];  // one barrier a round
    mine = __reduce_add_sync(all_lanes, mine);
    if (thread % warp == 0) sums[thread / warp] = mine;
    __syncthreads();
    const auto above = static_cast<float>(__reduce_add_sync(all_lanes, sums[thread % warp]));
    // Of a sample no count is right to more than its square root.
    if (above == rank || (!exact && fabsf(above - rank) <= 0.1F * rank)) return middle;
    (above > rank ? low : high) = middle;
  }
  return high;
}

/// The threshold of one query head, for all forms of its query: a block. And one that copies, here
/// because it takes no longer than the others.
__global__ void __launch_bounds__(plan_threads)
    plan_kernel(const __grid_constant__ CodeScan scan, const __grid_constant__ StepInput copied) {
  __shared__ float shared[plan_threads / warp];
  __shared__ int counts[2][plan_threads / warp];
  __shared__ Selection selection;
  const int head_step = static_cast<int>(blockIdx.x) / code_group;
  const int g = static_cast<int>(blockIdx.x) % code_group;
  const int thread = static_cast<int>(threadIdx.x);
  if (head_step == scan.head_steps()) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    return copy_to_host(copied);
  }
  const std::int64_t place = head_step * code_group + g;
  const auto place_of = [&](int form) { return scan.form_step(form, head_step) * code_group + g; };
  const ScanRange range = scan.range[head_step];
  const int keys = max(0, range.end - range.begin);
  const float sampled = block_sum<plan_threads>(keys > 0 ? sampled_keys(range, thread) : 0, shared);
  wait_for_previous_kernel();
  let_next_kernel_start();
  bool weighs = g < scan.group && keys > 0;
  for (int form = 0; form < scan.forms; ++form)
    weighs = weighs && scan.scales[place_of(form)].add != -INFINITY;
  if (!weighs) {
    // No weight is left of it, of -cap neither, which it becomes where it is capped.
    if (thread < scan.forms)
      scan.plans[place_of(thread)] = {0.0F, -1000.0F, 0, 0, scan.softcap > 0 ? 1000.0F : 0.0F};
    return;
  }
  const float* from = scan.scores + place * most_sampled + thread * per_thread;
  const float largest = scan.maxima[place * plan_threads + thread];
  const float most = block_max<plan_threads>(largest, shared);
  const bool all = scan.wanted >= keys;
  float threshold = -INFINITY;
  if (!all) {
    const float wanted = static_cast<float>(scan.wanted) * sampled / static_cast<float>(keys);
    const bool exact = sampled >= static_cast<float>(keys);
    const float rank = exact ? wanted : fminf(fmaxf(wanted, steady_rank), sampled);
    threshold =
        rank <= most_selected ? selection.of(from, largest, most, static_cast<int>(rank)) : NAN;
    if (isnan(threshold)) {
      threshold = search(from, most, rank, exact, shared, counts);
    } else if (wanted < rank) {
      // Further out than the sample tells: weights fall off as a power there, so that scores fall
      // off exponentially (Weissman 1978; the mean excess is Hill's estimator).
      const float mine = thread < selection.count ? selection.kept[thread] : -INFINITY;
      const auto above = static_cast<float>(__syncthreads_count(mine > threshold ? 1 : 0));
      const float excess = block_sum<plan_threads>(fmaxf(mine - threshold, 0.0F), shared);
      // The threshold is the next of the sample, so that one more reaches it.
      if (above > 0) threshold += excess / above * logf(fmaxf((above + 1) / wanted, 1.0F));
      threshold = fminf(threshold, most + (scan.softcap > 0 ? 0.0F : furthest));
    }
    // Where the cap is near, many rows may have the score of the threshold: they are listed.
    if (scan.softcap > 0) threshold -= tie;
  }

  if (thread >= scan.forms) return;
  const QueryScale scale = scan.scales[place_of(thread)];
  QueryPlan plan;
  // Weights of what is not listed stay below 2^-6 of the reference.
  plan.reference = all ? most : threshold + scan_threshold_log2;
  plan.lo = scale.lo;
  plan.add = -257.0F * scale.lo * magic;
  const float from_reference = scale.add - plan.reference + scan_bias_log2;
  // Another form's scores may lie far below the reference: further than sums hold, by the rest.
  const float start = scan.softcap > 0 ? scale.add : fmaxf(from_reference, -most_offset * scale.lo);
  if (scan.softcap <= 0) plan.add += from_reference - start;
  split_offset(start, scale.lo, &plan.high, &plan.low);
  scan.plans[place_of(thread)] = plan;
}

}  // namespace

void prepare_queries(const CodeScan& scan, const StepInput& copied, cudaStream_t stream) {
  const dim3 heads(static_cast<unsigned>(scan.form_steps() * code_group));
  const dim3 sample(scan_sample_units / (block / warp), static_cast<unsigned>(scan.head_steps()));
  for_key_bytes(scan.key_bytes, [&](auto bytes) {
    constexpr int k = bytes;
    for_dims(scan.head_dim, [&](auto dims) {
      launch_early(scan, heads, prepare_threads, 0, stream, prepare_kernel<k, dims>, copied.begun,
                   copied.turn);
    });
    launch_early(scan, sample, block, 0, stream,
                 scan.softcap > 0 ? sample_kernel<k, true> : sample_kernel<k, false>);
  });
  const dim3 blocks(
      static_cast<unsigned>(scan.head_steps() * code_group + (copied.host_q != nullptr ? 1 : 0)));
  launch_early(scan, blocks, plan_threads, 0, stream, plan_kernel, copied);
}

}  // namespace topkv::gpu
