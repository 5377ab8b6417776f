// A prefill sharded by sequence: every rank is given all queries and the K and V of its own tokens,
// on a device and (what it is to agree with) on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "src/store/row_store.h"
#include "tests/support/token_stream.h"

namespace topkv {
namespace {

using test::Place;
using test::TokenStream;

struct Case {
  const char* name;
  std::int64_t ranks;
  std::vector<std::int64_t> calls;  ///< tokens of each
  std::int64_t head_dim = 64;
  float softcap = 0;
  std::int64_t stride = 1;  ///< of the tokens compared
};

std::vector<Case> cases() {
  return {
      {"one_rank", 1, {70, 33}},
      {"two_ranks", 2, {70, 70, 1, 2, 70, 33}},
      {"three_ranks", 3, {70, 70, 1, 2, 70, 33}, 128},
      {"first_calls_of_fewer_tokens_than_ranks", 3, {1, 2, 1, 50}},
      {"soft_capped", 2, {64, 64, 5}, 256, 2},
      // The rows of a rank fill a tile that cuDNN may take only in the third call.
      {"calls_that_cudnn_may_take", 2, {1024, 1024, 1024, 100}, 128, 0, 97},
  };
}

struct Parameter {
  std::string device;
  Case c;
};

void PrintTo(const Parameter& p, std::ostream* out) { *out << p.c.name << " on " << p.device; }

std::int64_t sum(const std::vector<std::int64_t>& counts) {
  std::int64_t total = 0;
  for (const std::int64_t count : counts) total += count;
  return total;
}

/// What one rank holds and gives.
struct Rank {
  Rank(const Place& place, const TokenStream& stream, std::int64_t rows, std::int64_t chunk)
      : store(stream.shape, DType::bf16, std::max<std::int64_t>(rows, 1), 0, "test") {
    const PrefillVisibility all(static_cast<std::size_t>(stream.shape.layers));
    prefill = place.compute().prefill_attention(stream.shape, all, chunk, {store});
    for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
      const auto room = [&](std::int64_t width) {
        return place.put(std::vector<float>(static_cast<std::size_t>(stream.total * width), NAN));
      };
      out_buffers.push_back(room(stream.q_width()));
      lse_buffers.push_back(room(stream.shape.q_heads));
    }
  }

  RowStore store;
  std::unique_ptr<DevicePrefill> prefill;
  std::vector<Buffer> out_buffers, lse_buffers;  // per layer
  std::vector<std::vector<float>> outs, lses;    // per layer
};

class PrefillShards : public testing::TestWithParam<Parameter> {
 protected:
  /// The first of a call's tokens that belongs to the rank or a later one.
  static std::int64_t share(std::int64_t tokens, std::int64_t rank) {
    return tokens * rank / GetParam().c.ranks;
  }

  /// Which rank each token belongs to.
  static std::vector<std::int64_t> owners() {
    std::vector<std::int64_t> owners;
    for (const std::int64_t tokens : GetParam().c.calls) {
      for (std::int64_t rank = 0; rank < GetParam().c.ranks; ++rank) {
        const std::int64_t count = share(tokens, rank + 1) - share(tokens, rank);
        owners.insert(owners.end(), static_cast<std::size_t>(count), rank);
      }
    }
    return owners;
  }

  static void run(const Place& place, const TokenStream& stream, std::int64_t number, Rank& rank) {
    std::vector<Buffer> q, k, v;
    for (std::size_t l = 0; l < rank.out_buffers.size(); ++l) {
      q.push_back(place.put(stream.q[l]));
      k.push_back(place.put(stream.k[l]));
      v.push_back(place.put(stream.v[l]));
    }
    std::int64_t first = 0;
    for (const std::int64_t tokens : GetParam().c.calls) {
      const std::int64_t begin = share(tokens, number);
      const std::int64_t count = share(tokens, number + 1) - begin;
      for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
        const auto at = static_cast<std::size_t>(l);
        const std::int64_t skip = (first + begin) * stream.kv_width();
        rank.prefill->attend({.layer = l,
                              .tokens = tokens,
                              .q = q[at].floats() + first * stream.q_width(),
                              .k = count == 0 ? nullptr : k[at].floats() + skip,
                              .v = count == 0 ? nullptr : v[at].floats() + skip,
                              .out = rank.out_buffers[at].floats() + first * stream.q_width(),
                              .lse = rank.lse_buffers[at].floats() + first * stream.shape.q_heads,
                              .kv_first = begin,
                              .kv_tokens = count});
      }
      first += tokens;
    }
    rank.prefill->finish();
    for (std::size_t l = 0; l < rank.out_buffers.size(); ++l) {
      rank.outs.push_back(place.get(rank.out_buffers[l].floats(), stream.total * stream.q_width()));
      rank.lses.push_back(
          place.get(rank.lse_buffers[l].floats(), stream.total * stream.shape.q_heads));
    }
  }

