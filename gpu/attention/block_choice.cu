#include <algorithm>

#include "gpu/attention/attention_parts.cuh"
#include "gpu/attention/block_choice.cuh"
#include "gpu/attention/block_choice.h"
#include "gpu/attention/block_choice_sm90.h"
#include "gpu/attention/block_looks.cuh"
#include "gpu/runtime/kernel_parts.cuh"
#include "src/device/pieces.h"

namespace topkv::gpu {
namespace {

constexpr int choosing_threads = 256;         // of a block that chooses
constexpr std::int64_t pieces_at_once = 128;  // whose scores there is memory for
constexpr int bins = 256;
constexpr int least_tile_samples = 64;

// Of a block that chooses, at most: entries and samples.
constexpr int most_shared_bytes =
    static_cast<int>(8 * (candidate_factor * most_chosen_keys_on_cuda / key_block +
                          sampled_tokens * most_choosing_heads_on_cuda));

template <class T>
struct BlockScorer;

/// Scores of a tile of samples, 16 * frags a warp, with 64 keys. Wide heads come in slabs of
/// elements, queries and keys of a slab together; else the queries stay in shared memory.
template <int head_dim_, int frags_, int slab_ = head_dim_>
struct Look {
  struct Sources {};
  using Scorer = BlockScorer<Look>;
  static constexpr int head_dim = head_dim_;
  static constexpr int frags = frags_;
  static constexpr int slab = slab_;
  static constexpr int slabs = head_dim / slab;
  static constexpr bool whole = slabs == 1;
  static constexpr int threads = 128;
  static constexpr int tile_rows = 16 * frags * (threads / 32);
  static constexpr int blocks_per_sm = 2;

