// Turns: steps of many tokens, which a session reads as a prefill reads text, against float64 and
// beside prefills. They run on the host, and on a CUDA device, where heads are wider.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "src/context/prefill_visibility.h"
#include "tests/support/chosen_attention.h"
#include "tests/support/session_feed.h"
#include "tests/support/token_stream.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using ::test::ChoiceRules;
using ::test::expect_chosen;
using ::test::give_tokens;
using ::test::Place;
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

/// A stack for a device. A CUDA device does not take heads of 16.
AttentionShape stack_on(const Place& place, std::int64_t q_heads = 2, std::int64_t kv_heads = 2) {
  AttentionShape shape = stack(q_heads, kv_heads);
  if (place.is_cuda()) shape.head_dim = 64;
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
  std::string device = {};
  AttentionShape shape = stack();
  ChoiceRules rules = usual;
  std::int64_t context = 389;
  std::int64_t tokens = 611;
  std::int64_t step = 611;
};

void PrintTo(const TurnCase& c, std::ostream* out) { *out << c.name << " on " << c.device; }

TurnCase changed(TurnCase c, const std::function<void(TurnCase&)>& change) {
  change(c);
  return c;
}

class Turns : public testing::TestWithParam<TurnCase> {};

TEST_P(Turns, AttendWhatFloat64Chooses) {
  TurnCase c = GetParam();
  TOPKV_NEEDS_DEVICE(c.device);
  const Place place(c.device);
  if (place.is_cuda()) c.shape.head_dim = 64;
  const TokenStream stream(c.shape, c.context + c.tokens);
  Session session(stream.context(c.context), reading(c.rules), place.device());
  SparseOuts outs(stream);
  give_tokens(session, stream, c.context, stream.total, c.step, outs, &place);
  EXPECT_EQ(session.tokens(), stream.total);
  const std::vector<PrefillShare> wanted =
      expect_chosen(stream, c.rules, c.context, stream.total, c.step, outs, place.is_cuda());
  const std::vector<PrefillShare> shares = session.turn_shares();
  for (std::size_t layer = 0; layer < shares.size(); ++layer) {
    EXPECT_EQ(shares[layer].queries, wanted[layer].queries);
    if (!place.is_cuda() || c.rules.mass == 1) {
      EXPECT_EQ(shares[layer].keys, wanted[layer].keys);
    }
    EXPECT_EQ(shares[layer].dense_keys, wanted[layer].dense_keys);
    EXPECT_NEAR(shares[layer].mass / wanted[layer].mass, 1, place.is_cuda() ? 5e-3 : 1e-4);
  }
  EXPECT_EQ(session.stats().steps, 0);
}

std::vector<TurnCase> turn_cases() {
  std::vector<TurnCase> cases;
  for (const std::string& device : ::test::devices) {
    for (TurnCase c : std::vector<TurnCase>{
             TurnCase{"usual"}, changed({"groups"}, [](TurnCase& c) { c.shape = stack(6, 2); }),
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
                       c.rules = {.window = 64, .sinks = 64, .most = 512, .least = 64, .mass = 0.8};
                     }),
             changed({"capped"}, [](TurnCase& c) { c.shape.softcap = 3; }),
             changed({"dual_chunks"}, [](TurnCase& c) { c.shape.chunk_len = 256; }),
             changed({"shared_rows"},
                     [](TurnCase& c) {
                       c.shape.row_layer = {0, 0};
                     }),
             changed({"keys_are_values"}, [](TurnCase& c) {
               c.shape.keys_are_values = true;
               c.shape.kv_heads = 1;
               c.shape.head_dim = 32;
             })}) {
      c.device = device;
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Turns, testing::ValuesIn(turn_cases()), [](const auto& info) {
  return info.param.name + "_on_" + info.param.device;
});

class TurnsAndPrefills : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

