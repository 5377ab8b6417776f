// Turns: steps of many tokens, which a session reads as a prefill reads text, against float64 and
// beside prefills.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "src/context/prefill_visibility.h"
#include "tests/support/chosen_attention.h"
#include "tests/support/token_stream.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using ::test::ChoiceRules;
using ::test::expect_chosen;
using ::test::give_tokens;
using ::test::sparse;
using ::test::SparseOuts;
using ::test::TokenStream;

const ChoiceRules usual{.window = 70, .sinks = 5, .most = 128};

AttentionShape stack(std::int64_t q_heads = 2, std::int64_t kv_heads = 2) {
  AttentionShape shape;
  shape.layers = 2;
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = 16;
  return shape;
}

RetrievalOptions reading(const ChoiceRules& rules) {
  return {.k = TopK::same(8), .window = 16, .turns = sparse(rules), .capacity = 2000};
}

/// Shares of some layers, all numbers of them.
std::vector<double> numbers(const std::vector<PrefillShare>& shares) {
  std::vector<double> all;
  for (const PrefillShare& one : shares) {
    for (const double x : {static_cast<double>(one.queries), one.mass, one.keys, one.dense_keys})
      all.push_back(x);
  }
  return all;
}

struct TurnCase {
  std::string name;
  AttentionShape shape = stack();
  ChoiceRules rules = usual;
  std::int64_t context = 389;
  std::int64_t tokens = 611;
  std::int64_t step = 611;
};

void PrintTo(const TurnCase& c, std::ostream* out) { *out << c.name; }

TurnCase changed(TurnCase c, const std::function<void(TurnCase&)>& change) {
  change(c);
  return c;
}

class Turns : public testing::TestWithParam<TurnCase> {};