  using Shared = SharedRows<slab>;
  static constexpr int query_bytes = tile_rows * Shared::row_bytes;
  static constexpr int key_bytes = block_keys * Shared::row_bytes;
  static constexpr int stage_bytes = key_bytes + (whole ? 0 : query_bytes);
  static constexpr int shared_bytes = 2 * stage_bytes + (whole ? query_bytes : 0);
  static_assert(slabs * slab == head_dim && slab % 16 == 0);
  static_assert(block_keys * Shared::chunks % threads == 0);
  static_assert(shared_bytes <= 99 * 1024, "what a block of sm_86, sm_89 and sm_120 may have");
};

/// Mean keys of whole blocks. Grid: (blocks, kv_heads). Threads: pairs of elements.
__global__ void means_kernel(const __grid_constant__ ChoiceTask task, int head_dim) {
  const std::int64_t at = blockIdx.x;
  const auto* keys = reinterpret_cast<const __nv_bfloat162*>(
      task.keys + blockIdx.y * task.head_stride + at * block_keys * head_dim);
  auto* mean = reinterpret_cast<__nv_bfloat162*>(task.means +
                                                 (blockIdx.y * task.most_blocks + at) * head_dim);
  for (int i = static_cast<int>(threadIdx.x); i < head_dim / 2; i += static_cast<int>(blockDim.x)) {
    float2 sum = make_float2(0.0F, 0.0F);
    for (int key = 0; key < block_keys; ++key) {
      const float2 x = __bfloat1622float2(keys[key * (head_dim / 2) + i]);
      sum.x += x.x;
      sum.y += x.y;
    }
    mean[i] = __floats2bfloat162_rn(sum.x / block_keys, sum.y / block_keys);
  }
}

/// Copies a slab of the samples' queries of a form to shared memory; zeros beyond the samples.
template <class T>
__device__ __forceinline__ void copy_samples(const ChoiceTask& task, const Piece& piece,
                                             const SampleTile& tile, int form, int slab,
                                             std::uint32_t to) {
  constexpr int chunks = T::Shared::chunks;
  const __nv_bfloat16* queries = task.queries + form * task.form_stride + slab * T::slab;
  for (int index = static_cast<int>(threadIdx.x); index < T::tile_rows * chunks;
       index += T::threads) {
    const int row = index / chunks;
    const int chunk = index % chunks;
    const int sample = tile.first + row;
    const bool valid = sample < tile.count;
    const int token = piece.sample(valid ? sample / task.group : 0);
    const int head = tile.kv_head * task.group + (valid ? sample % task.group : 0);
    const std::int64_t from =
        (static_cast<std::int64_t>(token) * task.q_heads + head) * T::head_dim + chunk * 8;
    copy_async(to + T::Shared::offset(row, chunk), queries + from, valid);
  }
}

/// Copies a slab of the keys of a block to shared memory; zeros from key number `count` on.
template <class T>
__device__ __forceinline__ void copy_block(const __nv_bfloat16* keys, int block, int count,
                                           int slab, std::uint32_t to) {
  constexpr int chunks = T::Shared::chunks;
  const unsigned thread = compute_here(threadIdx.x);
#pragma unroll
  for (unsigned step = 0; step < block_keys * chunks / T::threads; ++step) {
    // Where a step is whole rows, written so that the steps differ by constants.
    constexpr bool whole_rows = T::threads % chunks == 0;
    const unsigned index = step * T::threads + thread;
    const int row = static_cast<int>(whole_rows ? thread / chunks + step * (T::threads / chunks)
                                                : index / chunks);
    const int chunk = static_cast<int>((whole_rows ? thread : index) % chunks);
    const int key = block * block_keys + row;
    const bool valid = key < count;
    const std::int64_t from =
        static_cast<std::int64_t>(valid ? key : 0) * T::head_dim + slab * T::slab + chunk * 8;
    copy_async(to + T::Shared::offset(row, chunk), keys + from, valid);
  }
}

/// Adds the products of the warp's samples and 64 keys over a slab. queries, keys: the lane's
/// ldmatrix addresses.
template <class T>
__device__ __forceinline__ void add_products(std::uint32_t queries, std::uint32_t keys,
                                             float (&scores)[T::frags][8][4]) {
  using S = typename T::Shared;
#pragma unroll
  for (int k = 0; k < T::slab / 16; ++k) {
    std::uint32_t a[T::frags][4];
#pragma unroll
    for (int f = 0; f < T::frags; ++f)
      load_matrices(a[f], S::advance(queries, k) + f * 16 * S::row_bytes);
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      std::uint32_t b[4];
      load_matrices(b, S::advance(keys, k) + n * 8 * S::row_bytes);
#pragma unroll
      for (int f = 0; f < T::frags; ++f) {
        mma(scores[f][n], a[f], b[0], b[1]);
        mma(scores[f][n + 1], a[f], b[2], b[3]);
      }
    }
  }
}

/// Loops over blocks of 64 keys: use(number, scores) with this warp's scores of one form of the
/// queries, unscaled and not capped. keys: of the KV head, key_count of them. blocks(i): the block
/// with number i of `count`.
template <class T, class Blocks, class Use>
__device__ __forceinline__ void score_blocks(const ChoiceTask& task, const Piece& piece,
                                             const SampleTile& tile, int form,
                                             const __nv_bfloat16* keys, int key_count, int count,
                                             const Blocks& blocks, std::uint32_t shared,
                                             const Use& use) {
  using S = typename T::Shared;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * T::frags;
  const std::uint32_t stages = shared + (T::whole ? T::query_bytes : 0);
  const std::uint32_t query_address =
      (T::whole ? shared : stages + T::key_bytes) + S::offset(warp_row + lane % 16, lane / 16);
  const std::uint32_t key_address = stages + S::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  const auto copy = [&](int step, std::uint32_t to) {
    copy_block<T>(keys, blocks(step / T::slabs), key_count, step % T::slabs, to);
    if (!T::whole) copy_samples<T>(task, piece, tile, form, step % T::slabs, to + T::key_bytes);
  };
  const int steps = count * T::slabs;
  if (steps <= 0) return;
  __syncthreads();  // nobody reads a stage or the queries any more
  if (T::whole) copy_samples<T>(task, piece, tile, form, 0, shared);
  copy(0, stages);
  std::uint32_t stage = 0;
  float scores[T::frags][8][4];
  for (int step = 0; step < steps; ++step) {
    wait_copies();
    __syncthreads();  // the slab is here, and nobody reads the other stage any more
    if (step + 1 < steps) copy(step + 1, stages + (stage ^ T::stage_bytes));
    if (step % T::slabs == 0) {
#pragma unroll
      for (int f = 0; f < T::frags; ++f) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (float& score : scores[f][n]) score = 0.0F;
        }
      }
    }
    add_products<T>(compute_here(query_address) + (T::whole ? 0 : stage), key_address + stage,
                    scores);
    if ((step + 1) % T::slabs == 0) use(step / T::slabs, scores);
    stage ^= T::stage_bytes;
  }
}

