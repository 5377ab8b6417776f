// The weights of a product with few inputs (packed_vector.cu) on their way to shared memory. A
// *tile* is 16 rows of a weight, and a *team* the warps of a block that have it together. Each has
// some of the inputs, and copies them a *stage* after the other: 256 bytes of each row with their
// scales. Only for .cu files.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/network/packed_inputs.cuh"
#include "gpu/network/packed_product.h"
#include "gpu/runtime/kernel_parts.cuh"
#include "gpu/runtime/mma.cuh"

namespace topkv::gpu {

inline constexpr int tile = 16;        // rows of a tensor core's operand
inline constexpr int stage_row = 256;  // bytes of a row in a stage
inline constexpr int pieces = stage_row / 16;
inline constexpr int room = 2;  // stages that a warp has room for
inline constexpr int most_warps = 16;

/// A weight, or expert 0's; what of it is where for expert e is e times a stride further.
struct VectorPart {
  const std::byte* codes;
  const float* scales;
  const float* offsets;
  const float* bias;
  float* out;
  std::int64_t out_features;
  int first_tile;
};

/// Weights of one form, which meet the same inputs. With experts this is done for each *slot*, an
/// expert that was chosen.
struct VectorJob {
  VectorPart parts[most_products];
  int count;
  int tiles;  // of all parts
  int row_bytes;
  int in_features;
  int groups;
  int group;
  int stages_of_row;
  int team;                     // warps
  int factors_at_once;          // of a row: 4, 2 or 1 can be copied together
  const std::int32_t* experts;  // of the slots; null: none, and one slot
  std::int64_t stride;          // bytes from an expert to the next
  int slots;
  int sharing;                // slots that have a row of inputs
  const std::int32_t* order;  // of the inputs; null: their own
  const __nv_bfloat16* x;
  int repeats;   // with experts' orders: rows of inputs that are one row of x
  int x_rows;    // of inputs
  int tokens;    // rows of inputs that a weight meets
  bool vectors;  // rows of x are aligned to 16 bytes and read in their own order
  bool accumulate;
};

/// flush: inputs between two times that sums are scaled; a group has a multiple of them. row: a row
/// has one scale, and no offset.
template <Packing packing, int flush, bool row, bool offsets>
struct StageFormat {
  static constexpr bool nibbles = in_nibbles(packing);
  static constexpr int inputs = stage_row * (nibbles ? 2 : 1);  // of a stage
  static constexpr int blocks = inputs / power_inputs;
  static constexpr int flushes = inputs / flush;
  static constexpr int factors = row ? 0 : flushes;  // of a row in a stage
  static constexpr int code_bytes = tile * stage_row;
  static constexpr int stage_bytes = code_bytes + factors * tile * (offsets ? 2 : 1) * 4;
};

/// Tile `number` of those of all slots.
struct Tile {
  const VectorPart* part;
  int slot;
  int x_row;  // of the inputs that it meets, or the first of them
  std::int64_t expert;
  std::int64_t first_row;

  /// experts: of the slots, in shared memory.
  static __device__ __forceinline__ Tile of(const VectorJob& job, const std::int32_t* experts,
                                            int number) {
    Tile tile_of{};
    if (job.experts != nullptr) {
      tile_of.slot = number / job.tiles;
      number -= tile_of.slot * job.tiles;
      tile_of.x_row = tile_of.slot / job.sharing;
      tile_of.expert = experts[tile_of.slot];
    }
    int p = 0;
    if (job.count > 1 && number >= job.parts[1].first_tile) p = 1;
    if (job.count > 2 && number >= job.parts[2].first_tile) p = 2;
    tile_of.part = &job.parts[p];
    tile_of.first_row = std::int64_t{number - tile_of.part->first_tile} * tile;
    return tile_of;
  }
  /// Where the expert has what expert 0 has at `first`.
  template <class T>
  __device__ __forceinline__ const T* at(const VectorJob& job, const T* first) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(first) +
                                      expert * job.stride);
  }
  __device__ __forceinline__ std::int64_t last_row() const { return part->out_features - 1; }
};

