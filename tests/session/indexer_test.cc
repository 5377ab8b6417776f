// Layers with a trained indexer: prefills and sessions attend what the indexer chooses, and nothing
// else. Choices and attention are compared with float64 by plain loops. Index tensors are small
// whole numbers, so that scores are exact and the choice of equal scores is tested, too.
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/session_feed.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using ::test::Feed;
using ::test::Place;
using ::test::TokenStream;

constexpr std::int64_t indexed_tokens = 150;
constexpr std::int64_t indexed_total = 230;

struct IndexerCase {
  std::string name;
  AttentionShape shape;
  bool with_weights = true;
};

void PrintTo(const IndexerCase& one, std::ostream* out) { *out << one.name; }

AttentionShape indexed_stack(IndexerShape indexer, std::vector<std::int64_t> indexer_layer = {}) {
  return {.layers = 3,
          .q_heads = 4,
          .kv_heads = 2,
          .head_dim = 40,
          .indexer = indexer,
          .indexer_layer = std::move(indexer_layer)};
}

/// Indexers as models have them, smaller.
std::vector<IndexerCase> indexer_cases() {
  std::vector<IndexerCase> all;
  const IndexerShape lightning{.dim = 32, .heads = 9, .top = 20};
  all.push_back({"lightning", indexed_stack(lightning)});
  AttentionShape latent = indexed_stack(lightning);
  latent.kv_heads = 1;
  latent.q_heads = 20;
  latent.keys_are_values = true;
  all.push_back({"lightning_over_latents", latent});
  const IndexerShape blocks{.dim = 21,
                            .heads = 2,
                            .choices = 2,
                            .score = IndexScore::dot,
                            .block = 8,
                            .top = 4,
                            .local_blocks = 1};
  all.push_back({"blocks_of_each_kv_head", indexed_stack(blocks), false});
  IndexerShape far_blocks = blocks;
  far_blocks.local_blocks = 0;
  far_blocks.heads = 6;
  all.push_back({"blocks_without_local_ones", indexed_stack(far_blocks)});
  IndexerShape long_blocks = blocks;
  long_blocks.block = 60;  // longer than a tile of keys
  long_blocks.top = 2;
  all.push_back({"long_blocks", indexed_stack(long_blocks)});
  IndexerShape groups{.dim = 16, .heads = 4, .tokens_per_key = 4, .top = 6};
  all.push_back({"groups", indexed_stack(groups), false});
  groups.block = 3;
  groups.local_blocks = 2;
  groups.score = IndexScore::dot;
  groups.dtype = DType::bf16;
  all.push_back({"blocks_of_groups", indexed_stack(groups)});
  all.push_back({"a_layer_that_shares", indexed_stack(lightning, {0, 0, 2})});
  all.push_back({"layers_that_share_groups", indexed_stack(groups, {0, 0, 0})});
  all.push_back({"a_layer_without", indexed_stack(lightning, {-1, 1, 1})});
  return all;
}

class IndexerOf : public testing::TestWithParam<IndexerCase> {
 protected:
  IndexerOf() : stream(GetParam().shape, indexed_total) {
    stream.with_weights = GetParam().with_weights;
  }
  std::vector<std::int64_t> positions(std::int64_t first, std::int64_t end) const {
    std::vector<std::int64_t> all;
    for (std::int64_t p = first; p < end; p += p < 50 ? 1 : 7) all.push_back(p);
    return all;
  }
  /// A prefill of the first `tokens` tokens in steps. A layer without an indexer attends all tokens.
  std::shared_ptr<const Context> prefill(Feed& feed, std::int64_t tokens, std::int64_t step,
                                         const Place& of) const {
    ContextBuilder builder(stream.shape, {.capacity = tokens}, of.device());
    for (std::int64_t t = 0; t < tokens; t += step) {
      for (std::int64_t l = 0; l < stream.shape.layers; ++l)
        builder.attend(feed.step(l, t, std::min(step, tokens - t)));
    }
    return builder.freeze();
  }

  const Place place{"cpu"};
  TokenStream stream;
};

TEST_P(IndexerOf, PrefillsAttendTheChoice) {
  Feed feed(place, stream, 0, indexed_total);
  prefill(feed, indexed_total, indexed_total, place);
  const RetrievalOptions dense{.dense_layers = stream.shape.layers};
  EXPECT_LE(feed.worst(dense, positions(0, indexed_total)), 1);
}

TEST_P(IndexerOf, PrefillsInStepsGiveTheSameBits) {
  Feed whole(place, stream, 0, indexed_total);
  prefill(whole, indexed_total, indexed_total, place);
  const auto want = whole.outs();
  for (const std::int64_t step : {64, 7, 1}) {
    Feed feed(place, stream, 0, indexed_total);
    prefill(feed, indexed_total, step, place);
    const auto got = feed.outs();
    for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
      if (!stream.shape.has_indexer(l)) continue;  // dense attention rounds otherwise
      EXPECT_EQ(got[static_cast<std::size_t>(l)], want[static_cast<std::size_t>(l)])
          << "layer " << l << " in steps of " << step;
    }
  }
}