TEST_P(Turns, AttendWhatFloat64Chooses) {
  const TurnCase& c = GetParam();
  const TokenStream stream(c.shape, c.context + c.tokens);
  Session session(stream.context(c.context), reading(c.rules));
  SparseOuts outs(stream);
  give_tokens(session, stream, c.context, stream.total, c.step, outs);
  EXPECT_EQ(session.tokens(), stream.total);
  const std::vector<PrefillShare> wanted =
      expect_chosen(stream, c.rules, c.context, stream.total, c.step, outs);
  const std::vector<PrefillShare> shares = session.turn_shares();
  for (std::size_t layer = 0; layer < shares.size(); ++layer) {
    EXPECT_EQ(shares[layer].queries, wanted[layer].queries);
    EXPECT_EQ(shares[layer].keys, wanted[layer].keys);
    EXPECT_EQ(shares[layer].dense_keys, wanted[layer].dense_keys);
    EXPECT_NEAR(shares[layer].mass / wanted[layer].mass, 1, 1e-4);
  }
  EXPECT_EQ(session.stats().steps, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Turns,
    testing::Values(TurnCase{"usual"}, TurnCase{"groups", stack(6, 2)},
                    changed({"at_a_border_of_blocks"}, [](TurnCase& c) { c.context = 384; }),
                    changed({"a_short_context"}, [](TurnCase& c) { c.context = 1; }),
                    changed({"no_context"}, [](TurnCase& c) { c.context = 0; }),
                    changed({"two_steps"},
                            [](TurnCase& c) {
                              c.context = 300;
                              c.tokens = 1124;
                              c.step = 612;
                              c.shape.layers = 1;
                            }),
                    changed({"mass"},
                            [](TurnCase& c) {
                              c.rules = {
                                  .window = 64, .sinks = 64, .most = 512, .least = 64, .mass = 0.8};
                            }),
                    changed({"capped"}, [](TurnCase& c) { c.shape.softcap = 3; }),
                    changed({"dual_chunks"}, [](TurnCase& c) { c.shape.chunk_len = 256; }),
                    changed({"shared_rows"},
                            [](TurnCase& c) {
                              c.shape.row_layer = {0, 0};
                            }),
                    changed({"keys_are_values"},
                            [](TurnCase& c) {
                              c.shape.keys_are_values = true;
                              c.shape.kv_heads = 1;
                              c.shape.head_dim = 32;
                            })),
    [](const auto& info) { return info.param.name; });

class TurnsAndPrefills : public testing::TestWithParam<std::string> {};

// Positions decide what is a block, and not where the context ends.
TEST_P(TurnsAndPrefills, OfOneTextAreTheSame) {
  const KvDType dtype = KvDType::parse(GetParam());
  AttentionShape shape = stack();
  shape.head_dim = 32;
  const TokenStream stream(shape, 1900);
  for (const std::int64_t border : {640, 650, 77}) {
    const std::int64_t middle = border + 512 + (1024 - border) % 128;  // where a step ends
    const ContextOptions options{
        .capacity = stream.total, .dtype = dtype, .attention = sparse(usual)};
    ContextBuilder whole(shape, options);
    SparseOuts wanted(stream), outs(stream);
    give_tokens(whole, stream, 0, border, border, wanted);
    give_tokens(whole, stream, border, middle, middle - border, wanted);
    give_tokens(whole, stream, middle, stream.total, 128, wanted);
    ContextBuilder before(shape, options);
    give_tokens(before, stream, 0, border, border, outs);
    Session session(before.freeze(), reading(usual));
    give_tokens(session, stream, border, middle, middle - border, outs);
    give_tokens(session, stream, middle, stream.total, stream.total - middle, outs);
    EXPECT_EQ(outs.out, wanted.out) << border;
    EXPECT_EQ(outs.lse, wanted.lse) << border;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, TurnsAndPrefills, testing::Values("bf16", "f32", "q8", "q4"));

/// The largest error of tokens [begin, end) that attend all that is visible, in float64.
double worst_of(const TokenStream& stream, std::int64_t layer, std::int64_t begin, std::int64_t end,
                const SparseOuts& outs,
                const std::function<bool(std::int64_t p, std::int64_t row)>& visible) {
  double worst = 0;
  const auto l = static_cast<std::size_t>(layer);
  for (std::int64_t p = begin; p < end; p += 7) {
    for (std::int64_t head = 0; head < stream.shape.q_heads; ++head) {
      const std::int64_t at = p * stream.shape.q_heads + head;
      worst = std::max(
          worst, stream.error(layer, p, head, false,
                              &outs.out[l][static_cast<std::size_t>(at * stream.shape.head_dim)],
                              &outs.lse[l][static_cast<std::size_t>(at)],
                              [&](std::int64_t row) { return visible(p, row); }));
    }
  }
  return worst;
}

TEST(DenseTurns, AreDenseAttention) {
  const TokenStream stream(stack(4, 2), 1000);
  RetrievalOptions dense = reading(usual);
  dense.turns = PrefillAttention{};
  RetrievalOptions large = reading({.window = 70, .sinks = 5, .most = 960});
  for (const RetrievalOptions& options : {dense, large}) {
    Session session(stream.context(389), options);
    SparseOuts outs(stream);
    give_tokens(session, stream, 389, stream.total, 611, outs);
    for (std::int64_t layer = 0; layer < stream.shape.layers; ++layer) {
      EXPECT_LE(worst_of(stream, layer, 389, stream.total, outs,
                         [](std::int64_t, std::int64_t) { return true; }),
                1);
    }
    const PrefillShare share = session.turn_shares()[0];
    EXPECT_EQ(share.queries, options.turns->mode == Prefill::dense ? 0 : 611 * 2);
    EXPECT_EQ(share.keys, share.dense_keys);
  }
}

TEST(DenseTurns, AreThoseOfDenseLayersAndOfSlidingOnes) {
  AttentionShape shape = stack();
  shape.layers = 3;
  shape.sliding_window = {0, 40, 0};
  const TokenStream stream(shape, 1000);
  RetrievalOptions options = reading(usual);
  options.dense_layers = 1;
  // A builder leaves of a sliding layer's rows those that are attended.
  ContextBuilder builder(shape, {.capacity = 389});
  SparseOuts outs(stream);
  give_tokens(builder, stream, 0, 389, 100, outs);
  Session session(builder.freeze(), options);
  give_tokens(session, stream, 389, stream.total, 611, outs);
  const auto all = [](std::int64_t, std::int64_t) { return true; };
  EXPECT_LE(worst_of(stream, 0, 389, stream.total, outs, all), 1);
  EXPECT_LE(worst_of(stream, 1, 389, stream.total, outs,
                     [](std::int64_t p, std::int64_t row) { return row > p - 40; }),
            1);
  EXPECT_GT(worst_of(stream, 2, 389, stream.total, outs, all), 1) << "nothing was chosen";
  EXPECT_EQ(session.turn_shares()[0].queries, 0);
  EXPECT_EQ(session.turn_shares()[1].queries, 0);
  EXPECT_EQ(session.turn_shares()[2].queries, 611 * 2);
}

/// A session that has read a turn of 611 tokens and nothing else.
struct TurnRead {
  explicit TurnRead(const RetrievalOptions& with = reading(usual))
      : options(with), session(stream.context(389), options), outs(stream) {
    give_tokens(session, stream, 389, 1000, 611, outs);
  }
  /// Gives tokens [1000, 1700) in a turn and single steps.
  SparseOuts go_on(Session& with) const {
    SparseOuts more(stream);
    give_tokens(with, stream, 1000, 1010, 1, more);
    give_tokens(with, stream, 1010, 1600, 590, more);
    give_tokens(with, stream, 1600, 1610, 5, more);
    return more;
  }

  TokenStream stream{stack(), 1700};
  RetrievalOptions options;
  Session session;
  SparseOuts outs;
};

// Rows are rows, whichever way they were read.
TEST(TurnsInSessions, AreFollowedByStepsAsAllRowsAre) {
  const RetrievalOptions options = [] {
    RetrievalOptions all = reading(usual);
    all.k = TopK::same(2000);
    return all;
  }();
  TurnRead read(options);
  const SparseOuts more = read.go_on(read.session);
  const auto all = [](std::int64_t, std::int64_t) { return true; };
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    EXPECT_LE(worst_of(read.stream, layer, 1000, 1010, more, all), 1);
    EXPECT_LE(worst_of(read.stream, layer, 1600, 1610, more, all), 1);
  }
  EXPECT_EQ(read.session.stats().steps, 2 * 20);
}

TEST(TurnsInSessions, GoOnAfterTokensAreTakenBack) {
  TurnRead read;
  const SparseOuts wanted = read.go_on(read.session);
  const TokenStream other(read.stream.shape, 1700, 77);
  TurnRead again;
  SparseOuts unused(other);
  again.session.truncate(100);
  give_tokens(again.session, other, 489, 1001, 512, unused);  // over rows that are no more
  again.session.truncate(100);
  give_tokens(again.session, read.stream, 489, 1000, 1, unused);
  Session fresh(read.stream.context(389), read.options);
  give_tokens(fresh, read.stream, 389, 489, 1, unused);
  give_tokens(fresh, read.stream, 489, 1000, 1, unused);
  const SparseOuts got = again.go_on(again.session);
  const SparseOuts of_fresh = again.go_on(fresh);
  const auto from = static_cast<std::ptrdiff_t>(1000 * read.stream.q_width());
  const auto until = static_cast<std::ptrdiff_t>(1610 * read.stream.q_width());
  for (std::size_t layer = 0; layer < 2; ++layer) {
    EXPECT_TRUE(std::equal(got.out[layer].begin() + from, got.out[layer].begin() + until,
                           of_fresh.out[layer].begin() + from));
    EXPECT_TRUE(std::equal(got.out[layer].begin() + from, got.out[layer].begin() + until,
                           wanted.out[layer].begin() + from));
  }
}

TEST(TurnsInSessions, AreInForksAndInRowsThatWereSaved) {
  TurnRead read;
  Session fork = read.session.fork();
  EXPECT_EQ(numbers(fork.turn_shares()), numbers(read.session.turn_shares()));
  Session resumed(read.stream.context(389), read.options);
  resumed.resume(*read.session.own_rows());
  const auto finite = [](std::vector<std::vector<float>> values) {
    for (auto& of : values) std::erase_if(of, [](float x) { return std::isnan(x); });
    return values;
  };
  const SparseOuts wanted = read.go_on(read.session);
  EXPECT_EQ(finite(read.go_on(fork).out), finite(wanted.out));
  EXPECT_EQ(finite(read.go_on(resumed).out), finite(wanted.out));
  EXPECT_EQ(finite(wanted.out)[0].size(), static_cast<std::size_t>(610 * read.stream.q_width()));
}

TEST(TurnsInSessions, OfFewerTokensAreStepsLikeOthers) {
  const TokenStream stream(stack(), 1000);
  SparseOuts with(stream), without(stream);
  RetrievalOptions options = reading(usual);
  Session reads(stream.context(489), options);
  give_tokens(reads, stream, 489, 1000, least_turn_tokens - 1, with);
  EXPECT_EQ(reads.stats().steps, 2 * 511);
  EXPECT_EQ(reads.turn_shares()[0].queries, 0);
  options.turns.reset();
  Session other(stream.context(489), options);
  give_tokens(other, stream, 489, 1000, least_turn_tokens - 1, without);
  const auto from = static_cast<std::ptrdiff_t>(489 * stream.q_width());
  for (std::size_t layer = 0; layer < 2; ++layer) {
    EXPECT_TRUE(std::equal(with.out[layer].begin() + from, with.out[layer].end(),
                           without.out[layer].begin() + from));
  }
}

TEST(TurnsInSessions, StepTogetherAsEachByItself) {
  const TokenStream stream(stack(), 901);
  const auto context = stream.context(389);
  RetrievalOptions plain = reading(usual);
  plain.turns.reset();
  std::vector<Session> sessions;
  sessions.emplace_back(context, reading(usual));
  sessions.emplace_back(context, plain);
  sessions.emplace_back(context, reading(usual));
  std::vector<Session*> those;
  for (Session& session : sessions) those.push_back(&session);
  std::vector<SparseOuts> wanted;
  for (const RetrievalOptions& options : {reading(usual), plain}) {
    Session alone(context, options);
    give_tokens(alone, stream, 389, 901, 512, wanted.emplace_back(stream));
  }
  const auto of_all = [&](const std::vector<float>& x, std::int64_t width) {
    std::vector<float> all;
    for (std::size_t i = 0; i < those.size(); ++i)
      all.insert(all.end(), x.begin() + static_cast<std::ptrdiff_t>(389 * width), x.end());
    return all;
  };
  for (std::int64_t l = 0; l < 2; ++l) {
    const auto layer = static_cast<std::size_t>(l);
    const std::vector<float> q = of_all(stream.q[layer], stream.q_width());
    std::vector<float> k = of_all(stream.k[layer], stream.kv_width());
    const std::vector<float> v = of_all(stream.v[layer], stream.kv_width());
    std::vector<float> out(q.size());
    const AttentionStep step{
        .layer = l, .tokens = 512, .q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()};
    // The last one fails: all are as they were, and may get their step again.
    const float last = std::exchange(k.back(), std::numeric_limits<float>::quiet_NaN());
    EXPECT_THROW(Session::attend_together(those, step), InvalidArgument);
    for (const Session& session : sessions) {
      EXPECT_EQ(session.own_tokens(), l == 0 ? 0 : 512);
      EXPECT_EQ(session.turn_shares()[layer].queries, 0);
    }
    k.back() = last;
    Session::attend_together(those, step);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(sessions[i].turn_shares()[layer].queries, i == 1 ? 0 : 512 * stream.shape.kv_heads);
    }
    const std::size_t each = out.size() / 3;
    for (std::size_t i = 0; i < 3; ++i) {
      const SparseOuts& want = wanted[i == 1 ? 1 : 0];
      EXPECT_TRUE(
          std::equal(out.begin() + static_cast<std::ptrdiff_t>(i * each),
                     out.begin() + static_cast<std::ptrdiff_t>((i + 1) * each),
                     want.out[layer].begin() + static_cast<std::ptrdiff_t>(389 * stream.q_width())))
          << "session " << i << ", layer " << l;
    }
  }
}

