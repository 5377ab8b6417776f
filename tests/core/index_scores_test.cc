// Scores of index keys against float64 by plain loops, for every number of queries, elements and
// keys that the loops treat in a way of its own.
#include "src/core/math/index_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/core/math/convert.h"
#include "tests/support/reference.h"

namespace topkv {
namespace {

struct IndexKeysInMemory {
  std::vector<std::byte> bytes;
  KeyView view;

  IndexKeysInMemory(const std::vector<float>& values, std::int64_t dim, DType dtype) {
    const auto count = static_cast<std::int64_t>(values.size()) / dim;
    bytes.resize(static_cast<std::size_t>(vector_bytes(dtype, dim) * count));
    from_float(values.data(), count * dim, dtype, bytes.data());
    view.data = bytes.data();
    view.dtype = dtype;
    view.count = count;
    view.dim = dim;
    view.stride_bytes = vector_bytes(dtype, dim);
  }
};

TEST(IndexScores, MatchFloat64) {
  for (const std::int64_t dim : {1, 3, 4, 16, 70, 128}) {
    for (const std::int64_t heads : {1, 2, 3, 4, 7, 8, 13, 64}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto values = reference::random_bf16(index_key_tile * dim, 1);
        const IndexKeysInMemory keys(values, dim, dtype);
        const auto queries = reference::random_floats(heads * dim, 2);
        const auto weights = reference::random_floats(heads, 3);
        std::vector<float> tile(static_cast<std::size_t>(dim * index_key_tile));
        // In two pieces, as keys of two arrays come.
        put_in_tile(keys.view.part({0, 13}), 0, tile.data());
        put_in_tile(keys.view.part({13, index_key_tile}), 13, tile.data());
        for (const IndexScore score : {IndexScore::relu, IndexScore::dot}) {
          for (const bool weighted : {true, false}) {
            std::vector<float> scores(index_key_tile);
            score_tile(queries.data(), weighted ? weights.data() : nullptr, heads, dim, score,
                       tile.data(), scores.data());
            for (std::int64_t r = 0; r < index_key_tile; ++r) {
              double want = 0;
              double size = 0;
              for (std::int64_t h = 0; h < heads; ++h) {
                double dot = 0;
                for (std::int64_t j = 0; j < dim; ++j) {
                  const auto q = static_cast<std::size_t>(h * dim + j);
                  const auto k = static_cast<std::size_t>(r * dim + j);
                  dot += double{queries[q]} * values[k];
                  size += std::abs(double{queries[q]} * values[k]);
                }
                if (score == IndexScore::relu) dot = std::max(dot, 0.0);
                want += dot * (weighted ? weights[static_cast<std::size_t>(h)] : 1.0F);
              }
              // Sums of so many products in float32, with weights of a few units.
              const double allowed = 4 * size * static_cast<double>(dim + heads) * 0x1p-24;
              ASSERT_NEAR(scores[static_cast<std::size_t>(r)], want, allowed)
                  << dim << " elements, " << heads << " queries, key " << r;
            }
          }
        }
      }
    }
  }
}

TEST(IndexScores, AreTheSameInAnyPlaceOfATile) {
  const std::int64_t dim = 70;
  const auto values = reference::random_floats(index_key_tile * dim, 1);
  const IndexKeysInMemory keys(values, dim, DType::f32);
  const auto queries = reference::random_floats(9 * dim, 2);
  std::vector<float> tile(static_cast<std::size_t>(dim * index_key_tile));
  std::vector<float> want(index_key_tile);
  put_in_tile(keys.view, 0, tile.data());
  score_tile(queries.data(), nullptr, 9, dim, IndexScore::relu, tile.data(), want.data());
  for (std::int64_t skipped = 1; skipped < index_key_tile; ++skipped) {
    std::vector<float> scores(index_key_tile);
    put_in_tile(keys.view.part({skipped, index_key_tile}), 0, tile.data());
    score_tile(queries.data(), nullptr, 9, dim, IndexScore::relu, tile.data(), scores.data());
    for (std::int64_t r = skipped; r < index_key_tile; ++r) {
      ASSERT_EQ(scores[static_cast<std::size_t>(r - skipped)], want[static_cast<std::size_t>(r)]);
    }
  }
}

TEST(IndexScores, ThatAreNoNumbersRankLast) {
  const float most = std::numeric_limits<float>::max();
  const IndexKeysInMemory keys({most, most, 1, 1}, 2, DType::f32);
  std::vector<float> tile(static_cast<std::size_t>(2 * index_key_tile));
  put_in_tile(keys.view, 0, tile.data());
  const std::vector<float> queries = {most, most, -most, -most};  // inf and -inf: no number
  std::vector<float> scores(index_key_tile);
  score_tile(queries.data(), nullptr, 2, 2, IndexScore::dot, tile.data(), scores.data());
  EXPECT_EQ(scores[0], -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace topkv
