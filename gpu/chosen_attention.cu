// Attention over chosen rows (selection.h): the attention kernel's tiles of keys, which here are
// rows from anywhere. All meetings' tiles, one behind the other, are cut into as many equal parts as
// the device runs blocks; what blocks find of a meeting's tiles is merged by the last of them.
#include <cmath>
#include <string>

#include "gpu/attention_kernel.cuh"
#include "gpu/attention_parts.cuh"
#include "gpu/kernel_parts.cuh"
#include "gpu/selection.h"
#include "gpu/selection_checks.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr float log2_e = 1.44269504F;

template <int head_dim>
using ChosenTiling = AttentionTiling<head_dim, 1, 1, 4, 64, 2>;

struct ChosenTask {
  AttentionTask attention;  // of every meeting: queries, keys, values, out, lse, scale
  int meetings;
  int rows;        // of each meeting, chosen or not
  int page_shift;  // log2 of a page's rows
  const int* entries;
  const int* counts;
  std::int64_t capacity;
  int* arrived;
  float* partials;  // [blocks, 2, T::partial_floats]
};

/// A meeting's chosen rows: number i of them is row at(i).
struct ChosenRows {
  const int* entries;
  int count;
  int page_shift;

  __device__ ChosenRows(const ChosenTask& task, int meeting)
      : entries(task.entries + meeting * task.capacity), page_shift(task.page_shift) {
    const int listed = task.counts[meeting];
    count = listed << page_shift;
    // The last page may be short.
    if (listed > 0 && page_shift > 0)
      count -= max(0, ((entries[listed - 1] + 1) << page_shift) - task.rows);
  }
  __device__ int at(int i) const {
    return (entries[i >> page_shift] << page_shift) + (i & ((1 << page_shift) - 1));
  }
};

template <class T>
__device__ __forceinline__ int tiles_of(const ChosenTask& task, int meeting) {
  return (ChosenRows(task, meeting).count + T::tile_keys - 1) / T::tile_keys;
}

/// Where a block's part begins and ends among all tiles.
struct BlockPart {
  int begin, end;    // tiles
  int meeting;       // of tile `begin`
  int meeting_tile;  // its first tile
};

/// By all threads. all: tiles of all meetings.
template <class T>
__device__ BlockPart part_of_block(const ChosenTask& task, std::int64_t& all) {
  __shared__ int of_warps[T::threads / warp];
  __shared__ BlockPart part;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  const int each = (task.meetings + T::threads - 1) / T::threads;
  const int first = min(thread * each, task.meetings);
  const int last = min(first + each, task.meetings);
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
  all = 0;
#pragma unroll
  for (int w = 0; w < T::threads / warp; ++w) {
    if (w < thread / warp) before += of_warps[w];
    all += of_warps[w];
  }
  const auto begin = static_cast<int>(all * blockIdx.x / gridDim.x);
  const auto end = static_cast<int>(all * (blockIdx.x + 1) / gridDim.x);
  if (thread == 0) part = {begin, end, 0, 0};
  __syncthreads();
  if (begin < end && before <= begin && begin < before + mine) {
    int m = first;
    for (int tiles = tiles_of<T>(task, m); before + tiles <= begin; tiles = tiles_of<T>(task, m)) {
      before += tiles;
      ++m;
    }
    part = {begin, end, m, before};
  }
  __syncthreads();
  return part;
}

/// The rows of a tile that this thread copies a chunk of; -1: there is none.
template <class T>
struct CopiedRows {
  static constexpr int chunks = T::Shared::chunks;
  static constexpr int steps = T::tile_keys * chunks / T::threads;
  static_assert(T::threads % chunks == 0);
  int row[steps];

  __device__ __forceinline__ CopiedRows(const ChosenRows& rows, int tile) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const int i = tile * T::tile_keys + step * (T::threads / chunks) + thread / chunks;
      row[step] = i < rows.count ? rows.at(i) : -1;
    }
  }
  /// Begins the copy of K and V to `stage`. Rows that are not there become zeros.
  __device__ __forceinline__ void copy(const AttentionTask& task, std::int64_t meeting_rows,
                                       std::uint32_t stage) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int chunk = thread % chunks;
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const bool valid = row[step] >= 0;
      const std::int64_t from =
          meeting_rows + std::int64_t{valid ? row[step] : 0} * T::head_dim + chunk * 8;
      const std::uint32_t to =
          stage + T::Shared::offset(step * (T::threads / chunks) + thread / chunks, chunk);
      copy_async(to, task.keys + from, valid);
      copy_async(to + T::tile_bytes, task.values + from, valid);
    }
  }
};

