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

#include "tests/support/context_file_case.h"
#include "tests/support/failing.h"
#include "tests/support/session_feed.h"
#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using ::test::fail_everywhere;
using ::test::FailingAt;
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
  /// A prefill of the first `tokens` tokens in steps. A layer without an indexer attends all
  /// tokens.
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

TEST_P(IndexerOf, SessionsTogetherGiveWhatTheyGiveAlone) {
  const auto context = stream.context(indexed_tokens);
  const RetrievalOptions options{.k = TopK::same(8), .window = 12, .sinks = 3, .capacity = 100};
  // At positions 3 apart, where groups of 4 end at different tokens.
  std::vector<Session> alone;
  std::vector<Session> together;
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::vector<Session>* sessions : {&alone, &together}) {
      sessions->emplace_back(context, options);
      Feed feed(place, stream, indexed_tokens, indexed_total);
      feed.run(sessions->back(), indexed_tokens + 3 * i, 1);
    }
  }
  constexpr std::int64_t tokens = 5;
  for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
    std::vector<float> q, k, v, index_q, index_k, index_weights, want;
    for (Session& session : alone) {
      const std::int64_t first = session.tokens(l);
      Feed feed(place, stream, first, first + tokens);
      const AttentionStep step = feed.step(l, first, tokens);
      const auto add = [](std::vector<float>& to, const float* from, std::int64_t count) {
        if (from != nullptr) to.insert(to.end(), from, from + count);
      };
      add(q, step.q, tokens * stream.q_width());
      add(k, step.k, tokens * stream.kv_width());
      add(v, step.v, tokens * stream.kv_width());
      const IndexerShape& of = *stream.shape.indexer;
      add(index_q, step.index_q, tokens * of.heads * of.dim);
      add(index_k, step.index_k, of.completed(first, tokens) * of.dim);
      add(index_weights, step.index_weights, tokens * of.heads);
      session.attend(step);
      add(want, step.out, tokens * stream.q_width());
    }
    const auto given = [](const std::vector<float>& values) {
      return values.empty() ? nullptr : values.data();
    };
    std::vector<float> out(want.size());
    std::vector<Session*> pointers;
    for (Session& session : together) pointers.push_back(&session);
    AttentionStep step{.layer = l,
                       .tokens = tokens,
                       .q = q.data(),
                       .k = given(k),
                       .v = given(v),
                       .out = out.data()};
    step.index_q = given(index_q);
    step.index_k = given(index_k);
    step.index_weights = given(index_weights);
    Session::attend_together(pointers, step);
    if (stream.shape.has_indexer(l)) {
      EXPECT_EQ(out, want) << "layer " << l;
    }
  }
  EXPECT_EQ(together[2].stats().rows_retrieved, alone[2].stats().rows_retrieved);
}

TEST_P(IndexerOf, FilesGiveTheSameBits) {
  const auto context = stream.context(indexed_tokens);
  const TempDirectory folder;
  const auto path = folder.path() / "text.tkv";
  save_context(*context, path);
  const ContextFileInfo info = context_file_info(path);
  EXPECT_EQ(info.version, 4);
  EXPECT_EQ(info.shape.indexer, stream.shape.indexer);
  EXPECT_EQ(info.shape.indexer_layer, stream.shape.indexer_layer);
  EXPECT_EQ(info.rows_bytes, context->memory().rows_bytes);
  EXPECT_EQ(info.rows_bytes, stream.shape.context_bytes({}, indexed_tokens));
  verify_context(path);
  const auto outs = [&](const std::shared_ptr<const Context>& of) {
    Session session(of, {.capacity = 100});
    Feed feed(place, stream, indexed_tokens, indexed_total);
    feed.run(session, 3);
    return feed.outs();
  };
  const auto want = outs(context);
  const auto loaded = load_context(path).context;
  EXPECT_EQ(outs(loaded), want);
  EXPECT_EQ(outs(load_context(path, {.mapped = true}).context), want);
  save_context(*loaded, folder.path() / "again.tkv");
  EXPECT_EQ(test::bytes_of_file(folder.path() / "again.tkv"), test::bytes_of_file(path));

  // A text that is read on.
  ContextBuilder builder(stream.shape, {.capacity = indexed_total});
  builder.resume(*loaded);
  Feed feed(place, stream, indexed_tokens, indexed_total);
  for (std::int64_t l = 0; l < stream.shape.layers; ++l)
    builder.attend(feed.step(l, indexed_tokens, indexed_total - indexed_tokens));
  std::vector<std::int64_t> last = {indexed_tokens, indexed_total - 1};
  EXPECT_LE(feed.worst({.dense_layers = stream.shape.layers}, last), 1);
}