// Positions decide what is a block, and not where the context ends.
TEST_P(TurnsAndPrefills, OfOneTextAreTheSame) {
  const auto& [device, rows] = GetParam();
  TOPKV_NEEDS_DEVICE(device);
  const Place place(device);
  const KvDType dtype = KvDType::parse(rows);
  if (!place.compute().takes_rows(dtype)) GTEST_SKIP() << device << " does not take " << rows;
  AttentionShape shape = stack();
  shape.head_dim = place.is_cuda() ? 64 : 32;
  const TokenStream stream(shape, 1900);
  for (const std::int64_t border : {640, 650, 77}) {
    const std::int64_t middle = border + 512 + (1024 - border) % 128;  // where a step ends
    const ContextOptions options{
        .capacity = stream.total, .dtype = dtype, .attention = sparse(usual)};
    ContextBuilder whole(shape, options, place.device());
    SparseOuts wanted(stream), outs(stream);
    give_tokens(whole, stream, 0, border, border, wanted, &place);
    give_tokens(whole, stream, border, middle, middle - border, wanted, &place);
    give_tokens(whole, stream, middle, stream.total, 128, wanted, &place);
    ContextBuilder before(shape, options, place.device());
    give_tokens(before, stream, 0, border, border, outs, &place);
    Session session(before.freeze(), reading(usual), place.device());
    give_tokens(session, stream, border, middle, middle - border, outs, &place);
    give_tokens(session, stream, middle, stream.total, stream.total - middle, outs, &place);
    EXPECT_EQ(outs.out, wanted.out) << border;
    EXPECT_EQ(outs.lse, wanted.lse) << border;
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, TurnsAndPrefills,
                         testing::Combine(testing::ValuesIn(::test::devices),
                                          testing::Values("bf16", "f32", "q8", "q4", "q8/q4")));

/// The largest error of tokens [begin, end) that attend all that is visible, in float64.
double worst_of(const Place& place, const TokenStream& stream, std::int64_t layer,
                std::int64_t begin, std::int64_t end, const SparseOuts& outs,
                const std::function<bool(std::int64_t p, std::int64_t row)>& visible) {
  double worst = 0;
  const auto l = static_cast<std::size_t>(layer);
  for (std::int64_t p = begin; p < end; p += 7) {
    for (std::int64_t head = 0; head < stream.shape.q_heads; ++head) {
      const std::int64_t at = p * stream.shape.q_heads + head;
      worst = std::max(
          worst, stream.error(layer, p, head, place.is_cuda(),
                              &outs.out[l][static_cast<std::size_t>(at * stream.shape.head_dim)],
                              &outs.lse[l][static_cast<std::size_t>(at)],
                              [&](std::int64_t row) { return visible(p, row); }));
    }
  }
  return worst;
}

class DenseTurns : public testing::TestWithParam<std::string> {};
class TurnsInSessions : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Everywhere, DenseTurns, testing::ValuesIn(::test::devices));
INSTANTIATE_TEST_SUITE_P(Everywhere, TurnsInSessions, testing::ValuesIn(::test::devices));

TEST_P(DenseTurns, AreDenseAttention) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(stack_on(place, 4, 2), 1000);
  RetrievalOptions dense = reading(usual);
  dense.turns = PrefillAttention{};
  RetrievalOptions large = reading({.window = 70, .sinks = 5, .most = 960});
  for (const RetrievalOptions& options : {dense, large}) {
    Session session(stream.context(389), options, place.device());
    SparseOuts outs(stream);
    give_tokens(session, stream, 389, stream.total, 611, outs, &place);
    for (std::int64_t layer = 0; layer < stream.shape.layers; ++layer) {
      EXPECT_LE(worst_of(place, stream, layer, 389, stream.total, outs,
                         [](std::int64_t, std::int64_t) { return true; }),
                1);
    }
    const PrefillShare share = session.turn_shares()[0];
    EXPECT_EQ(share.queries, options.turns->mode == Prefill::dense ? 0 : 611 * 2);
    EXPECT_EQ(share.keys, share.dense_keys);
  }
}