/// A warp's part of tiles [begin, end) of a meeting.
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
  const std::int64_t meeting_rows = heads.kv_head * task.attention.head_stride;

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
  copy_queries<T>(task.attention, heads, shared);
  CopiedRows<T> next(rows, begin);
  next.copy(task.attention, meeting_rows, stages);
  next = CopiedRows<T>(rows, begin + 1);
  std::uint32_t stage = 0;
  for (int tile = begin; tile < end; ++tile) {
    wait_copies();
    __syncthreads();  // the tile is here, and nobody reads the other stage any more
    if (tile + 1 < end) {
      next.copy(task.attention, meeting_rows, stages + (stage ^ (2 * T::tile_bytes)));
      next = CopiedRows<T>(rows, tile + 2);  // read while that is on its way
    }
    float scores[1][key_frags][4];
    multiply_keys<T>(query_address, key_address + stage, scores);
    const int first_key = tile * T::tile_keys + warp_key + lane % 4 * 2;
    if (tile * T::tile_keys + T::tile_keys > rows.count) {
#pragma unroll
      for (int n = 0; n < key_frags; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (first_key + n * 8 + e % 2 >= rows.count) scores[0][n][e] = -INFINITY;
        }
      }
    }
    float offsets[1][2];
    raise_max<T>(task.attention, scores, running, offsets);
    multiply_values<T>(task.attention, value_address + stage, scores, offsets, running);
    stage ^= 2 * T::tile_bytes;
  }
}

/// A head of a meeting: what several partials are together, by a warp. partial(i): where number i
/// lies, perhaps in memory that other blocks wrote.
template <class T, class Partial>
__device__ __forceinline__ void store_merged(const AttentionTask& task, const RowTile& heads,
                                             int row, int count, const Partial& partial) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const auto max_of = [&](int i) { return __ldcg(partial(i) + T::tile_rows * T::sum_stride + row); };
  float most = -INFINITY;
  for (int i = lane; i < count; i += warp) most = fmaxf(most, max_of(i));
  most = warp_max(most);
  const auto factor = [&](int i) { return exp2_fast((max_of(i) - most) * task.scale_log2); };
  float weight = 0;
  for (int i = lane; i < count; i += warp)
    weight += factor(i) * __ldcg(partial(i) + T::tile_rows * (T::sum_stride + 1) + row);
  weight = warp_sum(weight);
  const float inverse = weight > 0.0F ? 1.0F / weight : 0.0F;
  const std::int64_t head = heads.head_index(row, task);
  for (int column = lane * 4; column < T::head_dim; column += 4 * warp) {
    float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    for (int i = 0; i < count; ++i) {
      const float f = factor(i);
      const float4 x =
          __ldcg(reinterpret_cast<const float4*>(partial(i) + row * T::sum_stride + column));
      sum.x += f * x.x;
      sum.y += f * x.y;
      sum.z += f * x.z;
      sum.w += f * x.w;
    }
    store4(task.out + head * T::head_dim + column,
           {sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse});
  }
  if (lane == 0) task.lse[head] = row_lse(task, most, weight);
}

/// The block's partial of a meeting: what its warps have is merged in shared memory, and goes to
/// the result if there is no other block's, else to memory, where the last block merges all.
template <class T>
__device__ __forceinline__ void store_part(const ChosenTask& task, const RowTile& heads,
                                           const Running<T>& running, float* partials, int from,
                                           int to, int first_tile, int tiles, std::int64_t all) {
  const int warp_number = static_cast<int>(threadIdx.x) / warp;
  const int lane = static_cast<int>(threadIdx.x) % warp;
  __shared__ bool last;
  __syncthreads();  // all are done with K and V
  write_partial<T>(running, partials + warp_number * T::partial_floats);
  __syncthreads();
  const auto of_warp = [&](int i) { return partials + i * T::partial_floats; };
  const bool whole = to - from == tiles;
  // Of the blocks that have parts of a meeting, all but the first begin with it.
  const bool begins = first_tile + from == static_cast<int>(all * blockIdx.x / gridDim.x);
  float* const own = task.partials + (2 * blockIdx.x + (begins ? 0 : 1)) * T::partial_floats;
  for (int row = warp_number; row < heads.rows; row += T::key_warps) {
    const RowMerge<T, decltype(of_warp)> merged(of_warp, T::key_warps, row,
                                                task.attention.scale_log2);
    const std::int64_t head = heads.head_index(row, task.attention);
    const float factor = !whole ? 1.0F : merged.weight > 0.0F ? 1.0F / merged.weight : 0.0F;
    float* const out =
        whole ? task.attention.out + head * T::head_dim : own + row * T::sum_stride;
    for (int begin = 0; begin < T::head_dim; begin += 4 * warp) {
      const int column = begin + lane * 4;
      const float4 sums = merged.sums(column);
      if (column < T::head_dim)
        store4(out + column,
               {sums.x * factor, sums.y * factor, sums.z * factor, sums.w * factor});
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
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      last = atomicAdd(task.arrived + heads.kv_head, to - from) + to - from == tiles;
      if (last) task.arrived[heads.kv_head] = 0;
    }
    __syncthreads();
    if (last) {
      __threadfence();
      // Block b has tiles from all b / blocks on: the first and the last that have some of these.
      const std::int64_t blocks = gridDim.x;
      const auto block_of = [&](std::int64_t tile) {
        return static_cast<int>(((tile + 1) * blocks - 1) / all);
      };
      const int first_block = block_of(first_tile);
      const int count = block_of(first_tile + tiles - 1) - first_block + 1;
      const bool first_begins = first_tile == static_cast<int>(all * first_block / blocks);
      const auto of_block = [&](int i) {
        const int slot = i > 0 || first_begins ? 0 : 1;
        return task.partials + (2 * (first_block + i) + slot) * T::partial_floats;
      };
      for (int row = warp_number; row < heads.rows; row += T::key_warps)
        store_merged<T>(task.attention, heads, row, count, of_block);
    }
  }
  __syncthreads();  // before K and V come here again
}