/// Where piece p of row r of a stage lies: the same piece of eight neighbouring rows in different
/// banks.
__device__ __forceinline__ std::uint32_t place_of(int r, int p) {
  return static_cast<std::uint32_t>(r * stage_row + (p ^ (r & 7)) * 16);
}

template <int bytes>
__device__ __forceinline__ void copy_factors(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(bytes),
               "r"(valid ? bytes : 0)
               : "memory");
}

/// Copies of a warp's stages, one after the other, over all tiles that it has.
template <Packing packing, int flush, bool row, bool offsets>
struct StageLoader {
  using F = StageFormat<packing, flush, row, offsets>;
  static constexpr int rows_at_once = warp / pieces;
  static constexpr int rows_of_lane = tile / rows_at_once;

  const VectorJob& job;
  const std::int32_t* experts;
  std::uint32_t ring;
  int begin, end;    // stages of a row that are the warp's
  int number, step;  // of tiles
  int lane;
  int stage = 0;
  int slot = 0;
  int last_row = 0;                  // of the tile: those behind it are read as it is
  const std::byte* codes = nullptr;  // of the tile's first row
  const float* scales = nullptr;
  const float* shifts = nullptr;

  /// Begins the copies of the first stage.
  __device__ void start() {
    stage = begin;
    begin_tile();
    next();
  }

  /// Begins the copies of the next stage, if there is one, in the place of the one before the last.
  __device__ void next() {
    if (number < job.slots * job.tiles && begin < end) {
      const std::uint32_t to = ring + static_cast<std::uint32_t>(slot * F::stage_bytes);
      const int at = stage * stage_row + lane % pieces * 16;
      const bool there = at < job.row_bytes;
#pragma unroll
      for (int k = 0; k < rows_of_lane; ++k) {
        const int r = lane / pieces + k * rows_at_once;
        copy_async(to + place_of(r, lane % pieces),
                   codes + std::int64_t{min(r, last_row)} * job.row_bytes + at, there);
      }
      if constexpr (!row) {
        if (F::factors % 4 == 0 && job.factors_at_once == 4) {
          copy_all_factors<F::factors % 4 == 0 ? 4 : 1>(to + F::code_bytes);
        } else if (F::factors % 2 == 0 && job.factors_at_once == 2) {
          copy_all_factors<F::factors % 2 == 0 ? 2 : 1>(to + F::code_bytes);
        } else {
          copy_all_factors<1>(to + F::code_bytes);
        }
      }
      if (++stage == end) {
        stage = begin;
        number += step;
        begin_tile();
      }
      slot = (slot + 1) % room;
    }
  }

 private:
  __device__ void begin_tile() {
    if (number >= job.slots * job.tiles) return;
    const Tile of = Tile::of(job, experts, number);
    codes = of.at(job, of.part->codes) + of.first_row * job.row_bytes;
    last_row = static_cast<int>(min(of.last_row() - of.first_row, std::int64_t{tile - 1}));
    if constexpr (!row) scales = of.at(job, of.part->scales) + of.first_row * job.groups;
    if constexpr (offsets) shifts = of.at(job, of.part->offsets) + of.first_row * job.groups;
  }

  /// Scales of the rows, and offsets behind them, so many at once; neighbouring lanes have
  /// neighbouring ones.
  template <int at_once>
  __device__ __forceinline__ void copy_all_factors(std::uint32_t to) {
    constexpr int of_row = F::factors / at_once;
    constexpr int all = tile * of_row;
#pragma unroll
    for (int i = 0; i < all * (offsets ? 2 : 1); i += warp) {
      const int copy = i + lane;
      if (all * (offsets ? 2 : 1) % warp != 0 && copy >= all * (offsets ? 2 : 1)) break;
      const bool shift = offsets && copy >= all;
      const int r = copy % all / of_row;
      const int f = stage * F::factors + copy % of_row * at_once;
      const int group = at_once > 1 || job.group == flush ? f : f * flush / job.group;
      copy_factors<at_once * 4>(to + static_cast<std::uint32_t>(copy * at_once * 4),
                                (shift ? shifts : scales) + min(r, last_row) * job.groups + group,
                                group < job.groups);
    }
  }
};

}  // namespace topkv::gpu