TEST_P(IndexerOf, SessionsAttendTheChoice) {
  const auto context = stream.context(indexed_tokens);
  // Neither window nor sinks nor dense layers matter, except in a layer without an indexer.
  const RetrievalOptions options{.k = TopK::same(8), .window = 12, .sinks = 3, .capacity = 100};
  for (const std::int64_t step : {1, 5, 80}) {
    SCOPED_TRACE(step);
    Session session(context, options);
    Feed feed(place, stream, indexed_tokens, indexed_total);
    feed.run(session, step);
    EXPECT_LE(feed.worst(options, positions(indexed_tokens, indexed_total)), 1);
  }
}

TEST_P(IndexerOf, SessionsGoOnAsAPrefillDoes) {
  Feed whole(place, stream, 0, indexed_total);
  prefill(whole, indexed_total, indexed_total, place);
  const auto want = whole.outs();
  for (const std::int64_t first : {1, 61, 149}) {
    SCOPED_TRACE(first);
    const auto context = stream.context(first);
    Session session(context, {.capacity = 300});
    Feed feed(place, stream, first, indexed_total);
    feed.run(session, 40);
    const auto got = feed.outs();
    for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
      if (!stream.shape.has_indexer(l)) continue;
      // Rows of context and session make two partials: equal up to rounding.
      const auto& layer = want[static_cast<std::size_t>(l)];
      const auto skipped = static_cast<std::size_t>(first * stream.q_width());
      double worst = 0;
      for (std::size_t i = 0; i + skipped < layer.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(got[static_cast<std::size_t>(l)][i]) -
                                         layer[i + skipped]));
      EXPECT_LE(worst, 1e-5) << "layer " << l;
    }
  }
}

TEST_P(IndexerOf, AnyNumberOfThreadsGivesTheSameBits) {
  const auto outs = [&](std::int64_t first, std::int64_t step) {
    Session session(stream.context(first), {.capacity = 300});
    Feed feed(place, stream, first, indexed_total);
    feed.run(session, step);
    return feed.outs();
  };
  const auto want = outs(100, 40);
  const oneapi::tbb::global_control one(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  EXPECT_EQ(outs(100, 40), want);
}

TEST_P(IndexerOf, TokensThatAreTakenBackLeaveNothing) {
  const auto context = stream.context(indexed_tokens);
  Session clean(context, {.capacity = 100});
  Feed clean_feed(place, stream, indexed_tokens, indexed_total);
  clean_feed.run(clean, 1);
  Session session(context, {.capacity = 100});
  Feed feed(place, stream, indexed_tokens, indexed_total);
  for (const std::int64_t kept : {0, 1, 5, 9, 30}) {
    feed.run(session, std::min(session.tokens() + 13, indexed_total), 1);
    session.truncate(std::min(kept, session.own_tokens()));
  }
  feed.run(session, 1);
  EXPECT_EQ(feed.outs(), clean_feed.outs());

  ContextBuilder builder(stream.shape, {.capacity = indexed_total});
  Feed again(place, stream, 0, indexed_total);
  for (const std::int64_t kept : {30, 0, 77}) {
    while (builder.tokens(0) < 100) {
      const std::int64_t t = builder.tokens(0);
      for (std::int64_t l = 0; l < stream.shape.layers; ++l)
        builder.attend(again.step(l, t, std::min<std::int64_t>(10, 100 - t)));
    }
    builder.truncate(kept);
  }
  while (builder.tokens(0) < indexed_total) {
    const std::int64_t t = builder.tokens(0);
    for (std::int64_t l = 0; l < stream.shape.layers; ++l)
      builder.attend(again.step(l, t, std::min<std::int64_t>(50, indexed_total - t)));
  }
  const RetrievalOptions dense{.dense_layers = stream.shape.layers};
  EXPECT_LE(again.worst(dense, positions(77, indexed_total)), 1);
}

TEST_P(IndexerOf, ForksGoOnAsTheirSession) {
  const auto context = stream.context(indexed_tokens);
  Session session(context, {.capacity = 100});
  Feed feed(place, stream, indexed_tokens, indexed_total);
  feed.run(session, indexed_tokens + 21, 3);
  // In the middle of a step, after the first layer.
  feed.attend(session, 0, indexed_tokens + 21, 2);
  Session fork = session.fork();
  Feed of_fork(place, stream, indexed_tokens, indexed_total);
  for (std::int64_t l = 1; l < stream.shape.layers; ++l) {
    feed.attend(session, l, indexed_tokens + 21, 2);
    of_fork.attend(fork, l, indexed_tokens + 21, 2);
  }
  feed.run(session, 4);
  of_fork.run(fork, 4);
  const auto want = feed.outs();
  const auto got = of_fork.outs();
  const auto begin = static_cast<std::ptrdiff_t>(23 * stream.q_width());
  for (std::size_t l = 0; l < want.size(); ++l) {
    EXPECT_TRUE(std::equal(want[l].begin() + begin, want[l].end(), got[l].begin() + begin)) << l;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, IndexerOf, testing::ValuesIn(indexer_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace topkv
