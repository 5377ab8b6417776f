// What follows a pass over codes: what it summed up, as a partial, the tail; and attention over the
// rows that it listed, where the device has them.
#include <cmath>

#include "gpu/codes/code_listed.cuh"
#include "gpu/codes/code_score.cuh"
#include "gpu/codes/code_stages.h"
#include "gpu/runtime/kernel_parts.cuh"
#include "gpu/runtime/mma.cuh"

namespace topkv::gpu {
namespace {

template <int D>
constexpr int parts = D > many_dims ? 2 : 4;  // threads of a dim, and of an axis
template <int D>
constexpr int threads = parts<D>* D;
constexpr int errors_entries = 128;
constexpr int correction_fields = sizeof(CorrectionSums) / sizeof(float);

/// log of the normal distribution at z.
__device__ __forceinline__ float log_normal(float z) {
  constexpr float half_root = 0.70710678F;
  if (z > 0) return logf(normcdff(z));
  return logf(0.5F * erfcxf(-z * half_root)) - 0.5F * z * z;
}

/// log of the mean of exp(error), errors normal of deviation s and less than x.
__device__ __forceinline__ float log_mean_error(float s, float x) {
  if (s < 1e-6F) return 0.0F;
  const float z = x / s - s;
  if (z > 0) return 0.5F * s * s + log_normal(z) - log_normal(x / s);
  constexpr float half_root = 0.70710678F;  // s² / 2 cancels
  return logf(0.5F * erfcxf(-z * half_root)) + x - 0.5F * (x / s) * (x / s) - log_normal(x / s);
}

/// The deviation of a score's error for one form of a query head: `parts` threads an axis of the
/// errors. Of scores that are capped it says little: 0, and they are taken as they are.
template <int D>
__device__ float error_deviation(const CodeScan& scan, int form, int head_step, int g,
                                 float* shared) {
  if (scan.softcap > 0) return 0;
  constexpr HeadTables table{D};
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t head = head_step % scan.kv_heads;
  const float* axis =
      scan.tables + head * table.floats(scan.key_bytes) + table.errors + thread / parts<D> * D;
  const float* query = query_of(scan, form, head_step, g);
  float dot = 0;
#pragma unroll 4
  for (int i = 4 * (thread % parts<D>); i < scan.head_dim; i += 4 * parts<D>) {
    const float4 x = load4(axis + i);
    dot += x.x * query[i] + x.y * query[i + 1] + x.z * query[i + 2] + x.w * query[i + 3];
  }
#pragma unroll
  for (int step = 1; step < parts<D>; step *= 2) dot += __shfl_xor_sync(all_lanes, dot, step);
  return scan.scale *
         sqrtf(block_sum<threads<D>>(thread % parts<D> == 0 ? dot * dot : 0.0F, shared));
}

/// A thread's part of the squared shared error (SharedError) of a query, which the threads of
/// scan_correction_parts blocks have together. It has some elements of the form, four side by side,
/// all of the same columns.
template <int D>
class SharedErrorPart {
 public:
  /// Asks for the first elements.
  __device__ __forceinline__ SharedErrorPart(const CodeScan& scan, int head, int part)
      : unit_(scan.scale * scan.errors[head].shared_unit),
        column_(4 * (static_cast<int>(threadIdx.x) % row_threads)),
        row_(part * (D / scan_correction_parts) + static_cast<int>(threadIdx.x) / row_threads),
        from_(scan.shared_forms + (static_cast<std::int64_t>(head) * D + row_) * D + column_) {
    load(0);
  }

  __device__ __forceinline__ float of(const float* query, int head_dim) {
    float4 q{};  // (queries are aligned to elements only)
    if (column_ < head_dim)
      q = {query[column_], query[column_ + 1], query[column_ + 2], query[column_ + 3]};
    double sum = 0;  // queries of huge keys are tiny
#pragma unroll
    for (int first = 0; first < vectors; first += at_once) {
      if (first > 0) load(first);
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int row = row_ + (first + i) * rows;
        const float4 x = loaded_[i];
        const float product = x.x * q.x + x.y * q.y + x.z * q.z + x.w * q.w;
        if (row < head_dim) sum += static_cast<double>(query[row]) * product;
      }
    }
    return static_cast<float>(sum * unit_ * unit_);
  }

 private:
  static constexpr int row_threads = D / 4;
  static constexpr int rows = threads<D> / row_threads;  // that a block has at once
  static constexpr int vectors = D / (scan_correction_parts * rows);
  static constexpr int at_once = vectors < 4 ? vectors : 4;
  static_assert(threads<D> % row_threads == 0 && vectors * rows * scan_correction_parts == D &&
                vectors % at_once == 0);