/// Scores through mma.sync.
template <class T>
struct BlockScorer {
  const ChoiceTask& task;
  const Piece& piece;
  const SampleTile& tile;
  std::uint32_t shared;

  __device__ __forceinline__ BlockScorer(const ChoiceTask& of, const typename T::Sources&,
                                         const Piece& from, const SampleTile& samples,
                                         std::uint32_t memory)
      : task(of), piece(from), tile(samples), shared(memory) {}

  template <class Blocks, class Use>
  __device__ __forceinline__ void score(Scored what, int form, int key_count, int count,
                                        const Blocks& blocks, const Use& use) {
    const __nv_bfloat16* keys =
        what == Scored::means
            ? task.means + tile.kv_head * task.most_blocks * std::int64_t{T::head_dim}
            : task.keys + tile.kv_head * task.head_stride;
    score_blocks<T>(task, piece, tile, form, keys, key_count, count, blocks, shared, use);
  }
};

/// The number of flags that are set in threads before this one, and in all. All threads call it.
__device__ __forceinline__ int count_before(bool flag, int* warp_counts, int& all) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_number = static_cast<int>(threadIdx.x) / 32;
  const unsigned votes = __ballot_sync(all_lanes, flag);
  __syncthreads();  // the last call's counts are read
  if (lane == 0) warp_counts[warp_number] = __popc(votes);
  __syncthreads();
  int before = __popc(votes & ((1U << lane) - 1U));
  all = 0;
  for (int i = 0; i < choosing_threads / 32; ++i) {
    if (i < warp_number) before += warp_counts[i];
    all += warp_counts[i];
  }
  return before;
}

/// Keeps the candidates with the largest shares, and lists what the second look meets. Grid:
/// (pieces, kv_heads).
__global__ void __launch_bounds__(choosing_threads)
    keep_kernel(const __grid_constant__ ChoiceTask task, int first_piece) {
  __shared__ int histogram[bins];
  __shared__ int warp_counts[choosing_threads / 32];
  __shared__ unsigned chosen_prefix;
  __shared__ int still_wanted;
  const Piece piece(task, first_piece + static_cast<int>(blockIdx.x));
  const std::int64_t at = blockIdx.x * task.kv_heads + static_cast<int>(blockIdx.y);
  if (!piece.chooses(task)) {
    if (threadIdx.x < 2) task.entry_counts[at * 2 + threadIdx.x] = 0;
    return;
  }
  const int n = piece.candidates();
  float* shares = task.shares + at * task.sample_tiles * task.most_blocks + piece.sinks;
  const int tiles = (piece.sampled() * task.group - 1) / task.tile_samples + 1;
  for (int i = static_cast<int>(threadIdx.x); tiles > 1 && i < n; i += choosing_threads) {
    for (int tile = 1; tile < tiles; ++tile) shares[i] += shares[tile * task.most_blocks + i];
  }
  const int wanted = min(n, static_cast<int>(candidate_factor) * task.most);
  // Radix selection: the bits of floats that are not negative ascend as they do.
  if (threadIdx.x == 0) {
    chosen_prefix = 0;
    still_wanted = wanted;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < bins; i += choosing_threads) histogram[i] = 0;
    __syncthreads();
    const unsigned prefix = chosen_prefix;
    for (int i = static_cast<int>(threadIdx.x); i < n; i += choosing_threads) {
      const unsigned bits = __float_as_uint(shares[i]);
      if (shift == 24 || bits >> (shift + 8) == prefix >> (shift + 8))
        atomicAdd(&histogram[bits >> shift & 255U], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = bins - 1;
      int left = still_wanted;
      while (bin > 0 && histogram[bin] < left) left -= histogram[bin--];
      still_wanted = left;
      chosen_prefix = prefix | static_cast<unsigned>(bin) << shift;
    }
    __syncthreads();
  }
  const unsigned least = chosen_prefix;
  int equal_left = still_wanted;
  int* entries = task.entries + at * task.most_entries;
  const int local = piece.last + 1 - piece.local;
  const int forced = piece.sinks + local;
  for (int i = static_cast<int>(threadIdx.x); i < forced; i += choosing_threads)
    entries[i] = i < piece.sinks ? i : piece.local + i - piece.sinks;
  int kept = forced;
  for (int begin = 0; begin < n; begin += choosing_threads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const unsigned bits = i < n ? __float_as_uint(shares[i]) : 0U;
    const bool equal = i < n && bits == least;
    int equals = 0;
    const bool taken_equal = count_before(equal, warp_counts, equals) < equal_left && equal;
    const bool taken = taken_equal || (i < n && bits > least);
    int more = 0;
    const int place = kept + count_before(taken, warp_counts, more);
    if (taken) entries[place] = piece.sinks + i;
    kept += more;
    equal_left -= min(equal_left, equals);
  }
  if (threadIdx.x == 0) {
    task.entry_counts[at * 2] = forced;
    task.entry_counts[at * 2 + 1] = kept;
  }
}