TEST_P(IndexerOf, OwnRowsGoOnInAnotherSession) {
  const auto context = stream.context(indexed_tokens);
  const std::int64_t until = indexed_tokens + 33;
  Session session(context, {.capacity = 100});
  Feed feed(place, stream, indexed_tokens, indexed_total);
  feed.run(session, until, 4);
  const TempDirectory folder;
  save_context(*session.own_rows(), folder.path() / "own.tkv");
  const auto own = load_context(folder.path() / "own.tkv").context;
  Session other(context, {.capacity = 100});
  other.resume(*own);
  Feed again(place, stream, indexed_tokens, indexed_total);
  feed.run(session, 1);
  again.run(other, 1);
  const auto want = feed.outs();
  const auto got = again.outs();
  const auto begin = static_cast<std::ptrdiff_t>((until - indexed_tokens) * stream.q_width());
  for (std::size_t l = 0; l < want.size(); ++l)
    EXPECT_TRUE(std::equal(want[l].begin() + begin, want[l].end(), got[l].begin() + begin)) << l;
  // They are no text of their own.
  EXPECT_THROW(Session(own, {.capacity = 10}), InvalidArgument);
}

TEST_P(IndexerOf, CallsThatFailLeaveEverythingAsItWas) {
  const auto context = stream.context(indexed_tokens);
  const RetrievalOptions options{.k = TopK::same(8), .window = 16, .capacity = 100};
  Feed clean_feed(place, stream, indexed_tokens, indexed_total);
  Session clean(context, options);
  const auto run = [&](Session& session, Feed& feed) {
    std::int64_t failures = 0;
    for (const std::int64_t tokens : {1, 5, 18}) {
      const std::int64_t t = session.tokens();
      for (std::int64_t l = 0; l < stream.shape.layers;) {
        try {
          feed.attend(session, l, t, tokens);
          ++l;
        } catch (const std::bad_alloc&) {
          ++failures;
        }
      }
    }
    return failures;
  };
  run(clean, clean_feed);
  const auto want = clean_feed.outs();
  const auto of_what_was_read = [&](const Feed& feed) {
    auto outs = feed.outs();
    for (std::vector<float>& out : outs)
      out.resize(static_cast<std::size_t>(24 * stream.q_width()));
    return outs;
  };
  const std::int64_t places = fail_everywhere([&](std::int64_t n) {
    Feed feed(place, stream, indexed_tokens, indexed_total);
    Session session(context, options);
    const std::int64_t failures = run(session, feed);
    ASSERT_EQ(failures, FailingAt::reached_after() < 0 ? 0 : 1);
    ASSERT_EQ(of_what_was_read(feed), of_what_was_read(clean_feed)) << "failure at place " << n;
    ASSERT_EQ(session.stats().steps, clean.stats().steps);
    ASSERT_EQ(session.stats().rows_retrieved, clean.stats().rows_retrieved);
  });
  EXPECT_GE(places, 9 * stream.shape.layers);

  // A prefill.
  Feed clean_prefill(place, stream, 0, indexed_total);
  const auto prefilled = [&](Feed& feed) {
    ContextBuilder builder(stream.shape, {.capacity = 60});
    for (const std::int64_t tokens : {33, 1, 26}) {
      const std::int64_t t = builder.tokens(0);
      for (std::int64_t l = 0; l < stream.shape.layers;) {
        try {
          builder.attend(feed.step(l, t, tokens));
          ++l;
        } catch (const std::bad_alloc&) {
          EXPECT_EQ(builder.tokens(l), t);
        }
      }
    }
  };
  prefilled(clean_prefill);
  const auto read = [&](const Feed& feed) {
    auto outs = feed.outs();
    for (std::vector<float>& out : outs)
      out.resize(static_cast<std::size_t>(60 * stream.q_width()));
    return outs;
  };
  const auto wanted = read(clean_prefill);
  fail_everywhere([&](std::int64_t n) {
    Feed feed(place, stream, 0, indexed_total);
    prefilled(feed);
    ASSERT_EQ(read(feed), wanted) << "failure at place " << n;
  });
}

