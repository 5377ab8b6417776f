// Inner products of several queries with many bf16 keys through AMX, the matrix tiles of recent
// Intel cores, which multiply some ten times faster than their vector units: with many queries per
// key the scan over keys then runs at the speed of memory.
//
// A query is split into three bf16 parts whose sum it is (8 bits of significand each), so that
// every product is exact; products are added in float32, as everywhere. Sums of float32 values
// whose low parts are below 2^-126 lose these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "topkv/types.h"

namespace topkv {

/// Queries readied for scoring blocks of keys. Const members are safe from many threads.
class TileQueries {
 public:
  /// Whether this machine has AMX and the kernel lets this process use it, and the shape suits:
  /// bf16 keys, a multiple of 32 elements, at least 3 queries (fewer are bound by memory anyway).
  static bool usable(DType keys, std::int64_t dim, std::int64_t query_count);

  /// queries: [count, dim], contiguous. REQUIRES: usable.
  void prepare(const float* queries, std::int64_t count, std::int64_t dim);

  /// scores[q * scores_stride + r] = query q · key r, as dot_block (dot.h) gives them up to the
  /// rounding of sums.
  void dot_block(const std::byte* keys, std::int64_t key_stride_bytes, std::int64_t key_count,
                 float* scores, std::int64_t scores_stride) const;

 private:
  std::int64_t count_ = 0;
  std::int64_t dim_ = 0;
  /// [passes of 8 queries][dim / 32][2 tiles][16 pairs of elements][16 columns][2], bf16
  std::vector<std::uint16_t> parts_;
};

}  // namespace topkv