/// Keys that the tokens of a piece attend in blocks from number `from` on.
__device__ __forceinline__ unsigned long long keys_from(const Piece& piece, int from) {
  unsigned long long keys = 0;
  for (int token = piece.begin; token < piece.end; ++token)
    keys +=
        static_cast<unsigned long long>(piece.first + token - piece.begin + 1 - from * block_keys);
  return keys;
}

/// Chooses among the entries. Grid: (pieces, kv_heads). Shared memory: `size` masses and numbers,
/// size a power of two that holds the kept entries, then 2 * samples floats.
__global__ void __launch_bounds__(choosing_threads)
    choose_kernel(const __grid_constant__ ChoiceTask task, int first_piece, int size,
                  ShareSums* sums) {
  extern __shared__ unsigned char shared[];
  auto* masses = reinterpret_cast<float*>(shared);
  auto* numbers = reinterpret_cast<int*>(masses + size);
  auto* totals = reinterpret_cast<float*>(numbers + size);
  float* forced_shares = totals + task.samples;
  __shared__ int warp_counts[choosing_threads / 32];
  __shared__ int chosen_count;
  __shared__ float met_share;
  const Piece piece(task, first_piece + static_cast<int>(blockIdx.x));
  const std::int64_t at = blockIdx.x * task.kv_heads + static_cast<int>(blockIdx.y);
  int* blocks = task.blocks + at * task.most_listed;
  if (!piece.chooses(task)) {
    for (int i = static_cast<int>(threadIdx.x); i <= piece.last; i += choosing_threads)
      blocks[i] = i;
    if (threadIdx.x == 0) {
      task.block_counts[at] = piece.last + 1;
      atomicAdd(&sums->mass, static_cast<double>(piece.end - piece.begin));
      atomicAdd(&sums->keys, keys_from(piece, 0));
    }
    return;
  }
  const int forced = task.entry_counts[at * 2];
  const int count = task.entry_counts[at * 2 + 1];
  const int kept = count - forced;
  const int samples = piece.sampled() * task.group;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto entry_lse = [&](int sample) {
    return task.entry_lse + (at * task.samples + sample) * task.most_entries;
  };
  for (int sample = static_cast<int>(threadIdx.x) / 32; sample < samples;
       sample += choosing_threads / 32) {
    const float* lse = entry_lse(sample);
    const float* mean = task.entry_mean + (at * task.samples + sample) * task.most_entries;
    const float mean_lse = task.mean_lse[at * task.samples + sample];
    float high = -INFINITY;
    for (int i = lane; i < count; i += 32) high = fmaxf(high, lse[i]);
    high = warp_max(high);
    float of_forced = 0.0F;
    float all = 0.0F;
    float seen = 0.0F;
    for (int i = lane; i < count; i += 32) {
      const float weight = expf(lse[i] - high);
      all += weight;
      if (i < forced) {
        of_forced += weight;
      } else {
        seen += expf(mean[i] - mean_lse);
      }
    }
    of_forced = warp_sum(of_forced);
    all = warp_sum(all);
    seen = warp_sum(seen);
    if (lane != 0) continue;
    const float unseen = fmaxf(0.0F, 1.0F - seen) * block_keys * expf(mean_lse - high);
    totals[sample] = high + logf(all + unseen);
    forced_shares[sample] = of_forced / (all + unseen);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < size; i += choosing_threads) {
    float mass = -1.0F;
    if (i < kept) {
      mass = 0.0F;
      for (int sample = 0; sample < samples; ++sample)
        mass += expf(entry_lse(sample)[forced + i] - totals[sample]);
    }
    masses[i] = mass;
    numbers[i] = i;
  }
  // Bitonic sort: by falling mass, then by rising number.
  for (int width = 2; width <= size; width *= 2) {
    for (int step = width / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < size; i += choosing_threads) {
        const int other = i ^ step;
        if (other <= i) continue;
        const bool before = masses[i] > masses[other] ||
                            (masses[i] == masses[other] && numbers[i] < numbers[other]);
        if (before == ((i & width) == 0)) continue;
        const float mass = masses[i];
        masses[i] = masses[other];
        masses[other] = mass;
        const int number = numbers[i];
        numbers[i] = numbers[other];
        numbers[other] = number;
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double met = 0;
    for (int sample = 0; sample < samples; ++sample) met += forced_shares[sample];
    const int most = min(kept, task.most);
    int i = 0;
    for (; i < most; ++i) {
      if (i >= task.least && task.mass < 1.0 && met >= task.mass * samples) break;
      met += masses[i];
    }
    chosen_count = i;
    met_share = static_cast<float>(fmin(1.0, met / samples));
  }
  __syncthreads();
  // Marked in the order of the entries, which ascend.
  const int chosen = chosen_count;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += choosing_threads) masses[i] = 0.0F;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < chosen; i += choosing_threads)
    masses[numbers[i]] = 1.0F;
  for (int i = static_cast<int>(threadIdx.x); i < forced; i += choosing_threads)
    blocks[i < piece.sinks ? i : chosen + i] = task.entries[at * task.most_entries + i];
  __syncthreads();
  int placed = piece.sinks;
  for (int begin = 0; begin < kept; begin += choosing_threads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const bool taken = i < kept && masses[i] > 0.0F;
    int more = 0;
    const int place = placed + count_before(taken, warp_counts, more);
    if (taken) blocks[place] = task.entries[at * task.most_entries + forced + i];
    placed += more;
  }
  if (threadIdx.x != 0) return;
  task.block_counts[at] = forced + chosen;
  const int tokens = piece.end - piece.begin;
  atomicAdd(&sums->mass, static_cast<double>(met_share) * tokens);
  atomicAdd(&sums->keys, keys_from(piece, piece.local) +
                             static_cast<unsigned long long>(piece.sinks + chosen) * block_keys *
                                 static_cast<unsigned long long>(tokens));
}