TEST_P(IndexerOf, TensorsThatDoNotFitAreRefused) {
  const IndexerShape& of = *stream.shape.indexer;
  const auto context = stream.context(indexed_tokens);
  Session session(context, {.capacity = 100});
  Session clean(context, {.capacity = 100});
  Feed feed(place, stream, indexed_tokens, indexed_total);
  Feed clean_feed(place, stream, indexed_tokens, indexed_total);
  clean_feed.run(clean, indexed_tokens + 20, 5);
  for (std::int64_t t = indexed_tokens; t < indexed_tokens + 20; t += 5) {
    for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
      const AttentionStep right = feed.step(l, t, 5);
      AttentionStep step = right;
      if (!stream.shape.has_index_keys(l)) {
        step.index_q = right.q;
        EXPECT_THROW(session.attend(step), InvalidArgument);
        step = right;
        step.index_weights = right.q;
        EXPECT_THROW(session.attend(step), InvalidArgument);
      } else {
        step.index_q = nullptr;
        EXPECT_THROW(session.attend(step), InvalidArgument);
        step = right;
        step.index_k = nullptr;
        EXPECT_THROW(session.attend(step), InvalidArgument);
        step = right;
        step.lse = const_cast<float*>(right.index_q);
        EXPECT_THROW(session.attend(step), InvalidArgument);
        std::vector<float> bad(right.index_q, right.index_q + 5 * of.heads * of.dim);
        bad.back() = std::numeric_limits<float>::quiet_NaN();
        step = right;
        step.index_q = bad.data();
        EXPECT_THROW(session.attend(step), InvalidArgument);
        std::vector<float> bad_keys(right.index_k, right.index_k + of.completed(t, 5) * of.dim);
        bad_keys.back() = std::numeric_limits<float>::infinity();
        step = right;
        step.index_k = bad_keys.data();
        EXPECT_THROW(session.attend(step), InvalidArgument);
        std::vector<float> bad_weights(static_cast<std::size_t>(5 * of.heads), 1.0F);
        bad_weights[1] = -std::numeric_limits<float>::infinity();
        step = right;
        step.index_weights = bad_weights.data();
        EXPECT_THROW(session.attend(step), InvalidArgument);
      }
      if (stream.shape.has_indexer(l)) {
        step = right;
        step.k = step.v = nullptr;
        step.kv_tokens = 0;
        EXPECT_THROW(session.attend(step), Unsupported);
      }
      EXPECT_EQ(session.tokens(l), t);
      session.attend(right);
    }
  }
  const auto got = feed.outs();
  const auto want = clean_feed.outs();
  const auto end = static_cast<std::ptrdiff_t>(20 * stream.q_width());
  for (std::size_t l = 0; l < want.size(); ++l)
    EXPECT_TRUE(std::equal(want[l].begin(), want[l].begin() + end, got[l].begin())) << l;
}

INSTANTIATE_TEST_SUITE_P(Kinds, IndexerOf, testing::ValuesIn(indexer_cases()),
                         testing::PrintToStringParamName());

TEST(Indexer, WithRoomForAllKeysIsDenseAttention) {
  const Place place("cpu");
  AttentionShape shape = indexed_stack({.dim = 32, .heads = 3, .top = indexed_total});
  for (const std::int64_t tokens_per_key : {1, 4}) {
    shape.indexer->tokens_per_key = tokens_per_key;
    const TokenStream stream(shape, indexed_total);
    Session session(stream.context(indexed_tokens), {.capacity = 100});
    Feed feed(place, stream, indexed_tokens, indexed_total);
    feed.run(session, 7);
    TokenStream dense = stream;
    dense.shape.indexer.reset();
    Session all(dense.context(indexed_tokens), {.dense_layers = 3, .capacity = 100});
    Feed dense_feed(place, dense, indexed_tokens, indexed_total);
    dense_feed.run(all, 7);
    EXPECT_LE(reference::distance(feed.outs(), dense_feed.outs()), 1e-6);
    EXPECT_GT(session.stats().rows_retrieved, 0);
    EXPECT_EQ(session.stats().retrieving_steps, session.stats().steps);
  }
}