TEST_P(DenseTurns, AreThoseOfDenseLayersAndOfSlidingOnes) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  AttentionShape shape = stack_on(place);
  shape.layers = 3;
  shape.sliding_window = {0, 40, 0};
  const TokenStream stream(shape, 1000);
  RetrievalOptions options = reading(usual);
  options.dense_layers = 1;
  // A builder leaves of a sliding layer's rows those that are attended.
  ContextBuilder builder(shape, {.capacity = 389});
  SparseOuts outs(stream);
  give_tokens(builder, stream, 0, 389, 100, outs);
  Session session(builder.freeze(), options, place.device());
  give_tokens(session, stream, 389, stream.total, 611, outs, &place);
  const auto all = [](std::int64_t, std::int64_t) { return true; };
  EXPECT_LE(worst_of(place, stream, 0, 389, stream.total, outs, all), 1);
  EXPECT_LE(worst_of(place, stream, 1, 389, stream.total, outs,
                     [](std::int64_t p, std::int64_t row) { return row > p - 40; }),
            1);
  EXPECT_GT(worst_of(place, stream, 2, 389, stream.total, outs, all), 1) << "nothing was chosen";
  EXPECT_EQ(session.turn_shares()[0].queries, 0);
  EXPECT_EQ(session.turn_shares()[1].queries, 0);
  EXPECT_EQ(session.turn_shares()[2].queries, 611 * 2);
}

/// A session that has read a turn of 611 tokens and nothing else.
struct TurnRead {
  explicit TurnRead(const Place& where, const RetrievalOptions& with = reading(usual))
      : place(where),
        stream(stack_on(where), 1700),
        options(with),
        session(stream.context(389), options, where.device()),
        outs(stream) {
    give_tokens(session, stream, 389, 1000, 611, outs, &place);
  }
  /// Gives tokens [1000, 1700) in a turn and single steps.
  SparseOuts go_on(Session& with) const {
    SparseOuts more(stream);
    give_tokens(with, stream, 1000, 1010, 1, more, &place);
    give_tokens(with, stream, 1010, 1600, 590, more, &place);
    give_tokens(with, stream, 1600, 1610, 5, more, &place);
    return more;
  }

  const Place& place;
  TokenStream stream;
  RetrievalOptions options;
  Session session;
  SparseOuts outs;
};

// Rows are rows, whichever way they were read.
TEST_P(TurnsInSessions, AreFollowedByStepsAsAllRowsAre) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const RetrievalOptions options = [] {
    RetrievalOptions all = reading(usual);
    all.k = TopK::same(2000);
    return all;
  }();
  TurnRead read(place, options);
  const SparseOuts more = read.go_on(read.session);
  const auto all = [](std::int64_t, std::int64_t) { return true; };
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    EXPECT_LE(worst_of(read.place, read.stream, layer, 1000, 1010, more, all), 1);
    EXPECT_LE(worst_of(read.place, read.stream, layer, 1600, 1610, more, all), 1);
  }
  EXPECT_EQ(read.session.stats().steps, 2 * 20);
}

TEST_P(TurnsInSessions, GoOnAfterTokensAreTakenBack) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  TurnRead read(place);
  const SparseOuts wanted = read.go_on(read.session);
  const TokenStream other(read.stream.shape, 1700, 77);
  TurnRead again(place);
  SparseOuts unused(other);
  again.session.truncate(100);
  give_tokens(again.session, other, 489, 1001, 512, unused, &place);  // over rows that are no more
  again.session.truncate(100);
  give_tokens(again.session, read.stream, 489, 1000, 1, unused, &place);
  Session fresh(read.stream.context(389), read.options, place.device());
  give_tokens(fresh, read.stream, 389, 489, 1, unused, &place);
  give_tokens(fresh, read.stream, 489, 1000, 1, unused, &place);
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

TEST_P(TurnsInSessions, AreInForksAndInRowsThatWereSaved) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  TurnRead read(place);
  Session fork = read.session.fork();
  EXPECT_EQ(numbers(fork.turn_shares()), numbers(read.session.turn_shares()));
  Session resumed(read.stream.context(389), read.options, place.device());
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