/// The key tiles of blocks of keys.
template <class T>
struct BlockTiles {
  static constexpr int per_block = block_keys / T::tile_keys;
  const int* blocks;
  int count;

  __device__ __forceinline__ int operator[](int i) const {
    return blocks[i / per_block] * per_block + i % per_block;
  }
};

/// Attention over the blocks that are listed and meet a form of the queries, whose queries the task
/// has. Grid: (row tiles of pieces, kv_heads).
template <class T>
__global__ void __launch_bounds__(T::threads, T::blocks_per_sm)
    listed_attention_kernel(const __grid_constant__ AttentionTask task,
                            const __grid_constant__ ChoiceTask choice, int first_piece, int form) {
  extern __shared__ __align__(1024) unsigned char shared[];
  static_assert(!T::splits_keys && block_keys % T::tile_keys == 0);
  const ListedRows of = listed_rows<T::tile_rows>(task, choice, first_piece, form);
  if (of.rows.rows <= 0 || (of.count == 0 && task.merge)) return;
  const RowTile& rows = of.rows;
  const Bounds bounds = bounds_of(task, rows);
  const BlockTiles<T> tiles{of.blocks, of.count * BlockTiles<T>::per_block};
  Running<T> running;
  run_tiles<T>(task, rows, bounds, tiles, shared_address(shared), 0, 1, running);
  sum_lanes<T>(running);
  store_rows<T>(task, rows, running);
}