  __device__ __forceinline__ void load(int first) {
#pragma unroll
    for (int i = 0; i < at_once; ++i) loaded_[i] = load4(from_ + (first + i) * rows * D);
  }

  double unit_;
  int column_, row_;
  const float* from_;
  float4 loaded_[at_once];
};

/// The samples of a head step that come before the rows of a form: a block. The last forms meet the
/// first rows.
template <int D>
__device__ int samples_before(const CodeScan& scan, int form, int head_step, float* shared) {
  const ScanRange range = scan.range[head_step];
  const int border = scan.form_range(form, head_step).begin;
  float before = 0;
  for (int i = static_cast<int>(threadIdx.x); i < scan_sample_units; i += threads<D>)
    before += sampled_unit(range, i) * unit_keys < border ? 1.0F : 0.0F;
  return static_cast<int>(block_sum<threads<D>>(before, shared));
}

/// One thread of each block that has written its part of what is known of a head's tail: the
/// sums of a part of the sample, or mass and reference. The last of them adds the parts up.
/// number: head step * group + query head.
__device__ void arrive_tail(const CodeScan& scan, int number) {
  __threadfence();
  if (atomicAdd(scan.tail_arrived + number, 1) < scan_correction_parts) return;
  scan.tail_arrived[number] = 0;
  __threadfence();
  CorrectionSums all{};
#pragma unroll
  for (int part = 0; part < scan_correction_parts; ++part) {
    const CorrectionSums* of = scan.corrections + number * scan_correction_parts + part;
    all.plain += __ldcg(&of->plain);
    all.squares += __ldcg(&of->squares);
    all.noise += __ldcg(&of->noise);
    all.sampled += __ldcg(&of->sampled);
#pragma unroll
    for (int form = 0; form < query_forms; ++form) {
      all.corrected[form] += __ldcg(&of->corrected[form]);
      all.shared[form] += __ldcg(&of->shared[form]);
    }
  }
  float corrected = 0;
#pragma unroll
  for (const float of_form : all.corrected) corrected += of_form;
  const float2 mass = __ldcg(scan.tail_masses + number);
  const int head_step = number / scan.group;
  const int head = head_step % scan.kv_heads;
  const ScanRange range = scan.range[head_step];
  const ScanToken& token = scan.token[head_step / scan.kv_heads];
  const int row = head * scan.group + number % scan.group;  // among the token's heads
  const float add = all.plain > 0 ? logf(corrected / all.plain) : 0.0F;
  token.parts.estimate.lse[row] =
      mass.x > 0 ? (log2f(mass.x) - scan_bias_log2 + mass.y) / log2_of_e + add : -INFINITY;
  // A sum of squares grows as the number of keys, the square of their sum as its square.
  const auto keys = static_cast<float>(range.end - range.begin);
  const float of_all = corrected > 0 ? all.sampled / keys / (corrected * corrected) : 0.0F;
  // Forms have their shares of the tail. Their errors are taken as independent (joined).
  float shared = 0;
#pragma unroll
  for (int form = 0; form < query_forms; ++form) {
    const float share = corrected > 0 ? all.corrected[form] / corrected : 0.0F;
    shared += share * share * shared_square(all.shared[form]);
  }
  const HeadErrors errors = scan.errors[head];
  token.parts.noise[row] = {all.noise * of_all,
                            all.squares * of_all * errors.value_error_variance + shared,
                            errors.value_variance};
}

/// What the codes' errors add to the mass of keys below the threshold, on average over a part of
/// the sample, and a part of the shared error, for one query head: a block. It reads nothing of the
/// pass, and what it reads was there before that began: it begins where the pass leaves room.
template <int D>
__device__ void correct_part(const CodeScan& scan, int number, int part) {
  constexpr int warps = threads<D> / warp;
  __shared__ float shared[warp];
  __shared__ float errors[errors_entries];  // means of exp(error), by the distance to the threshold
  __shared__ CorrectionSums sums_of[warps];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  const int head_step = number / scan.group;
  const int g = number % scan.group;
  const ScanRange range = scan.range[head_step];
  const bool any = scan.wanted < range.end - range.begin;  // else nothing is below
  const int place = head_step * code_group + g;
  const float threshold = __ldcg(&scan.plans[place].reference) - scan_threshold_log2;
  const float* from = scan.scores + static_cast<std::int64_t>(place) * most_sampled;
  constexpr int of_part = most_sampled / scan_correction_parts;
  CorrectionSums& mine = sums_of[thread / warp];  // of this thread's warp; lane 0 writes it
  if (lane == 0) mine = {};
  float plain = 0, squares = 0, noise = 0, sampled = 0;
  int form_end = most_sampled;
#pragma unroll 1
  for (int form = 0; form < scan.forms && any; ++form) {
    SharedErrorPart<D> shared_error(scan, head_step % scan.kv_heads, part);
    const bool last = form + 1 == scan.forms;
    const int form_begin = last ? 0 : unit_keys * samples_before<D>(scan, form, head_step, shared);
    const int begin = max(form_begin, of_part * part);
    const int end = min(form_end, of_part * (part + 1));
    form_end = form_begin;
    const bool has_samples = begin < end;
    const float s = has_samples ? error_deviation<D>(scan, form, head_step, g, shared) : 0.0F;
    const float square =
        warp_sum(shared_error.of(query_of(scan, form, head_step, g), scan.head_dim));
    if (lane == 0) mine.shared[form] = square;
    if (!has_samples) continue;
    const float step = fmaxf(s * (s + 4), 1e-6F) * log2_of_e / (errors_entries - 1);
    if (thread < errors_entries) {
      errors[thread] =
          expf(fminf(log_mean_error(s, static_cast<float>(thread) * step / log2_of_e), 60.0F));
    }
    __syncthreads();
    const float per_step = 1 / step;
    float corrected = 0;         // of this form
    float form_squares = 0;      // likewise
    constexpr int at_once = 16;  // loads on their way
#pragma unroll 1
    for (int first = begin; first < end; first += at_once * threads<D>) {
      float below[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int at = first + i * threads<D> + thread;
        below[i] = at < end ? threshold - __ldcg(from + at) : INFINITY;
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        sampled += below[i] < INFINITY ? 1.0F : 0.0F;
        if (!(below[i] >= 0.0F && below[i] < INFINITY)) continue;
        const float weight = exp2_fast(-below[i]);
        const float steps = fminf(below[i] * per_step, errors_entries - 1.001F);
        const int entry = static_cast<int>(steps);
        const float beyond = steps - static_cast<float>(entry);
        plain += weight;
        const float mass = weight * (errors[entry] + beyond * (errors[entry + 1] - errors[entry]));
        corrected += mass;
        form_squares += mass * mass;
      }
    }
    squares += form_squares;
    noise += form_squares * expm1f(fminf(s * s, largest_tail_variance));
    corrected = warp_sum(corrected);
    if (lane == 0) mine.corrected[form] = corrected;
    __syncthreads();  // all have read the errors
  }
  plain = warp_sum(plain);
  squares = warp_sum(squares);
  noise = warp_sum(noise);
  sampled = warp_sum(sampled);
  if (lane == 0) {
    mine.plain = plain;
    mine.squares = squares;
    mine.noise = noise;
    mine.sampled = sampled;
  }
  __syncthreads();
  if (thread >= warp) return;
  auto* to = reinterpret_cast<float*>(scan.corrections + number * scan_correction_parts + part);
  const auto* of_warp = reinterpret_cast<const float*>(sums_of + lane);
#pragma unroll
  for (int i = 0; i < correction_fields; ++i) {
    const float sum = warp_sum(lane < warps ? of_warp[i] : 0.0F);
    if (lane == 0) to[i] = sum;
  }
  if (lane == 0) arrive_tail(scan, number);
}

/// What the pass summed up for a query head: a block, `parts` threads to a dim.
template <int D>
__device__ void estimate_head(const CodeScan& scan, int number, int axes) {
  constexpr HeadTables table{D};
  __shared__ float part_sums[parts<D>][D];
  __shared__ float factor[most_splits];
  __shared__ float share[D];
  __shared__ float whole_mass, whole_reference;
  const int head_step = number / scan.group;
  const int head = head_step % scan.kv_heads;
  const ScanToken& token = scan.token[head_step / scan.kv_heads];
  const int g = number % scan.group;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  const int d = thread % D;
  const int part = thread / D;
  const float* tables =
      scan.tables + static_cast<std::int64_t>(head) * table.floats(scan.key_bytes);
  constexpr int per_part = D / parts<D>;
  const auto direction = [&](int i) {
    const int axis = part * per_part + i;
    return axis < axes ? tables[table.values + axis * D + d] : 0.0F;
  };
  constexpr int early = D > few_dims ? 8 : per_part;  // as many as registers hold beside the rest
  float directions[early];
#pragma unroll
  for (int i = 0; i < early; ++i) directions[i] = direction(i);
  const float base = tables[table.base + d];
  wait_for_previous_kernel();
  const auto place = [&](int s) {
    return (static_cast<std::int64_t>(head_step) * scan.splits + s) * code_group + g;
  };
  if (thread < warp) {
    constexpr int of_lane = most_splits / warp;
    float2 of[of_lane];
    float reference = -INFINITY;
#pragma unroll
    for (int i = 0; i < of_lane; ++i) {
      const int s = i * warp + lane;
      of[i] = s < scan.splits ? scan.masses[place(s)] : float2{0, 0};
    }
#pragma unroll
    for (const float2& m : of)
      if (m.x > 0) reference = fmaxf(reference, m.y);
    reference = warp_max(reference);
    float mass = 0;
#pragma unroll
    for (int i = 0; i < of_lane; ++i) {
      const float f = of[i].x > 0 ? exp2f(of[i].y - reference) : 0.0F;
      factor[i * warp + lane] = f;
      mass += of[i].x * f;
    }
    mass = warp_sum(mass);
    if (lane == 0) {
      whole_mass = mass;
      whole_reference = reference;
    }
  }
  __syncthreads();
  const int row_axes = sum_axes(axes / 8);
  float sum = 0;
#pragma unroll 16
  for (int s = part; s < scan.splits; s += parts<D>)
    sum += d < axes ? factor[s] * scan.sums[place(s) * row_axes + d] : 0.0F;
  part_sums[part][d] = sum;
  __syncthreads();
  const bool any = whole_mass > 0;
  const auto all_parts = [&](float first) {
#pragma unroll
    for (int i = 0; i < parts<D>; ++i) first += part_sums[i][d];
    return first;
  };
  if (part == 0) share[d] = any ? all_parts(0.0F) / whole_mass : 0.0F;
  __syncthreads();
  float x = 0;
#pragma unroll
  for (int i = 0; i < early; ++i) x += directions[i] * share[part * per_part + i];
#pragma unroll 8
  for (int i = early; i < per_part; ++i) x += direction(i) * share[part * per_part + i];
  part_sums[part][d] = x;

  __syncthreads();
  if (part > 0) return;
  const int row = head * scan.group + g;  // among the token's heads
  if (d < scan.head_dim) {
    const float tail = all_parts(base);
    token.parts.estimate.out[row * scan.head_dim + d] = any ? tail : 0.0F;
  }
  if (d > 0) return;
  scan.tail_masses[number] = {whole_mass, whole_reference};
  arrive_tail(scan, number);
}

/// For the heads whose tail is wanted, `tails` of them, blocks of parts of their corrections, then
/// of estimates; then blocks of parts of the rows that are listed.
template <int D>
__global__ void __launch_bounds__(threads<D>, D > few_dims ? 1 : 2)
    rest_kernel(const __grid_constant__ CodeScan scan, int tails, int axes) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  let_next_kernel_start();
  const int number = static_cast<int>(blockIdx.x);
  const int corrections = tails * scan_correction_parts;
  if (number < corrections) {
    correct_part<D>(scan, number / scan_correction_parts, number % scan_correction_parts);
  } else if (number < corrections + tails) {
    estimate_head<D>(scan, number - corrections, axes);
  } else {
    attend_listed_part<D, threads<D>>(scan, number - corrections - tails, memory);
  }
}

}  // namespace

bool can_scan_early() {
  return kernel_architecture() >= 90;  // code for older devices has no such waits
}

void attend_rest(const CodeScan& scan, cudaStream_t stream) {
  const bool listed = scan.listed_rows.keys != nullptr;
  const int tails = scan.tail ? scan.head_steps() * scan.group : 0;
  const int blocks =
      tails * (scan_correction_parts + 1) + (listed ? scan.kv_heads * scan_listed_parts : 0);
  for_dims(scan.head_dim, [&](auto dims) {
    launch_early(scan, dim3(static_cast<unsigned>(blocks)), threads<dims>,
                 listed ? listed_shared_bytes<dims>(scan.forms) : 0, stream, rest_kernel<dims>,
                 tails, 8 * scan.value_bytes);
  });
}

void allow_attend_rest(int head_dim) {
  for_dims(head_dim, [&](auto dims) {
    TOPKV_CUDA(cudaFuncSetAttribute(rest_kernel<dims>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    listed_shared_bytes<dims>(query_forms)));
  });
}

}  // namespace topkv::gpu