TEST_P(TurnsInSessions, OfFewerTokensAreStepsLikeOthers) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(stack_on(place), 1000);
  SparseOuts with(stream), without(stream);
  RetrievalOptions options = reading(usual);
  Session reads(stream.context(489), options, place.device());
  give_tokens(reads, stream, 489, 1000, least_turn_tokens - 1, with, &place);
  EXPECT_EQ(reads.stats().steps, 2 * 511);
  EXPECT_EQ(reads.turn_shares()[0].queries, 0);
  options.turns.reset();
  Session other(stream.context(489), options, place.device());
  give_tokens(other, stream, 489, 1000, least_turn_tokens - 1, without, &place);
  const auto from = static_cast<std::ptrdiff_t>(489 * stream.q_width());
  for (std::size_t layer = 0; layer < 2; ++layer) {
    EXPECT_TRUE(std::equal(with.out[layer].begin() + from, with.out[layer].end(),
                           without.out[layer].begin() + from));
  }
}

TEST_P(TurnsInSessions, StepTogetherAsEachByItself) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(stack_on(place), 901);
  const auto context = stream.context(389);
  RetrievalOptions plain = reading(usual);
  plain.turns.reset();
  std::vector<Session> sessions;
  sessions.emplace_back(context, reading(usual), place.device());
  sessions.emplace_back(context, plain, place.device());
  sessions.emplace_back(context, reading(usual), place.device());
  std::vector<Session*> those;
  for (Session& session : sessions) those.push_back(&session);
  std::vector<SparseOuts> wanted;
  for (const RetrievalOptions& options : {reading(usual), plain}) {
    Session alone(context, options, place.device());
    give_tokens(alone, stream, 389, 901, 512, wanted.emplace_back(stream), &place);
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
    const Buffer q_there = place.put(q), v_there = place.put(v);
    const Buffer out_there = place.room(std::ssize(q));
    const auto attend = [&](const std::vector<float>& keys) {
      const Buffer k_there = place.put(keys);
      Session::attend_together(those, {.layer = l,
                                       .tokens = 512,
                                       .q = q_there.floats(),
                                       .k = k_there.floats(),
                                       .v = v_there.floats(),
                                       .out = out_there.floats()});
    };
    // The last one fails: all are as they were, and may get their step again.
    const float last = std::exchange(k.back(), std::numeric_limits<float>::quiet_NaN());
    EXPECT_THROW(attend(k), InvalidArgument);
    for (const Session& session : sessions) {
      EXPECT_EQ(session.own_tokens(), l == 0 ? 0 : 512);
      EXPECT_EQ(session.turn_shares()[layer].queries, 0);
    }
    k.back() = last;
    attend(k);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(sessions[i].turn_shares()[layer].queries, i == 1 ? 0 : 512 * stream.shape.kv_heads);
    }
    const std::vector<float> out = place.get(out_there.floats(), std::ssize(q));
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

TEST_P(TurnsInSessions, AreSparseInAutoFromWhereTheTextIsLong) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  AttentionShape shape = stack_on(place, 1, 1);
  shape.layers = 1;
  const std::int64_t longest = place.is_cuda() ? longest_dense_on_cuda : longest_dense_on_host;
  const TokenStream stream(shape, longest + 300);
  const std::int64_t context = longest - 300;
  RetrievalOptions options = reading(usual);
  options.turns->mode = Prefill::automatic;
  Session session(stream.context(context), options, place.device());
  SparseOuts outs(stream);
  give_tokens(session, stream, context, longest, 300, outs, &place);
  const PrefillShare dense = session.turn_shares()[0];
  const double all = 300.0 * static_cast<double>(context) + 300.0 * 301 / 2;
  EXPECT_EQ(dense.queries, 300);
  EXPECT_EQ(std::pair(dense.mass, dense.keys), std::pair(300.0, all));
  EXPECT_EQ(dense.dense_keys, all);
  give_tokens(session, stream, longest, stream.total, 300, outs, &place);
  const PrefillShare sparse = session.turn_shares()[0];
  EXPECT_EQ(sparse.queries, 600);
  EXPECT_LT((sparse.keys - dense.keys) / (sparse.dense_keys - dense.dense_keys), 0.1);
}