TEST(Indexer, CountsTheRowsOfItsChoice) {
  const Place place("cpu");
  const TokenStream stream(indexed_stack({.dim = 32, .heads = 2, .top = 20}), indexed_total);
  Session session(stream.context(indexed_tokens), {.capacity = 100});
  Feed feed(place, stream, indexed_tokens, indexed_total);
  feed.run(session, indexed_tokens + 10, 1);
  EXPECT_EQ(session.stats().rows_retrieved, 10 * 3 * 4 * 20);
  EXPECT_EQ(session.stats().rows_per_retrieving_head(4), 20);
  EXPECT_GT(session.step_times()[0].search, 0);
  EXPECT_GT(session.step_times()[0].attend, 0);
}

TEST(Indexer, LayersWithoutOneSearchAsUsual) {
  const Place place("cpu");
  const TokenStream stream(indexed_stack({.dim = 32, .heads = 3, .top = 20}, {-1, 1, 1}),
                           indexed_total);
  const auto context = stream.context(indexed_tokens)->with_index("codes:k=16,v=8");
  EXPECT_EQ(context->bytes_read_to_search("codes:k=16,v=8", 1), 0);
  EXPECT_GT(context->bytes_read_to_search("codes:k=16,v=8"), 0);
  EXPECT_NO_THROW(context->index("codes:k=16,v=8", 0, 1));
  Session session(context,
                  {.index = "codes:k=16,v=8", .k = TopK::same(8), .window = 12, .capacity = 100});
  Feed feed(place, stream, indexed_tokens, indexed_total);
  feed.run(session, 2);
  const TokenStream plain(AttentionShape{.layers = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 40},
                          indexed_total);
  ASSERT_EQ(plain.k[0], stream.k[0]);
  Session alone(plain.context(indexed_tokens)->with_index("codes:k=16,v=8"),
                {.index = "codes:k=16,v=8", .k = TopK::same(8), .window = 12, .capacity = 100});
  Feed of_plain(place, plain, indexed_tokens, indexed_total);
  of_plain.run(alone, 2);
  EXPECT_LE(reference::distance({feed.outs()[0]}, of_plain.outs()), 1e-3);
}

TEST(Indexer, TurnsAttendTheChoice) {
  const Place place("cpu");
  const std::int64_t total = 700;
  for (const std::vector<std::int64_t>& layers :
       {std::vector<std::int64_t>{}, std::vector<std::int64_t>{-1, 1, 1}}) {
    const TokenStream stream(
        indexed_stack({.dim = 16, .heads = 2, .tokens_per_key = 4, .top = 9}, layers), total);
    RetrievalOptions options{.k = TopK::same(8), .window = 700, .capacity = 600};
    options.turns = PrefillAttention{.mode = Prefill::dense};
    Session session(stream.context(150), options);
    Feed feed(place, stream, 150, total);
    feed.run(session, 250, 33);
    feed.run(session, 250 + 300, 300);  // a turn
    // A turn in its first layers, and steps of other lengths in the layer that shares.
    const std::int64_t first = 250 + 300;
    for (std::int64_t l = 0; l < 3; ++l) {
      const std::int64_t step = l < 2 ? 150 : 50;
      for (std::int64_t t = first; t < total; t += step) feed.attend(session, l, t, step);
    }
    std::vector<std::int64_t> positions;
    for (std::int64_t p = 150; p < total; p += 13) positions.push_back(p);
    EXPECT_LE(feed.worst(options, positions), 1);
  }
}

