// Attention over chosen rows: the attention kernel's tiles of keys, which here are
// rows from anywhere. All head steps' tiles, one behind the other, are cut into as many equal parts
// as the device runs blocks; what blocks find of a head step's tiles is merged by the last of them.
#include <algorithm>
#include <cmath>
#include <string>

#include "bench/kernels/chosen_attention.h"
#include "gpu/attention/attention_kernel.cuh"
#include "gpu/attention/attention_parts.cuh"
#include "gpu/entries/entry_checks.h"
#include "gpu/runtime/kernel_parts.cuh"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr float log2_e = 1.44269504F;

template <int head_dim>
using ChosenTiling = AttentionTiling<head_dim, 1, 1, 4, 64, 2>;

struct ChosenTask {
  AttentionTask attention;  // of every head step: queries, keys, values, out, lse, scale
  int head_steps;
  int rows;        // of each head step, chosen or not
  int page_shift;  // log2 of a page's rows
  const int* entries;
  const int* counts;
  std::int64_t capacity;
  int* arrived;
  float* partials;  // [blocks, 2, T::partial_floats]
};

/// Tiles of a head step's entries, whose last page may be short.
template <class T>
__device__ __forceinline__ int tiles_of(const ChosenTask& task, int head_step) {
  return ((task.counts[head_step] << task.page_shift) + T::tile_keys - 1) / T::tile_keys;
}

/// A head step's chosen rows, page by page.
struct ChosenRows {
  const int* entries;
  int listed;
  int page_shift;
  int rows;  // there are, chosen or not

  __device__ ChosenRows(const ChosenTask& task, int head_step)
      : entries(task.entries + head_step * task.capacity),
        listed(task.counts[head_step]),
        page_shift(task.page_shift),
        rows(task.rows) {}
  /// How many: the last page may be short.
  __device__ int count() const {
    const int all = listed << page_shift;
    if (page_shift == 0) return all;
    return all - max(0, ((entries[listed - 1] + 1) << page_shift) - rows);
  }
  /// The entry that number i belongs to, and its row, of that entry; -1: there is none.
  __device__ int entry_of(int i) const { return i >> page_shift; }
  __device__ int row(int entry, int i) const {
    const int row = (entry << page_shift) + (i & ((1 << page_shift) - 1));
    return entry_of(i) < listed && row < rows ? row : -1;
  }
};

/// How all tiles are cut: each of so many blocks, which may be fewer than there are, has one at
/// least.
struct Cut {
  std::int64_t tiles, blocks;

  __device__ explicit Cut(std::int64_t tiles_)
      : tiles(tiles_), blocks(min(std::int64_t{gridDim.x}, tiles_)) {}
  /// The first tile of a block; of the number of blocks, where the last one ends.
  __device__ int begin(std::int64_t number) const {
    return blocks == 0 ? 0 : static_cast<int>(tiles * min(number, blocks) / blocks);
  }
  __device__ int block_of(std::int64_t tile) const {
    return static_cast<int>(((tile + 1) * blocks - 1) / tiles);
  }
};

/// Where a block's part begins and ends among all tiles.
struct BlockPart {
  Cut cut;
  int begin, end;      // tiles
  int head_step;       // of tile `begin`; nothing where there is none
  int head_step_tile;  // its first tile
};