  /// The rank's rows are its tokens', in order, rounded.
  static void expect_rows(const TokenStream& stream, std::int64_t number, const Rank& rank) {
    const std::vector<std::int64_t> owner = owners();
    const std::int64_t dim = stream.shape.head_dim;
    for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
      EXPECT_EQ(rank.store.size(l), std::count(owner.begin(), owner.end(), number));
      for (std::int64_t head = 0; head < stream.shape.kv_heads; ++head) {
        const RowsView rows = rank.store.rows(l, head);
        const reference::Rows& want = stream.rows(l, head);
        std::int64_t row = 0;
        for (std::int64_t t = 0; t < stream.total; ++t) {
          if (owner[static_cast<std::size_t>(t)] != number) continue;
          for (std::int64_t j = 0; j < dim; ++j) {
            const auto at = static_cast<std::size_t>(t * dim + j);
            ASSERT_EQ(test::bf16_at(rows.key(row), j), want.keys[at]) << "key of token " << t;
            ASSERT_EQ(test::bf16_at(rows.value(row), j), want.values[at]) << "value of token " << t;
          }
          ++row;
        }
      }
    }
  }
};

TEST_P(PrefillShards, GiveThePartialsOfTheirRowsWhichMergeIntoTheWhole) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const Case& c = GetParam().c;
  const Place place(GetParam().device);
  const TokenStream stream(
      {.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = c.head_dim, .softcap = c.softcap},
      sum(c.calls));
  const std::vector<std::int64_t> owner = owners();
  ASSERT_EQ(static_cast<std::int64_t>(owner.size()), stream.total);
  const auto lock = place.compute().lock();
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::int64_t r = 0; r < c.ranks; ++r) {
    ranks.push_back(std::make_unique<Rank>(place, stream, std::count(owner.begin(), owner.end(), r),
                                           *std::max_element(c.calls.begin(), c.calls.end())));
    run(place, stream, r, *ranks.back());
    expect_rows(stream, r, *ranks.back());
  }

  double worst_partial = 0;
  double worst_merged = 0;
  const std::int64_t heads = stream.shape.q_heads;
  for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
    const auto layer = static_cast<std::size_t>(l);
    for (std::int64_t p = 0; p < stream.total; ++p) {
      if (p % c.stride != 0 && p + 3 < stream.total) continue;
      for (std::int64_t head = 0; head < heads; ++head) {
        TokenStream::Truth whole =
            stream.truth(l, p, head, place.is_cuda(), [](std::int64_t) { return true; });
        std::vector<float> merged(whole.out.size(), 0.0F);
        double lse_error = 0;
        for (std::int64_t r = 0; r < c.ranks; ++r) {
          const float* out =
              &ranks[static_cast<std::size_t>(r)]->outs[layer][static_cast<std::size_t>(
                  p * stream.q_width() + head * stream.shape.head_dim)];
          const float lse = ranks[static_cast<std::size_t>(r)]
                                ->lses[layer][static_cast<std::size_t>(p * heads + head)];
          const TokenStream::Truth own = stream.truth(
              l, p, head, place.is_cuda(),
              [&](std::int64_t row) { return owner[static_cast<std::size_t>(row)] == r; });
          worst_partial = std::max(worst_partial, own.distance(out, &lse));
          lse_error = std::max(lse_error, own.lse_error);
          for (std::size_t j = 0; j < merged.size(); ++j)
            merged[j] += static_cast<float>(std::exp(lse - whole.lse)) * out[j];
        }
        // Shares whose logarithms are lse_error off, each of a value; and their float32 sum.
        double largest = 0;
        for (const double x : stream.rows(l, head / stream.shape.group()).values)
          largest = std::max(largest, std::abs(x));
        whole.out_error += largest * (2 * lse_error + 0x1p-20);
        worst_merged = std::max(worst_merged, whole.distance(merged.data(), nullptr));
      }
    }
  }
  RecordProperty("worst_of_allowed", std::to_string(worst_partial));
  EXPECT_LE(worst_partial, 1.0) << "times what rounding may do";
  EXPECT_LE(worst_merged, 1.0) << "times what rounding may do";
}

std::vector<Parameter> everywhere() {
  std::vector<Parameter> all;
  for (const Case& c : cases()) {
    for (const char* device : {"cpu", "cuda"}) all.push_back({device, c});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ranks, PrefillShards, testing::ValuesIn(everywhere()),
                         [](const testing::TestParamInfo<Parameter>& info) {
                           return std::string(info.param.c.name) + "_on_" + info.param.device;
                         });

}  // namespace
}  // namespace topkv