TEST(Indexer, MemoryIsBudgeted) {
  const AttentionShape shape = indexed_stack({.dim = 64, .heads = 2}, {0, 0, 2});
  const std::int64_t rows = 3 * 2 * shape.row_bytes({});
  const std::int64_t keys = 2 * std::int64_t{64} * 4;
  EXPECT_EQ(shape.bytes_per_token({}), rows + keys);
  EXPECT_EQ(shape.context_bytes({}, 10), 10 * (rows + keys));
  EXPECT_NO_THROW(ContextBuilder(shape, {.capacity = 10, .memory_budget = 10 * (rows + keys)}));
  EXPECT_THROW(ContextBuilder(shape, {.capacity = 10, .memory_budget = 10 * (rows + keys) - 1}),
               OutOfMemory);
  AttentionShape groups = shape;
  groups.indexer->tokens_per_key = 4;
  EXPECT_EQ(groups.context_bytes({}, 11), 11 * rows + 2 * keys);
  EXPECT_EQ(groups.bytes_per_token({}), rows + keys / 4);
}

TEST(Indexer, TokensComeByAttendAlone) {
  const AttentionShape shape = indexed_stack({.dim = 16});
  ContextBuilder builder(shape, {.capacity = 10});
  const std::vector<float> row(80, 1.0F);
  const TensorView view = TensorView::tokens_first(row.data(), DType::f32, 1, 2, 40);
  EXPECT_THROW(builder.append(0, view, view), InvalidArgument);
  EXPECT_EQ(builder.tokens(0), 0);
}

TEST(Indexer, OtherIndexersAreOtherShapes) {
  const TokenStream stream(indexed_stack({.dim = 16, .heads = 2, .top = 9}), 40);
  const auto context = stream.context(40);
  AttentionShape other = stream.shape;
  other.indexer->dim = 8;
  ContextBuilder builder(other, {.capacity = 40});
  EXPECT_THROW(builder.resume(*context), InvalidArgument);
  other = stream.shape;
  other.indexer->top = 8;  // of what a step chooses nothing is stored
  ContextBuilder chooses_fewer(other, {.capacity = 40});
  chooses_fewer.resume(*context);
  EXPECT_EQ(chooses_fewer.tokens(0), 40);
  other = stream.shape;
  other.indexer_layer = {0, 0, 2};
  ContextBuilder shares(other, {.capacity = 40});
  EXPECT_THROW(shares.resume(*context), InvalidArgument);
}

TEST(Indexer, InvalidShapesAreRefused) {
  const auto refused = [](const auto& change) {
    AttentionShape shape = indexed_stack({.dim = 16, .heads = 4, .top = 9});
    change(shape);
    EXPECT_THROW(shape.check(), InvalidArgument);
  };
  EXPECT_NO_THROW(indexed_stack({.dim = 16, .heads = 4, .top = 9}).check());
  refused([](AttentionShape& s) { s.indexer->dim = 0; });
  refused([](AttentionShape& s) { s.indexer->heads = 0; });
  refused([](AttentionShape& s) { s.indexer->tokens_per_key = 0; });
  refused([](AttentionShape& s) { s.indexer->block = (1 << 20) + 1; });
  refused([](AttentionShape& s) { s.indexer->top = 0; });
  refused([](AttentionShape& s) { s.indexer->local_blocks = 10; });
  refused([](AttentionShape& s) { s.indexer->local_blocks = -1; });
  refused([](AttentionShape& s) { s.indexer->choices = 4; });
  refused([](AttentionShape& s) { s.indexer->choices = 2, s.indexer->heads = 3; });
  refused([](AttentionShape& s) { s.indexer->dtype = DType::f16; });
  refused([](AttentionShape& s) { s.indexer_layer = {0, 1}; });
  refused([](AttentionShape& s) { s.indexer_layer = {1, 1, 2}; });
  refused([](AttentionShape& s) { s.indexer_layer = {-1, 0, 2}; });
  refused([](AttentionShape& s) { s.indexer_layer = {-2, 1, 2}; });
  refused([](AttentionShape& s) { s.indexer_layer = {0, 0, 1}; });
  refused([](AttentionShape& s) { s.indexer.reset(), s.indexer_layer = {0, 1, 2}; });
  refused([](AttentionShape& s) { s.sliding_window = {0, 5, 0}; });
  refused([](AttentionShape& s) { s.state_size = {0, 5, 0}; });
  refused([](AttentionShape& s) { s.chunk_len = 128; });
  AttentionShape mixed = indexed_stack({.dim = 16, .heads = 4, .top = 9}, {0, -1, 0});
  mixed.sliding_window = {0, 5, 0};
  EXPECT_NO_THROW(mixed.check());
}

}  // namespace
}  // namespace topkv