/// By all threads.
template <class T>
__device__ BlockPart part_of_block(const ChosenTask& task) {
  __shared__ int of_warps[T::threads / warp];
  __shared__ int head_step, head_step_tile;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  const int each = (task.head_steps + T::threads - 1) / T::threads;
  const int first = min(thread * each, task.head_steps);
  const int last = min(first + each, task.head_steps);
  int mine = 0;
  for (int m = first; m < last; ++m) mine += tiles_of<T>(task, m);
  int before = mine;  // those of lanes up to this one
#pragma unroll
  for (int step = 1; step < warp; step *= 2) {
    const int other = __shfl_up_sync(all_lanes, before, step);
    if (lane >= step) before += other;
  }
  if (lane == warp - 1) of_warps[thread / warp] = before;
  __syncthreads();
  before -= mine;
  std::int64_t all = 0;
#pragma unroll
  for (int w = 0; w < T::threads / warp; ++w) {
    if (w < thread / warp) before += of_warps[w];
    all += of_warps[w];
  }
  const Cut cut(all);
  const int begin = cut.begin(blockIdx.x);
  const int end = cut.begin(blockIdx.x + 1);
  if (begin < end && before <= begin && begin < before + mine) {
    int m = first;
    for (int tiles = tiles_of<T>(task, m); before + tiles <= begin; tiles = tiles_of<T>(task, m)) {
      before += tiles;
      ++m;
    }
    head_step = m;
    head_step_tile = before;
  }
  __syncthreads();
  return {cut, begin, end, head_step, head_step_tile};
}

/// Begins the copy of a tile's K and V to `stage`; rows that are not there become zeros. entry(i):
/// the entry of the tile's row number i.
template <class T, class Entry>
__device__ __forceinline__ void copy_chosen(const AttentionTask& task, std::int64_t head_step_rows,
                                            const ChosenRows& rows, int tile, const Entry& entry,
                                            std::uint32_t stage) {
  constexpr int chunks = T::Shared::chunks;
  constexpr int steps = T::tile_keys * chunks / T::threads;
  static_assert(T::threads % chunks == 0);
  const int thread = static_cast<int>(threadIdx.x);
  const int chunk = thread % chunks;
  int row[steps];
#pragma unroll
  for (int step = 0; step < steps; ++step) {
    const int i = step * (T::threads / chunks) + thread / chunks;
    row[step] = rows.row(entry(i), tile * T::tile_keys + i);
  }
#pragma unroll
  for (int step = 0; step < steps; ++step) {
    const bool valid = row[step] >= 0;
    const std::int64_t from =
        head_step_rows + std::int64_t{valid ? row[step] : 0} * T::head_dim + chunk * 8;
    const std::uint32_t to =
        stage + T::Shared::offset(step * (T::threads / chunks) + thread / chunks, chunk);
    copy_async(to, task.keys + from, valid);
    copy_async(to + T::tile_bytes, task.values + from, valid);
  }
}

/// A warp's part of tiles [begin, end) of a head step.
template <class T>
__device__ __forceinline__ void attend_tiles(const ChosenTask& task, const RowTile& heads,
                                             const ChosenRows& rows, int begin, int end,
                                             std::uint32_t shared, Running<T>& running) {
  using S = typename T::Shared;
  constexpr int key_frags = T::warp_keys / 8;
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const int warp_key = static_cast<int>(threadIdx.x) / warp * T::warp_keys;
  const std::uint32_t stages = shared + T::query_bytes;
  const std::uint32_t query_address = shared + S::offset(lane % 16, lane / 16);
  const std::uint32_t key_address =
      stages + S::offset(warp_key + lane % 8 + lane / 16 * 8, lane / 8 % 2);
  const std::uint32_t value_address =
      stages + T::tile_bytes + S::offset(warp_key + lane % 16, lane / 16);
  const std::int64_t head_step_rows = heads.kv_head * task.attention.head_stride;

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    running.max[0][half] = -INFINITY;
    running.sum[0][half] = 0.0F;
  }