/// Sizes of the arrays of a call.
struct ChoiceSizes {
  std::int64_t pieces, samples, sample_tiles, blocks, entries, listed;

  ChoiceSizes(const LayerHeads& heads, std::int64_t q_heads, const DeviceVisibility& always,
              const BlockBudget& budget, std::int64_t chunk, std::int64_t tokens) {
    pieces = std::min(pieces_at_once, chunk / query_block + 2);
    samples = sampled_tokens * (q_heads / heads.kv_heads);
    sample_tiles = (samples - 1) / least_tile_samples + 1;
    blocks = (tokens + key_block - 1) / key_block;
    const std::int64_t sinks = (std::min(always.sinks, tokens) + key_block - 1) / key_block;
    const std::int64_t local = (std::min(always.window, tokens) + query_block) / key_block + 2;
    const std::int64_t most = budget.most / key_block;
    // No list is longer than the text, whatever the window is.
    listed = std::min(blocks, sinks + local + most);
    entries = std::min(blocks, sinks + local + candidate_factor * most);
  }
};

/// Where the arrays lie.
struct ChoiceLayout {
  std::int64_t means, shares, mean_lse, entries, entry_counts, entry_lse, entry_mean, listed,
      listed_counts, total;

  ChoiceLayout(const ChoiceSizes& sizes, const LayerHeads& heads) {
    Pieces pieces;
    const std::int64_t heads_of_pieces = sizes.pieces * heads.kv_heads;
    means = pieces.place(heads.kv_heads * sizes.blocks * heads.head_dim * 2);
    shares = pieces.place(heads_of_pieces * sizes.sample_tiles * sizes.blocks * 4);
    mean_lse = pieces.place(heads_of_pieces * sizes.samples * 4);
    entries = pieces.place(heads_of_pieces * sizes.entries * 4);
    entry_counts = pieces.place(heads_of_pieces * 2 * 4);
    entry_lse = pieces.place(heads_of_pieces * sizes.samples * sizes.entries * 4);
    entry_mean = pieces.place(heads_of_pieces * sizes.samples * sizes.entries * 4);
    listed = pieces.place(heads_of_pieces * sizes.listed * 4);
    listed_counts = pieces.place(heads_of_pieces * 4);
    total = pieces.used();
  }
};

template <class T>
void look(const ChoiceTask& task, int first_piece, unsigned pieces, cudaStream_t stream,
          LookNumber number) {
  look<T>(task, typename T::Sources(), first_piece, pieces, stream, number);
}

template <int head_dim>
void look_through_mma(const ChoiceTask& task, int first_piece, unsigned pieces, cudaStream_t stream,
                      LookNumber number) {
  if (task.tile_samples == 128) {
    look<Look<head_dim, 2>>(task, first_piece, pieces, stream, number);
  } else {
    look<Look<head_dim, 1>>(task, first_piece, pieces, stream, number);
  }
}