TEST_P(TurnsInSessions, OfMoreThanItsRoomAreRefused) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(stack_on(place), 1000);
  RetrievalOptions options = reading(usual);
  options.capacity = 600;
  Session session(stream.context(389), options, place.device());
  SparseOuts outs(stream);
  EXPECT_THROW(give_tokens(session, stream, 389, 1000, 611, outs, &place), InvalidArgument);
  EXPECT_EQ(session.own_tokens(), 0);
  give_tokens(session, stream, 389, 980, 591, outs, &place);
  expect_chosen(stream, usual, 389, 980, 591, outs, place.is_cuda());
}

// A device's memory for a turn is bounded.
TEST_P(TurnsInSessions, OfManyTokensAreReadInParts) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  TokenStream stream(stack_on(place), 3000);
  RetrievalOptions options = reading(usual);
  options.capacity = 3000;
  Session parts(stream.context(389), options, place.device());
  Session whole(stream.context(389), options, place.device());
  SparseOuts wanted(stream), outs(stream);
  give_tokens(parts, stream, 389, 2432, 2043, wanted, &place);
  give_tokens(parts, stream, 2432, 3000, 568, wanted, &place);
  float& last = stream.v[0].back();
  const float value = std::exchange(last, std::numeric_limits<float>::infinity());
  EXPECT_THROW(give_tokens(whole, stream, 389, 3000, 2611, outs, &place), InvalidArgument);
  EXPECT_EQ(whole.own_tokens(), 0);
  EXPECT_EQ(whole.turn_shares()[0].queries, 0);
  last = value;
  give_tokens(whole, stream, 389, 3000, 2611, outs, &place);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const auto from = static_cast<std::ptrdiff_t>(389 * stream.q_width());
    EXPECT_TRUE(std::equal(outs.out[layer].begin() + from, outs.out[layer].end(),
                           wanted.out[layer].begin() + from));
  }
  const std::vector<double> of_whole = numbers(whole.turn_shares());
  const std::vector<double> of_parts = numbers(parts.turn_shares());
  for (std::size_t i = 0; i < of_whole.size(); ++i)
    EXPECT_NEAR(of_whole[i] / of_parts[i], 1, 1e-6);  // a device sums in any order
}

// Tiles of a device hold rows of both.
TEST_P(DenseTurns, OverLongContextsAreDenseAttention) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(stack_on(place, 4, 2), 6500);
  RetrievalOptions options = reading(usual);
  options.turns = PrefillAttention{};
  Session session(stream.context(5003), options, place.device());
  SparseOuts outs(stream);
  give_tokens(session, stream, 5003, 6000, 500, outs, &place);
  give_tokens(session, stream, 6000, 6500, 500, outs, &place);
  for (std::int64_t layer = 0; layer < stream.shape.layers; ++layer) {
    EXPECT_LE(worst_of(place, stream, layer, 6400, stream.total, outs,
                       [](std::int64_t, std::int64_t) { return true; }),
              1);
  }
}