#pragma unroll
  for (int d = 0; d < T::head_dim / 8; ++d) {
#pragma unroll
    for (float& x : running.out[0][d]) x = 0.0F;
  }
  // Two tiles are on their way, each to its stage, and with each the entries of the tile two behind
  // it. A group of copies is one tile's, or empty.
  __shared__ int listed[4][T::tile_keys];
  copy_queries<T>(task.attention, heads, shared);
  const auto begin_entries = [&](int tile) {
    const int thread = static_cast<int>(threadIdx.x);
    const int entry = rows.entry_of(tile * T::tile_keys) + thread;
    if (tile < end && thread <= rows.entry_of(T::tile_keys - 1)) {
      const bool valid = entry < rows.listed;
      copy_word_async(shared_address(&listed[tile % 4][thread]), rows.entries + (valid ? entry : 0),
                      valid);
    }
  };
  const auto begin_tile = [&](int tile, const auto& entry, std::uint32_t stage) {
    if (tile < end)
      copy_chosen<T>(task.attention, head_step_rows, rows, tile, entry, stages + stage);
    begin_entries(tile + 2);
    commit_copies();
  };
  constexpr std::uint32_t second = 2 * T::tile_bytes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto entry = [&](int key) {
      const int at = rows.entry_of((begin + i) * T::tile_keys + key);
      return at < rows.listed ? rows.entries[at] : 0;
    };
    begin_tile(begin + i, entry, i * second);
  }
  const int count = rows.count();
  std::uint32_t stage = 0;
  for (int tile = begin; tile < end; ++tile) {
    wait_groups<1>();
    __syncthreads();  // the tile is here
    float scores[1][key_frags][4];
    multiply_keys<T>(query_address, key_address + stage, scores);
    const int first_key = tile * T::tile_keys + warp_key + lane % 4 * 2;
    if (tile * T::tile_keys + T::tile_keys > count) {
#pragma unroll
      for (int n = 0; n < key_frags; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (first_key + n * 8 + e % 2 >= count) scores[0][n][e] = -INFINITY;
        }
      }
    }
    float offsets[1][2];
    raise_max<T>(task.attention, scores, running, offsets);
    multiply_values<T>(task.attention, value_address + stage, scores, offsets, running);
    __syncthreads();  // nobody reads the stage any more
    const auto entry = [&](int key) {
      // Of pages larger than a tile: the one that the tile begins in.
      return listed[(tile + 2) % 4][rows.entry_of(key)];
    };
    begin_tile(tile + 2, entry, stage);
    stage ^= second;
  }
  wait_copies();
}

/// What several blocks' partials of a head step are together, by all threads of a block.
/// partial(i): where number i lies; factors: [group, count], in shared memory.
template <class T, class Partial>
__device__ __forceinline__ void store_merged(const AttentionTask& task, const RowTile& heads,
                                             int count, const Partial& partial, float* factors) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  for (int row = thread / warp; row < heads.rows; row += T::key_warps) {  // a warp a head
    float* const factor = factors + row * count;
    float most = -INFINITY;
    for (int i = lane; i < count; i += warp) {
      factor[i] = __ldcg(partial(i) + T::tile_rows * T::sum_stride + row);
      most = fmaxf(most, factor[i]);
    }
    most = warp_max(most);
    float weight = 0;
    for (int i = lane; i < count; i += warp) {
      factor[i] = exp2_fast((factor[i] - most) * task.scale_log2);
      weight += factor[i] * __ldcg(partial(i) + T::tile_rows * (T::sum_stride + 1) + row);
    }
    weight = warp_sum(weight);
    const float inverse = weight > 0.0F ? 1.0F / weight : 0.0F;
    for (int i = lane; i < count; i += warp) factor[i] *= inverse;
    if (lane == 0) task.lse[heads.head_index(row, task)] = row_lse(task, most, weight);
  }
  __syncthreads();
  for (int at = thread; at < heads.rows * T::head_dim; at += T::threads) {
    const int row = at / T::head_dim;
    const int column = at % T::head_dim;
    const float* const factor = factors + row * count;
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < count; ++i)
      sum += factor[i] * __ldcg(partial(i) + row * T::sum_stride + column);
    task.out[heads.head_index(row, task) * T::head_dim + column] = sum;
  }
}