template <class T>
__global__ void __launch_bounds__(T::threads, T::blocks_per_sm)
    chosen_kernel(const __grid_constant__ ChosenTask task) {
  extern __shared__ __align__(1024) unsigned char shared[];
  await_previous();
  const int group = task.attention.group;
  if (blockIdx.x == 0) {  // where there is nothing to attend
    for (int m = static_cast<int>(threadIdx.x); m < task.meetings; m += T::threads) {
      if (task.counts[m] > 0) continue;
      for (int i = 0; i < group * T::head_dim; ++i)
        task.attention.out[std::int64_t{m} * group * T::head_dim + i] = 0.0F;
      for (int g = 0; g < group; ++g) task.attention.lse[m * group + g] = -INFINITY;
    }
  }
  std::int64_t all = 0;
  const BlockPart part = part_of_block<T>(task, all);
  int meeting = part.meeting;
  int first_tile = part.meeting_tile;
  for (int tile = part.begin; tile < part.end; ++meeting) {
    const ChosenRows rows(task, meeting);
    const int tiles = (rows.count + T::tile_keys - 1) / T::tile_keys;
    if (tiles == 0) continue;
    const RowTile heads{0, 0, meeting, group};
    const int from = tile - first_tile;
    const int to = min(part.end - first_tile, tiles);
    Running<T> running;
    attend_tiles<T>(task, heads, rows, from, to, shared_address(shared), running);
    sum_lanes<T>(running);
    store_part<T>(task, heads, running, reinterpret_cast<float*>(shared + T::query_bytes), from, to,
                  first_tile, tiles, all);
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
    blocks = static_cast<unsigned>(of_processor * processors);
    prepared_for = device;
  }
  return blocks;
}

template <class T>
void launch(const ChosenTask& task, cudaStream_t stream) {
  const unsigned blocks = prepare<T>();
  launch_overlapped(chosen_kernel<T>, dim3(blocks), dim3(T::threads), T::shared_bytes, stream, task);
}

}  // namespace

std::int64_t chosen_room_bytes(std::int64_t head_dim) {
  check_head_dim("attention over chosen rows", head_dim);
  const auto bytes = [](auto tiling) {
    using T = decltype(tiling);
    return std::int64_t{2} * prepare<T>() * T::partial_floats * std::int64_t{sizeof(float)};
  };
  return head_dim == 64 ? bytes(ChosenTiling<64>()) : bytes(ChosenTiling<128>());
}

void attend_chosen(const MeetingQueries& queries, const DeviceRows& rows,
                   const ChosenEntries& chosen, std::int64_t page, const DevicePartial& partial,
                   const ChosenRoom& room, cudaStream_t stream) {
  check_meetings("attention over chosen rows", queries);
  if (page < 1 || (page & (page - 1)) != 0 || page > 4096 || rows.ring != 0 || rows.first != 0 ||
      rows.count > (std::int64_t{1} << 30))
    throw InvalidArgument("CUDA attention over chosen rows: pages of " + std::to_string(page) +
                          " of " + std::to_string(rows.count) +
                          " rows, expected a power of two up to 4096, rows from 0 on and no ring");
  if (queries.meetings == 0) return;
  ChosenTask task{};
  task.attention.queries = queries.data;
  task.attention.keys = rows.keys;
  task.attention.values = rows.values;
  task.attention.out = partial.out;
  task.attention.lse = partial.lse;
  task.attention.head_stride = rows.head_stride;
  task.attention.rows = queries.group;
  task.attention.group = static_cast<int>(queries.group);
  task.attention.q_heads = static_cast<int>(queries.meetings * queries.group);
  task.attention.scale = queries.scale;
  task.attention.scale_log2 = queries.scale * log2_e;
  task.meetings = static_cast<int>(queries.meetings);
  task.rows = static_cast<int>(rows.count);
  while ((std::int64_t{1} << task.page_shift) < page) ++task.page_shift;
  task.entries = chosen.entries;
  task.counts = chosen.counts;
  task.capacity = chosen.capacity;
  task.arrived = room.arrived;
  task.partials = room.partials;
  if (queries.head_dim == 64) {
    launch<ChosenTiling<64>>(task, stream);
  } else {
    launch<ChosenTiling<128>>(task, stream);
  }
}

}  // namespace topkv::gpu