// Rows as they are stored cross to the device, and those of a turn go on in its window.
TEST(CudaTurns, OverRowsInBlocksAreThoseOfTheHost) {
  TOPKV_NEEDS_GPU();
  const Place host("cpu"), cuda("cuda");
  AttentionShape shape = stack(8, 2);
  shape.head_dim = 128;
  const TokenStream stream(shape, 2000);
  for (const char* dtype : {"bf16", "q8", "q4", "q8/q4"}) {
    for (const Prefill mode : {Prefill::sparse, Prefill::dense}) {
      RetrievalOptions options = reading({.window = 70, .sinks = 5, .most = 256});
      options.turns->mode = mode;
      options.k = TopK::same(2000);
      const auto context = stream.context(900, KvDType::parse(dtype));
      std::vector<SparseOuts> outs;
      std::vector<PrefillShare> shares;
      for (const Place* place : {&host, &cuda}) {
        Session session(context, options, place->device());
        outs.emplace_back(stream);
        give_tokens(session, stream, 900, 1200, 300, outs.back(), place);
        give_tokens(session, stream, 1200, 1210, 1, outs.back(), place);
        give_tokens(session, stream, 1210, 1900, 690, outs.back(), place);
        session.truncate(900);
        give_tokens(session, stream, 1800, 1990, 190, outs.back(), place);
        shares.push_back(session.turn_shares()[1]);
      }
      const auto first = static_cast<std::size_t>(900 * stream.q_width());
      const auto end = static_cast<std::size_t>(1990 * stream.q_width());
      for (std::size_t layer = 0; layer < 2; ++layer) {
        std::size_t far = 0;
        for (std::size_t i = first; i < end; ++i)
          far += !(std::abs(outs[0].out[layer][i] - outs[1].out[layer][i]) < 0.05F);
        // Rounded means may choose another block where shares are near.
        EXPECT_LE(far, mode == Prefill::sparse ? (end - first) / 20 : 0)
            << dtype << ", layer " << layer;
      }
      EXPECT_EQ(shares[0].keys, shares[1].keys) << dtype;
      EXPECT_EQ(shares[0].queries, shares[1].queries) << dtype;
      if (mode == Prefill::sparse) {
        EXPECT_NEAR(shares[1].mass / shares[0].mass, 1, 0.01) << dtype;
      }
    }
  }
}

TEST(CudaTurns, TakeNoMemoryThatIsNotThere) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const std::int64_t begin = longest_dense_on_cuda;
  AttentionShape shape = stack_on(place, 1, 1);
  const TokenStream stream(shape, begin + 600);
  RetrievalOptions options = reading(usual);
  Session strict(stream.context(begin), options, place.device());
  options.turns->mode = Prefill::automatic;
  Session open(stream.context(begin), options, place.device());
  SparseOuts outs(stream);
  const auto sparse_reads = [&](Session& session, std::int64_t first) {
    give_tokens(session, stream, first, first + 300, 300, outs, &place);
    return session.turn_shares()[1].queries;
  };
  const std::int64_t dense =
      place.compute().prefill_attention_bytes(shape, PrefillVisibility(2), {}, 640, stream.total);
  {
    // What is left holds a dense prefill, and not all rows of a layer.
    const DeviceMemory memory = place.device().memory();
    const Buffer taken = place.room(
        (memory.ceiling - memory.used - place.compute().allocation_bytes(dense) - (7 << 20)) / 4);
    EXPECT_THROW(sparse_reads(strict, begin), OutOfMemory);
    EXPECT_EQ(strict.own_tokens(), 0);
    EXPECT_EQ(sparse_reads(open, begin), 0) << "it was not dense";
    EXPECT_LE(place.device().memory().peak, memory.ceiling);
  }
  open.truncate(0);  // gives the memory back
  {
    // What is left does not hold a dense prefill either.
    give_tokens(open, stream, begin, begin + 255, 255, outs, &place);
    open.truncate(0);
    const DeviceMemory memory = place.device().memory();
    const Buffer taken = place.room(
        (memory.ceiling - memory.used - place.compute().allocation_bytes(dense)) / 4 + 1);
    EXPECT_EQ(sparse_reads(open, begin), 0);
    EXPECT_EQ(open.stats().steps, 2 * (255 + 300)) << "it was a turn";
    EXPECT_EQ(open.own_tokens(), 300);
  }
  EXPECT_EQ(sparse_reads(strict, begin), 300);
  EXPECT_EQ(strict.own_tokens(), 300);
  strict.truncate(0);  // gives the memory back
  EXPECT_EQ(sparse_reads(strict, begin), 600);
}

TEST(TurnsOfNoMode, RefuseModesThatNoTurnHas) {
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