/// The block's partial of a head step: what its warps have is merged in shared memory, and goes to
/// the result if there is no other block's, else to memory, where the last block merges all.
template <class T>
__device__ __forceinline__ void store_part(const ChosenTask& task, const RowTile& heads,
                                           const Running<T>& running, float* partials, int from,
                                           int to, int first_tile, int tiles, const Cut& cut) {
  const int warp_number = static_cast<int>(threadIdx.x) / warp;
  const int lane = static_cast<int>(threadIdx.x) % warp;
  __shared__ bool last;
  __syncthreads();  // all are done with K and V
  write_partial<T>(running, partials + warp_number * T::partial_floats);
  __syncthreads();
  const auto of_warp = [&](int i) { return partials + i * T::partial_floats; };
  const bool whole = to - from == tiles;
  // Of the blocks that have parts of a head step, all but the first begin with it.
  const bool begins = first_tile + from == cut.begin(blockIdx.x);
  float* const own = task.partials + (2 * blockIdx.x + (begins ? 0 : 1)) * T::partial_floats;
  for (int row = warp_number; row < heads.rows; row += T::key_warps) {
    const RowMerge<T, decltype(of_warp)> merged(of_warp, T::key_warps, row,
                                                task.attention.scale_log2);
    const std::int64_t head = heads.head_index(row, task.attention);
    const float factor = !whole ? 1.0F : merged.weight > 0.0F ? 1.0F / merged.weight : 0.0F;
    float* const out = whole ? task.attention.out + head * T::head_dim : own + row * T::sum_stride;
    for (int begin = 0; begin < T::head_dim; begin += 4 * warp) {
      const int column = begin + lane * 4;
      const float4 sums = merged.sums(column);
      if (column < T::head_dim)
        store4(out + column, {sums.x * factor, sums.y * factor, sums.z * factor, sums.w * factor});
    }
    if (lane != 0) continue;
    if (whole) {
      task.attention.lse[head] = row_lse(task.attention, merged.max, merged.weight);
    } else {
      own[T::tile_rows * T::sum_stride + row] = merged.max;
      own[T::tile_rows * (T::sum_stride + 1) + row] = merged.weight;
    }
  }
  if (!whole) {
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      last = atomicAdd(task.arrived + heads.kv_head, to - from) + to - from == tiles;
      if (last) task.arrived[heads.kv_head] = 0;
      __threadfence();
    }
    __syncthreads();
    if (last) {
      const int first_block = cut.block_of(first_tile);
      const int count = cut.block_of(first_tile + tiles - 1) - first_block + 1;
      const bool first_begins = first_tile == cut.begin(first_block);
      const auto of_block = [&](int i) {
        const int slot = i > 0 || first_begins ? 0 : 1;
        return task.partials + (2 * (first_block + i) + slot) * T::partial_floats;
      };
      store_merged<T>(task.attention, heads, count, of_block, partials);
    }
  }
  __syncthreads();  // before K and V come here again
}

template <class T>
__global__ void __launch_bounds__(T::threads, 3)
    chosen_kernel(const __grid_constant__ ChosenTask task) {
  extern __shared__ __align__(1024) unsigned char shared[];
  await_previous();
  const int group = task.attention.group;
  if (blockIdx.x == 0) {  // where there is nothing to attend
    for (int m = static_cast<int>(threadIdx.x); m < task.head_steps; m += T::threads) {
      if (task.counts[m] > 0) continue;
      for (int i = 0; i < group * T::head_dim; ++i)
        task.attention.out[std::int64_t{m} * group * T::head_dim + i] = 0.0F;
      for (int g = 0; g < group; ++g) task.attention.lse[m * group + g] = -INFINITY;
    }
  }
  const BlockPart part = part_of_block<T>(task);
  int head_step = part.head_step;
  int first_tile = part.head_step_tile;
  for (int tile = part.begin; tile < part.end; ++head_step) {
    const int tiles = tiles_of<T>(task, head_step);
    if (tiles == 0) continue;
    const ChosenRows rows(task, head_step);
    const RowTile heads{0, 0, head_step, group};
    const int from = tile - first_tile;
    const int to = min(part.end - first_tile, tiles);
    Running<T> running;
    attend_tiles<T>(task, heads, rows, from, to, shared_address(shared), running);
    sum_lanes<T>(running);
    store_part<T>(task, heads, running, reinterpret_cast<float*>(shared + T::query_bytes), from, to,
                  first_tile, tiles, part.cut);
    tile = first_tile + to;
    first_tile += tiles;
  }
}