void look_at_blocks(std::int64_t head_dim, const ChoiceTask& task, int first_piece, unsigned pieces,
                    cudaStream_t stream, LookNumber number) {
  if (runs_on_sm90(head_dim)) {
    look_on_sm90(head_dim, task, first_piece, pieces, number, stream);
    return;
  }
  switch (head_dim) {
    case 64:
      return look_through_mma<64>(task, first_piece, pieces, stream, number);
    case 80:
      return look_through_mma<80>(task, first_piece, pieces, stream, number);
    case 96:
      return look_through_mma<96>(task, first_piece, pieces, stream, number);
    case 128:
      return look_through_mma<128>(task, first_piece, pieces, stream, number);
    case 256:
      return look<Look<256, 1>>(task, first_piece, pieces, stream, number);
    case 512:
      return look<Look<512, 1, 128>>(task, first_piece, pieces, stream, number);
    default:
      return look<Look<576, 1, 96>>(task, first_piece, pieces, stream, number);
  }
}

/// Attention over the blocks of a form.
struct ListedAttention {
  AttentionTask task;
  int form;
};

template <class T>
void attend_listed(const ListedAttention& of, const ChoiceTask& choice, int first_piece,
                   unsigned pieces, cudaStream_t stream) {
  thread_local int prepared = -1;
  prepare(listed_attention_kernel<T>, T::shared_bytes, prepared);
  const auto tiles =
      static_cast<unsigned>((block_tokens * choice.group + T::tile_rows - 1) / T::tile_rows);
  listed_attention_kernel<T>
      <<<dim3(pieces * tiles, static_cast<unsigned>(choice.kv_heads)), T::threads, T::shared_bytes,
         stream>>>(of.task, choice, first_piece, of.form);
  check_launch("attention over blocks");
}

/// Tilings as in attention.cu.
void attend_listed(std::int64_t head_dim, const ListedAttention& of, const ChoiceTask& choice,
                   int first_piece, unsigned pieces, cudaStream_t stream) {
  if (runs_on_sm90(head_dim)) {
    attend_listed_on_sm90(head_dim, of.task, choice, first_piece, pieces, of.form, stream);
    return;
  }
  const auto attend = [&](auto tiling) {
    attend_listed<decltype(tiling)>(of, choice, first_piece, pieces, stream);
  };
  switch (head_dim) {
    case 64:
      return attend(AttentionTiling<64, 2, 4, 1, 64, 3>());
    case 80:
      return attend(AttentionTiling<80, 2, 4, 1, 64, 2>());
    case 96:
      return attend(AttentionTiling<96, 2, 4, 1, 64, 2>());
    case 128:
      return attend(AttentionTiling<128, 2, 4, 1, 64, 2>());
    case 256:
      return attend(AttentionTiling<256, 1, 4, 1, 32, 2>());
    case 512:
      return attend(AttentionTiling<512, 1, 2, 1, 16, 2, 2>());
    default:
      return attend(AttentionTiling<576, 1, 2, 1, 16, 2, 2, Values::are_keys>());
  }
}

}  // namespace

std::int64_t choice_bytes(const LayerHeads& heads, std::int64_t q_heads,
                          const DeviceVisibility& always, const BlockBudget& budget,
                          std::int64_t chunk, std::int64_t tokens) {
  return ChoiceLayout(ChoiceSizes(heads, q_heads, always, budget, chunk, tokens), heads).total;
}