TEST(TurnsInSessions, AreSparseInAutoFromWhereTheTextIsLong) {
  AttentionShape shape = stack(1, 1);
  shape.layers = 1;
  const TokenStream stream(shape, longest_dense_on_host + 300);
  const std::int64_t context = longest_dense_on_host - 300;
  RetrievalOptions options = reading(usual);
  options.turns->mode = Prefill::automatic;
  Session session(stream.context(context), options);
  SparseOuts outs(stream);
  give_tokens(session, stream, context, longest_dense_on_host, 300, outs);
  EXPECT_EQ(session.turn_shares()[0].queries, 0);
  give_tokens(session, stream, longest_dense_on_host, stream.total, 300, outs);
  EXPECT_EQ(session.turn_shares()[0].queries, 300);
  EXPECT_LT(session.turn_shares()[0].key_share(), 0.1);
}

TEST(TurnsInSessions, OfMoreThanItsRoomAreRefused) {
  const TokenStream stream(stack(), 1000);
  RetrievalOptions options = reading(usual);
  options.capacity = 600;
  Session session(stream.context(389), options);
  SparseOuts outs(stream);
  EXPECT_THROW(give_tokens(session, stream, 389, 1000, 611, outs), InvalidArgument);
  EXPECT_EQ(session.own_tokens(), 0);
  give_tokens(session, stream, 389, 980, 591, outs);
  expect_chosen(stream, usual, 389, 980, 591, outs);
}

TEST(TurnsInSessions, RefuseModesThatNoTurnHas) {
  const TokenStream stream(stack(), 128);
  const auto context = stream.context(128);
  const auto message = [&](const PrefillAttention& attention) -> std::string {
    try {
      Session(context, {.turns = attention});
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "(not refused)";
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_PRED2(has, message({.mode = Prefill::window}),
               "in the mode 'window'; expected 'auto', 'dense' or 'sparse'");
  EXPECT_PRED2(has, message({.mode = Prefill::automatic, .keys = 0}), "up to 0 keys");
  EXPECT_PRED2(has, message({.mode = Prefill::sparse, .mass = 2}), "a mass of 2");
}

}  // namespace
}  // namespace topkv