/// Blocks that the current device runs at once.
template <class T>
unsigned prepare() {
  thread_local int prepared_for = -1;
  thread_local unsigned blocks = 0;
  int device = 0;
  TOPKV_CUDA(cudaGetDevice(&device));
  if (device != prepared_for) {
    TOPKV_CUDA(cudaFuncSetAttribute(chosen_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    T::shared_bytes));
    int of_processor = 0;
    int processors = 0;
    TOPKV_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_processor, chosen_kernel<T>,
                                                             T::threads, T::shared_bytes));
    TOPKV_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    // What store_merged keeps of as many partials has the room of K and V.
    constexpr int most = 4 * T::tile_bytes / (most_group * static_cast<int>(sizeof(float)));
    blocks = static_cast<unsigned>(std::min(of_processor * processors, most));
    prepared_for = device;
  }
  return blocks;
}

template <class T>
void launch(const ChosenTask& task, cudaStream_t stream) {
  const unsigned blocks = prepare<T>();
  launch_overlapped(chosen_kernel<T>, dim3(blocks), dim3(T::threads), T::shared_bytes, stream,
                    task);
}

}  // namespace

std::int64_t chosen_workspace_bytes(std::int64_t head_dim) {
  check_head_dim("attention over chosen rows", head_dim);
  const auto bytes = [](auto tiling) {
    using T = decltype(tiling);
    return std::int64_t{2} * prepare<T>() * T::partial_floats * std::int64_t{sizeof(float)};
  };
  return head_dim == 64 ? bytes(ChosenTiling<64>()) : bytes(ChosenTiling<128>());
}

void attend_chosen(const HeadStepQueries& queries, const DeviceRows& rows,
                   const ChosenEntries& chosen, std::int64_t page, const PartialView& partial,
                   const ChosenWorkspace& workspace, cudaStream_t stream) {
  check_queries("attention over chosen rows", queries);
  if (page < 1 || (page & (page - 1)) != 0 || page > 4096 || rows.split < rows.count ||
      rows.first != 0 || rows.count < 0 || rows.count > (std::int64_t{1} << 30))
    throw InvalidArgument("CUDA attention over chosen rows: pages of " + std::to_string(page) +
                          " of " + std::to_string(rows.count) +
                          " rows, expected a power of two up to 4096, rows from 0 on in one place");
  if (queries.head_steps == 0) return;
  ChosenTask task{};
  task.attention.queries = queries.data;
  task.attention.keys = rows.keys;
  task.attention.values = rows.values;
  task.attention.out = partial.out;
  task.attention.lse = partial.lse;
  task.attention.head_stride = rows.head_stride;
  task.attention.rows = queries.group;
  task.attention.group = static_cast<int>(queries.group);
  task.attention.q_heads = static_cast<int>(queries.head_steps * queries.group);
  task.attention.scale = queries.scale;
  task.attention.scale_log2 = queries.scale * log2_e;
  task.head_steps = static_cast<int>(queries.head_steps);
  task.rows = static_cast<int>(rows.count);
  while ((std::int64_t{1} << task.page_shift) < page) ++task.page_shift;
  task.entries = chosen.entries;
  task.counts = chosen.counts;
  task.capacity = chosen.capacity;
  task.arrived = workspace.arrived;
  task.partials = workspace.partials;
  if (queries.head_dim == 64) {
    launch<ChosenTiling<64>>(task, stream);
  } else {
    launch<ChosenTiling<128>>(task, stream);
  }
}

}  // namespace topkv::gpu