void choose_and_attend(const LayerHeads& heads, const StepQueries& step, const DeviceRows& rows,
                       const DeviceVisibility& always, const BlockBudget& budget,
                       const ChoiceMemory& memory, const PartialView& partial, ShareSums* sums,
                       cudaStream_t stream) {
  const QueryView<__nv_bfloat16>& queries = step.own;
  const AttentionTask attention =
      attention_task(heads, queries, rows, {true}, partial, Into::overwrite);
  const ChoiceSizes sizes(heads, queries.heads, always, budget, memory.chunk, memory.tokens);
  const ChoiceLayout layout(sizes, heads);
  const auto array = [&](std::int64_t at, auto*& to) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(memory.data + at);
  };
  ChoiceTask task{};
  task.queries = queries.data;
  task.form_stride = step.form_stride;
  task.keys = rows.keys;
  task.head_stride = rows.head_stride;
  array(layout.means, task.means);
  array(layout.shares, task.shares);
  array(layout.mean_lse, task.mean_lse);
  array(layout.entries, task.entries);
  array(layout.entry_counts, task.entry_counts);
  array(layout.entry_lse, task.entry_lse);
  array(layout.entry_mean, task.entry_mean);
  array(layout.listed, task.blocks);
  array(layout.listed_counts, task.block_counts);
  task.most_blocks = sizes.blocks;
  task.most_entries = static_cast<int>(sizes.entries);
  task.most_listed = static_cast<int>(sizes.listed);
  task.samples = static_cast<int>(sizes.samples);
  const bool wide_tiles =
      heads.head_dim <= 128 && sizes.samples > 64 && !runs_on_sm90(heads.head_dim);
  task.tile_samples = wide_tiles ? 128 : least_tile_samples;
  task.sample_tiles = static_cast<int>(sizes.sample_tiles);
  task.chunk_blocks = static_cast<int>(std::min<std::int64_t>(step.chunk_len / key_block, 1 << 30));
  task.has_far = step.has_far;
  task.first = static_cast<int>(queries.first);
  task.tokens = static_cast<int>(queries.tokens);
  task.q_heads = static_cast<int>(queries.heads);
  task.kv_heads = static_cast<int>(heads.kv_heads);
  task.group = attention.group;
  task.window = static_cast<int>(std::min<std::int64_t>(always.window, 1 << 30));
  task.sinks = static_cast<int>(std::min<std::int64_t>(always.sinks, 1 << 30));
  task.most = static_cast<int>(budget.most / key_block);
  task.least = static_cast<int>(budget.least / key_block);
  task.without_choice = static_cast<int>(budget.without_choice() / key_block);
  task.mass = budget.mass;
  task.scale = attention.scale;
  task.scale_log2 = attention.scale_log2;
  task.cap = attention.cap;
  task.cap_rate = attention.cap_rate;

  const auto kv_heads = static_cast<unsigned>(heads.kv_heads);
  const auto whole = static_cast<unsigned>((queries.first + queries.tokens) / key_block);
  if (whole > 0) {
    means_kernel<<<dim3(whole, kv_heads), static_cast<unsigned>(heads.head_dim / 2), 0, stream>>>(
        task, static_cast<int>(heads.head_dim));
    check_launch("mean keys");
  }
  // The forms that some key meets.
  const std::int64_t chunk =
      step.chunk_len > 0 ? (queries.first + queries.tokens - 1) / step.chunk_len : 0;
  const int forms = chunk == 0 ? 1 : chunk == 1 || !step.has_far ? 2 : 3;
  static_assert(most_shared_bytes <= 99 * 1024, "what a block of sm_86, sm_89 and sm_120 may have");
  thread_local int prepared = -1;
  prepare(choose_kernel, most_shared_bytes, prepared);
  int size = 1;
  while (size < std::min<std::int64_t>(sizes.blocks, candidate_factor * task.most)) size *= 2;
  const auto all = static_cast<int>(
      (queries.first % query_block + queries.tokens + query_block - 1) / query_block);
  for (int first = 0; first < all; first += static_cast<int>(sizes.pieces)) {
    const auto pieces = static_cast<unsigned>(std::min<std::int64_t>(sizes.pieces, all - first));
    look_at_blocks(heads.head_dim, task, first, pieces, stream, LookNumber::first);
    keep_kernel<<<dim3(pieces, kv_heads), choosing_threads, 0, stream>>>(task, first);
    check_launch("kept blocks");
    look_at_blocks(heads.head_dim, task, first, pieces, stream, LookNumber::second);
    choose_kernel<<<dim3(pieces, kv_heads), choosing_threads,
                    static_cast<std::size_t>(size + task.samples) * 8, stream>>>(task, first, size,
                                                                                 sums);
    check_launch("chosen blocks");
    for (int form = 0; form < forms; ++form) {
      ListedAttention listed{attention, form};
      listed.task.queries += form * step.form_stride;
      listed.task.merge = form > 0;
      attend_listed(heads.head_dim, listed, task, first, pieces, stream);
    }
  }
}

}  // namespace topkv::gpu
