#include "src/core/math/tile_dot.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TOPKV_HAS_AMX 1
#endif

namespace topkv {
namespace {

constexpr std::int64_t step = 32;         // elements of a key that a tile row holds
constexpr std::int64_t pass_queries = 8;  // queries scored at once: 3 x 8 columns of two tiles
constexpr std::int64_t tile_rows = 16;
constexpr std::int64_t tile_elements = tile_rows * 16 * 2;  // bf16 values of a tile
constexpr std::int64_t key_rows = 2 * tile_rows;            // keys scored at once

/// The bf16 nearest to x, ties to even. REQUIRES: finite, and not rounded to infinity.
std::uint16_t to_bf16(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

float from_bf16(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t{half} << 16;
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

/// Where part p of query q (of a pass) lies for element j of a step: tile, row and column.
std::int64_t place(std::int64_t part, std::int64_t q, std::int64_t j) {
  const std::int64_t column = part * pass_queries + q;
  return (column / 16) * tile_elements + (j / 2) * 32 + (column % 16) * 2 + j % 2;
}

#ifdef TOPKV_HAS_AMX

bool permitted() {
  constexpr unsigned tile_bit = 1U << 24;  // CPUID.7.0:EDX, with bit 22 for bf16
  constexpr unsigned bf16_bit = 1U << 22;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & tile_bit) == 0 || (d & bf16_bit) == 0 || (b & (1U << 16)) == 0) return false;
  constexpr int request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int tile_data = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

/// GCC's tile intrinsics do not say that they read memory: what was written before is to be there.
inline void written(const void* memory) { __asm__ volatile("" : : "r"(memory) : "memory"); }

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

/// Scores 32 keys with the 8 queries of a pass. sums: [32 keys][2 tiles][16 columns].
/// Tiles 0 to 3: sums of two groups of keys with two tiles of columns; 4, 5: keys; 6, 7: queries.
__attribute__((target("amx-tile,amx-bf16"))) void multiply(const std::byte* keys,
                                                           std::int64_t stride,
                                                           const std::uint16_t* parts,
                                                           std::int64_t steps, float* sums) {
  written(keys);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t i = 0; i < steps; ++i) {
    const std::byte* at = keys + i * step * 2;
    const std::uint16_t* part = parts + i * 2 * tile_elements;
    _tile_loadd(4, at, stride);
    _tile_loadd(5, at + tile_rows * stride, stride);
    _tile_loadd(6, part, 64);
    _tile_loadd(7, part + tile_elements, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  constexpr std::int64_t row = 32 * sizeof(float);
  _tile_stored(0, sums, row);
  _tile_stored(1, sums + 16, row);
  _tile_stored(2, sums + tile_rows * 32, row);
  _tile_stored(3, sums + tile_rows * 32 + 16, row);
}

/// Adds the three parts of every query: out[q * stride + key].
__attribute__((target("avx2"))) void add_parts(const float* sums, std::int64_t queries,
                                               std::int64_t keys, float* out, std::int64_t stride) {
  alignas(64) float whole[key_rows][pass_queries];
  for (std::int64_t key = 0; key < key_rows; ++key) {
    const float* row = sums + key * 32;
    const __m256 high = _mm256_loadu_ps(row);
    const __m256 middle = _mm256_loadu_ps(row + 8);
    const __m256 low = _mm256_loadu_ps(row + 16);
    _mm256_store_ps(whole[key], _mm256_add_ps(high, _mm256_add_ps(middle, low)));
  }
  for (std::int64_t q = 0; q < queries; ++q) {
    for (std::int64_t key = 0; key < keys; ++key) out[q * stride + key] = whole[key][q];
  }
}

__attribute__((target("amx-tile"))) void configure() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = tile_rows;
    config.row_bytes[tile] = 64;
  }
  written(&config);
  _tile_loadconfig(&config);
}

__attribute__((target("amx-tile"))) void release() { _tile_release(); }

#endif

}  // namespace

bool TileQueries::usable(DType keys, std::int64_t dim, std::int64_t query_count) {
#ifdef TOPKV_HAS_AMX
  static const bool there = permitted();
  return there && keys == DType::bf16 && dim > 0 && dim % step == 0 && query_count >= 3;
#else
  return false;
#endif
}

void TileQueries::prepare(const float* queries, std::int64_t count, std::int64_t dim) {
  count_ = count;
  dim_ = dim;
  const std::int64_t passes = (count + pass_queries - 1) / pass_queries;
  const std::int64_t steps = dim / step;
  parts_.assign(static_cast<std::size_t>(passes * steps * 2 * tile_elements), 0);
  for (std::int64_t q = 0; q < count; ++q) {
    for (std::int64_t i = 0; i < dim; ++i) {
      std::uint16_t* tiles =
          parts_.data() + (q / pass_queries * steps + i / step) * 2 * tile_elements;
      float rest = queries[q * dim + i];
      for (std::int64_t part = 0; part < 3; ++part) {
        const std::uint16_t half = to_bf16(rest);
        tiles[place(part, q % pass_queries, i % step)] = half;
        rest -= from_bf16(half);  // exact
      }
    }
  }
}

void TileQueries::dot_block(const std::byte* keys, std::int64_t key_stride_bytes,
                            std::int64_t key_count, float* scores,
                            std::int64_t scores_stride) const {
#ifdef TOPKV_HAS_AMX
  const std::int64_t steps = dim_ / step;
  const std::int64_t key_bytes = dim_ * 2;
  alignas(64) float sums[key_rows * 32];
  thread_local std::vector<std::byte> last;  // a short last group, filled up with zeros
  configure();
  for (std::int64_t first = 0; first < key_count; first += key_rows) {
    const std::int64_t n = std::min(key_rows, key_count - first);
    const std::byte* group = keys + first * key_stride_bytes;
    std::int64_t stride = key_stride_bytes;
    if (n < key_rows) {
      last.assign(static_cast<std::size_t>(key_rows * key_bytes), std::byte{0});
      for (std::int64_t r = 0; r < n; ++r) {
        std::memcpy(last.data() + r * key_bytes, group + r * key_stride_bytes,
                    static_cast<std::size_t>(key_bytes));
      }
      group = last.data();
      stride = key_bytes;
    } else {
      // The keys of the group after the next, beyond this block's too: they are likely to be next.
      for (std::int64_t byte = 0; byte < key_rows * stride; byte += 64) {
        __builtin_prefetch(group + 2 * key_rows * stride + byte);
      }
    }
    for (std::int64_t q = 0; q < count_; q += pass_queries) {
      multiply(group, stride, parts_.data() + q / pass_queries * steps * 2 * tile_elements, steps,
               sums);
      add_parts(sums, std::min(pass_queries, count_ - q), n, scores + q * scores_stride + first,
                scores_stride);
    }
  }
  release();
#else
  (void)keys, (void)key_stride_bytes, (void)key_count, (void)scores, (void)scores_stride;
#endif
}

}  // namespace topkv
