// The tail made of codes, against float64: it is the attention over the rows that codes stand for;
// rows that were taken are in no head's tail; and a session with a tail is nearer to dense
// attention than one without.
#include "index/codes/code_tail.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <vector>

#include "index/codes/codes_index.h"
#include "tests/index/coded_rows.h"
#include "tests/support/reference.h"
#include "tests/support/stream.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using reference::distance;
using test::attend;
using test::Coded;
using test::expected;
using test::no_ceiling;
using test::Stream;
using test::Tail;
using test::TailQueries;

TEST(CodeTail, IsTheAttentionOverTheRowsThatCodesStandFor) {
  for (const std::int64_t dim : {7, 32, 64, 80, 128, 256}) {
    for (const CodesParams params : {CodesParams{16, 8}, CodesParams{8, 4}, CodesParams{32, 16}}) {
      // More rows than one thread takes at a time, once.
      const bool many = dim == 32 && params.key_bytes == 16;
      const Coded coded(many ? 70000 : 3001, dim, params);
      const reference::Rows rows = coded.decoded();
      const TailQueries of(coded);
      for (const float softcap : {0.0F, 3.0F}) {
        Partial out(of.count, dim);
        attend(*coded.tail, {of.q.data(), of.count, dim, of.allowed}, of.spans, of.ceilings,
               of.scale, softcap, out.view());
        for (std::int64_t i = 0; i < of.count; ++i) {
          const float* query = of.q.data() + i * dim;
          SlotWeights weights;
          coded.index->coder().weigh_slots(query, weights);
          // Coefficients are off by up to half a step each, values of slots by 3/2 from their
          // middle, all with the same sign at worst; weights by as much.
          const double rounding =
              of.scale * 3 * static_cast<double>(coded.index->coder().bytes()) * weights.step;
          const double variance =
              softcap > 0 ? 0.0
                          : of.scale * of.scale *
                                static_cast<double>(coded.index->coder().error_variance(query));
          const auto at = static_cast<std::size_t>(i);
          const Tail want = expected(coded, rows, query, of.scale, softcap, variance,
                                     of.ceilings[at], of.allowed[at], of.taken[at]);
          EXPECT_NEAR(out.lse()[at], want.lse, rounding + 2e-3)
              << dim << " k " << params.key_bytes << " query " << i;
          // The rounding of weights to 6 bits: up to one unit of 1 / 62.5 for each of the 16 lanes
          // and each tile, of random sign, beside a sum of weights of at least 1 a tile.
          double size = 0;
          double off = 0;
          for (std::int64_t j = 0; j < dim; ++j) {
            const double w = want.out[static_cast<std::size_t>(j)];
            const double g = out.out()[static_cast<std::size_t>(i * dim + j)];
            size += w * w;
            off += (g - w) * (g - w);
          }
          double value_size = 0;
          for (const float x : coded.values) value_size += static_cast<double>(x) * x;
          value_size = std::sqrt(value_size / static_cast<double>(coded.count));
          EXPECT_LT(std::sqrt(off), value_size * (2 * rounding + 0.03))
              << dim << " v " << params.value_bytes << " query " << i << " of size "
              << std::sqrt(size);
        }
      }
    }
  }
}

TEST(CodeTail, TakingRowsMovesThemOutAndNothingElse) {
  // What is in the tail and what is taken are two parts of one sum, wherever the line is drawn.
  const Coded coded(5000, 48);
  const float scale = 0.3F;
  const auto q = reference::random_floats(48, 3, 1.0F);
  const PositionRange all{0, coded.count};
  const auto tail_without = [&](const std::vector<std::int64_t>& taken) {
    const std::span<const std::int64_t> span(taken);
    Partial out(1, 48);
    attend(*coded.tail, {q.data(), 1, 48, {&all, 1}}, {&span, 1}, {&no_ceiling, 1}, scale, 0,
           out.view());
    return out.lse()[0];
  };
  std::vector<std::int64_t> every(5000);
  std::iota(every.begin(), every.end(), 0);
  EXPECT_EQ(tail_without(every), empty_lse);
  const double whole = std::exp(static_cast<double>(tail_without({})));
  std::vector<std::int64_t> some;
  std::vector<std::int64_t> others;
  for (std::int64_t i = 0; i < 5000; ++i) (i % 7 == 3 || i < 1100 ? some : others).push_back(i);
  const double parts = std::exp(static_cast<double>(tail_without(some))) +
                       std::exp(static_cast<double>(tail_without(others)));
  EXPECT_NEAR(parts / whole, 1.0, 1e-5);
}

float shared_error_of(const Coded& coded, const std::vector<float>& q, float scale) {
  float square = -1;
  coded.tail->shared_errors(q.data(), scale, {&square, 1});
  return square;
}

/// Squared errors of a tail's estimates, each the sum over many queries.
struct SquaredErrors {
  double actual = 0;       ///< against attention over the rows themselves, in float64
  double told = 0;         ///< by TailNoise
  double independent = 0;  ///< told, without the shared error
};

/// query_size: of each element of a query.
SquaredErrors squared_errors(const Coded& coded, unsigned queries, float query_size) {
  const std::int64_t dim = coded.dim;
  reference::Rows rows;
  rows.dim = dim;
  rows.keys.assign(coded.keys.begin(), coded.keys.end());
  rows.values.assign(coded.values.begin(), coded.values.end());
  const PositionRange all{0, coded.count};
  const float scale = 0.125F;
  SquaredErrors out;
  for (unsigned i = 0; i < queries; ++i) {
    const auto q = reference::random_floats(dim, 100 + i, query_size);
    std::vector<std::int64_t> rare(coded.index->rare().begin(), coded.index->rare().end());
    const std::span<const std::int64_t> taken(rare);
    Partial estimate(1, dim);
    Partial exact(1, dim);
    TailNoise noise;
    coded.tail->attend({q.data(), 1, dim, {&all, 1}}, {&taken, 1}, {&no_ceiling, 1}, scale, 0,
                       {estimate.view(), exact.view(), &noise});
    EXPECT_EQ(exact.lse()[0], empty_lse);
    double total = 0;
    std::vector<double> want(static_cast<std::size_t>(dim), 0.0);
    for (std::int64_t r = 0; r < coded.count; ++r) {
      if (coded.is_rare(r)) continue;
      const double w = std::exp(scale * reference::score(rows, q.data(), r));
      total += w;
      for (std::size_t j = 0; j < want.size(); ++j)
        want[j] += w * rows.values[static_cast<std::size_t>(r * dim) + j];
    }
    for (std::size_t j = 0; j < want.size(); ++j) {
      const double off = estimate.out()[j] - want[j] / total;
      out.actual += off * off;
    }
    const double told = static_cast<double>(noise.weights) * noise.spread + noise.values;
    out.told += told;
    out.independent += told - shared_error_of(coded, q, scale);
  }
  return out;
}

TEST(CodeTail, SaysHowFarOffItIs) {
  // (Flat weights meet the mean of all values itself, so that it is tried with a sharp query.)
  for (const auto& [params, size] : {std::pair(CodesParams{16, 8}, 1.0F),
                                     {CodesParams{8, 4}, 1.5F},
                                     {CodesParams{16, 2}, 0.2F},
                                     {CodesParams{16, 0}, 4.0F}}) {
    const SquaredErrors of = squared_errors(Coded(4000, 64, params), 60, size);
    EXPECT_GT(of.actual / of.told, 0.6) << params.text();
    EXPECT_LT(of.actual / of.told, 1.6) << params.text();
  }
}

TEST(CodeTail, SaysHowFarOffItIsWhereErrorsOfKeysGoWithTheValues) {
  for (const auto& [dim, params] : {std::pair(std::int64_t{64}, CodesParams{8, 8}),
                                    {64, CodesParams{8, 0}},
                                    {128, CodesParams{8, 4}}}) {
    const SquaredErrors of = squared_errors(Coded(24000, dim, params, 3, 4), 6, 0.5F);
    EXPECT_GT(of.actual / of.told, 0.6) << dim << " " << params.text();
    EXPECT_LT(of.actual / of.told, 1.6) << dim << " " << params.text();
    EXPECT_GT(of.actual / of.independent, 4) << dim << " " << params.text();
  }
}

TEST(CodeTail, SharedErrorsOfAGroupAreThoseOfEachQuery) {
  const Coded coded(5000, 64, {8, 8}, 3, 4);
  std::vector<float> group;
  std::vector<float> each;
  for (unsigned i = 0; i < 5; ++i) {
    const auto q = reference::random_floats(64, 200 + i, 0.5F);
    group.insert(group.end(), q.begin(), q.end());
    each.push_back(shared_error_of(coded, {q.begin(), q.end()}, 0.125F));
    EXPECT_GT(each.back(), 0);
  }
  std::vector<float> together(5);
  coded.tail->shared_errors(group.data(), 0.125F, together);
  EXPECT_EQ(together, each);
}

TEST(CodeTail, KnowsNoSharedErrorOfAFewRows) {
  const std::vector<float> q(16, 1.0F);
  EXPECT_EQ(shared_error_of(Coded(7, 16), q, 1), 0);
  // Products of such values are beyond float32.
  EXPECT_TRUE(std::isfinite(shared_error_of(Coded(1000, 16, {16, 0}, 1e30F), q, 1)));
}

TEST(CodeTail, NoRowsAndHugeRowsGiveNoNonsense) {
  const float scale = 1;
  const std::vector<float> q(16, 1.0F);
  const PositionRange all{0, 1000};
  const std::span<const std::int64_t> none;
  for (const float size : {0.0F, 1e-30F, 1e10F, 1e30F}) {
    const Coded coded(1000, 16, {}, size);
    Partial out(1, 16);
    attend(*coded.tail, {q.data(), 1, 16, {&all, 1}}, {&none, 1}, {&no_ceiling, 1}, scale, 0,
           out.view());
    EXPECT_FALSE(std::isnan(out.lse()[0])) << size;
    for (const float x : out.out()) EXPECT_FALSE(std::isnan(x)) << size;
  }
  const Coded coded(100, 16);
  const PositionRange empty{40, 40};
  Partial out(1, 16);
  attend(*coded.tail, {q.data(), 1, 16, {&empty, 1}}, {&none, 1}, {&no_ceiling, 1}, scale, 0,
         out.view());
  EXPECT_EQ(out.lse()[0], empty_lse);
}

TEST(CodeTail, ValuesThatAreNotFiniteAreRefused) {
  Coded coded(100, 16);
  coded.values[777] = std::nanf("");
  EXPECT_THROW(CodeTail(*coded.index, coded.rows, 16, {}), InvalidArgument);
}

const AttentionShape small{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 16};

void expect_nearer(const Stream& stream, double most, double times) {
  const auto context = stream.prefill(3000)->with_index("codes:k=32,v=16")->with_index("hnsw");
  Session dense(context, {.dense_layers = 2});
  const auto want = stream.feed(dense, 3060, 20);
  for (const char* index : {"exact", "hnsw", "codes:k=32,v=16"}) {
    for (const SelectBy by : {SelectBy::query_head, SelectBy::group}) {
      RetrievalOptions options{
          .index = index, .k = TopK::same(32), .select_by = by, .tail = "none", .window = 16};
      Session without(context, options);
      options.tail = "codes:v=16,k=32";
      Session with(context, options);
      EXPECT_EQ(with.options().tail, "codes:k=32,v=16");
      const double far = distance(stream.feed(without, 3060, 20), want);
      const double near = distance(stream.feed(with, 3060, 20), want);
      EXPECT_LT(near, most) << index;
      EXPECT_LT(near, far / times) << index;
    }
  }
}

TEST(SessionTail, BringsASessionNearToDenseAttentionWhateverSelects) {
  Stream stream(small, 3060);
  // Values that are chance alone, whose mean over a few hundred rows is hardly more than what their
  // codes leave.
  expect_nearer(stream, 1.2, 1.5);
  stream.v = stream.k;  // what is attended says something
  expect_nearer(stream, 0.4, 3);
}

TEST(SessionTail, DoesNotDrownWhatASharpQueryFound) {
  // Scores of very different size: the best rows hold all of the attention, and the errors of codes
  // are larger than the distance between scores.
  Stream stream(small, 3010);
  for (auto& q : stream.q) {
    for (float& x : q) x *= 8;
  }
  const auto context = stream.prefill(3000)->with_index("codes:k=4,v=8");
  Session dense(context, {.dense_layers = 2});
  const auto want = stream.feed(dense, 3010, 1);
  for (const char* index : {"exact", "codes:k=4,v=8"}) {
    RetrievalOptions options{.index = index, .k = TopK::same(64), .tail = "none", .window = 16};
    Session without(context, options);
    options.tail = "codes:k=4,v=8";
    Session with(context, options);
    const double far = distance(stream.feed(without, 3010, 1), want);
    const double near = distance(stream.feed(with, 3010, 1), want);
    EXPECT_LT(near, far + 0.02) << index << ", without a tail " << far;
  }
}

TEST(SessionTail, FiguresSayHowNearItIs) {
  const Stream stream(small, 3060);
  const auto context = stream.prefill(3000)->with_index("codes:k=32,v=16");
  Session dense(context, {.dense_layers = 2});
  const auto want = stream.feed(dense, 3060, 20);
  RetrievalOptions options{.k = TopK::same(32), .tail = "codes:k=32,v=16", .window = 16};
  Session session(context, options);
  for (const TailFigures& figures : session.tail_figures()) EXPECT_EQ(figures.heads, 0);
  const auto got = stream.feed(session, 3060, 20);
  const auto figures = session.tail_figures();
  ASSERT_EQ(std::ssize(figures), small.layers);
  for (std::int64_t l = 0; l < small.layers; ++l) {
    const auto at = static_cast<std::size_t>(l);
    EXPECT_EQ(figures[at].heads, 60 * small.q_heads);
    EXPECT_GT(figures[at].mean_exact_mass(), 0.02);
    EXPECT_LT(figures[at].mean_exact_mass(), 0.9);
    const double far = distance({got[at]}, {want[at]});
    EXPECT_GT(figures[at].mean_error(), far / 1.6) << l;
    EXPECT_LT(figures[at].mean_error(), far * 1.6) << l;
  }
  // A fork goes on counting. With all rows found there is nothing to estimate.
  Session copy = session.fork();
  EXPECT_EQ(copy.tail_figures()[1].heads, figures[1].heads);
  EXPECT_EQ(copy.tail_figures()[1].error, figures[1].error);
  options.k = TopK::same(5000);
  Session all(context, options);
  stream.feed(all, 3010, 3);
  EXPECT_EQ(all.tail_figures()[0].mean_exact_mass(), 1.0);
  EXPECT_EQ(all.tail_figures()[0].mean_error(), 0.0);
  options.tail = "none";
  Session none(context, options);
  stream.feed(none, 3010, 3);
  EXPECT_EQ(none.tail_figures()[0].heads, 0);
}

TEST(SessionTail, FiguresSayHowNearItIsWhereErrorsOfKeysGoWithTheValues) {
  // Short codes leave out the second half of each key, and the values have this half.
  Stream stream(small, 20040);
  const std::int64_t half = small.head_dim / 2;
  for (std::size_t l = 0; l < stream.k.size(); ++l) {
    for (std::size_t i = 0; i < stream.k[l].size(); ++i) {
      stream.v[l][i] += 2;  // outputs are not small beside their errors
      if (static_cast<std::int64_t>(i) % small.head_dim < half) continue;
      stream.k[l][i] *= 0.6F;
      stream.v[l][i - static_cast<std::size_t>(half)] += 4 * stream.k[l][i];
    }
  }
  for (const char* index : {"exact", "codes:k=2,v=16"}) {  // a search with a tail, and a scan
    const auto context = stream.prefill(20000)->with_index("codes:k=2,v=16");
    Session dense(context, {.dense_layers = small.layers});
    const auto want = stream.feed(dense, 20040, 20);
    Session session(context,
                    {.index = index, .k = TopK::same(16), .tail = "codes:k=2,v=16", .window = 16});
    const auto got = stream.feed(session, 20040, 20);
    const auto figures = session.tail_figures();
    for (std::int64_t l = 0; l < small.layers; ++l) {
      const auto at = static_cast<std::size_t>(l);
      const double far = distance({got[at]}, {want[at]});
      EXPECT_GT(figures[at].mean_error(), far / 2) << index << " " << l;
      EXPECT_LT(figures[at].mean_error(), far * 2) << index << " " << l;
    }
  }
}

TEST(SessionTail, StepsOfAnySizeGiveTheSame) {
  const Stream stream(small, 1360);
  const auto context = stream.prefill(1300)->with_index("codes");
  const RetrievalOptions options{.index = "codes", .k = TopK::same(8), .window = 10, .sinks = 3};
  Session one(context, options);
  const auto want = stream.feed(one, 1360, 1);
  for (const std::int64_t step : {7, 60}) {
    Session many(context, options);
    EXPECT_LT(distance(stream.feed(many, 1360, step), want), 1e-4) << step;
  }
}

TEST(SessionTail, AllKeysRetrievedEqualsDense) {
  const Stream stream(small, 440);
  for (const std::int64_t tokens : {0, 1, 400}) {
    const auto context = stream.prefill(tokens)->with_index("codes");
    Session dense(context, {.dense_layers = 2});
    const std::int64_t end = tokens + 40;
    const auto want = stream.feed(dense, end, 1);
    for (const std::int64_t k : {std::int64_t{100000}, std::numeric_limits<std::int64_t>::max()}) {
      Session all(context, {.index = "codes", .k = TopK::same(k), .window = 16, .sinks = 2});
      EXPECT_LT(distance(stream.feed(all, end, 1), want), 1e-5) << tokens;
    }
  }
}

TEST(SessionTail, ReadingBeyondTheWindowAttendsOnlyRowsThatThereAre) {
  const Stream stream(small, 460);
  const auto context = stream.prefill(400)->with_index("codes");
  const auto read = [&](RetrievalOptions options) {
    options.window = 16;
    Session session(context, options);
    stream.feed(session, 410, 1);
    std::vector<std::vector<float>> outs;
    for (std::int64_t layer = 0; layer < small.layers; ++layer) {
      outs.emplace_back(static_cast<std::size_t>(40 * stream.q_width()));
      AttentionStep step = stream.step(layer, 410, 40, outs.back().data());
      step.kv_tokens = 0;
      session.attend(step);
    }
    return outs;
  };
  EXPECT_LT(distance(read({.index = "codes", .k = TopK::same(100000)}), read({.dense_layers = 2})),
            1e-5);
}

TEST(SessionTail, OwnTokensAreAllAttended) {
  // No context: dense attention, whatever k.
  const Stream stream(small, 200);
  const auto context = stream.prefill(0)->with_index("codes");
  Session dense(context, {.dense_layers = 2});
  const auto want = stream.feed(dense, 200, 9);
  for (const std::int64_t sinks : {0, 4, 300}) {
    Session with(context, {.index = "codes", .k = TopK::same(1), .window = 5, .sinks = sinks});
    EXPECT_LT(distance(stream.feed(with, 200, 9), want), 1e-5) << sinks;
  }
}

TEST(SessionTail, ForkAndTruncateGoOnAsBefore) {
  const Stream stream(small, 900);
  Session session(stream.prefill(800)->with_index("codes"),
                  {.index = "codes", .k = TopK::same(8), .window = 16});
  stream.feed(session, 840, 1);
  Session copy = session.fork();
  const auto want = stream.feed(session, 900, 4);
  EXPECT_EQ(stream.feed(copy, 900, 4), want);
  session.truncate(40);
  EXPECT_EQ(stream.feed(session, 900, 4), want);
}

TEST(SessionTail, OneThatTheContextDoesNotHaveIsRefused) {
  const Stream stream(small, 100);
  const auto context = stream.prefill(100)->with_index("codes:k=8,v=0")->with_index("hnsw");
  const auto tail_of = [&](const char* index, const char* tail) {
    return Session(context, {.index = index, .tail = tail}).options().tail;
  };
  EXPECT_EQ(tail_of("exact", ""), "none");
  EXPECT_EQ(tail_of("codes:k=8,v=0", ""), "none");
  EXPECT_EQ(tail_of("codes:k=8,v=0", "none"), "none");
  for (const char* tail : {"codes", "codes:k=8,v=0", "hnsw", "exact", "mean", "codes:v=99"}) {
    EXPECT_THROW(tail_of("exact", tail), InvalidArgument) << tail;
  }
  EXPECT_EQ(Session(context->with_index("codes"), {.index = "codes"}).options().tail,
            "codes:k=16,v=8");
}

/// Codes as the host does, one vector after the other, or fails.
class OneByOne final : public CodeEncoder {
 public:
  void encode(const KeyCoder& coder, const KeyView& keys, std::uint8_t* codes,
              float* residuals) override {
    if (fails) throw Error("a test");
    for (std::int64_t i = keys.count; i-- > 0; ++coded)
      coder.encode(keys, i, 1, codes, residuals + i);
  }
  void encode(const ValueCoder& coder, const KeyView& values, std::uint8_t* codes) override {
    if (fails) throw Error("a test");
    for (std::int64_t i = values.count; i-- > 0; ++coded) coder.encode(values, i, 1, codes);
  }

  bool fails = false;
  std::int64_t coded = 0;
};

TEST(CodeEncoder, HasAllRowsOfAnIndexAndATailCoded) {
  const Coded coded(3000, 64);
  OneByOne encoder;
  CodesIndex index(CodesParams{});
  encoder.fails = true;
  EXPECT_THROW(index.build_with(&encoder, coded.rows.keys, {}), Error);
  EXPECT_THROW(CodeTail(*coded.index, coded.rows, 64, {}, &encoder), Error);
  encoder.fails = false;

  CodesIndex built(CodesParams{});
  built.build_with(&encoder, coded.rows.keys, {});
  const CodeTail tail(built, coded.rows, 64, {}, &encoder);
  EXPECT_EQ(encoder.coded, 2 * coded.count);
  EXPECT_EQ(built.inserted(), coded.count);
  EXPECT_TRUE(std::ranges::equal(built.rare(), coded.index->rare()));
  // A vector's product with the axes rounds otherwise alone than among others, on some processors:
  // an element that lies within that of a level has one or the other code. Of random elements
  // these are some 2^-18, for sums over 64 in float32.
  const auto same = [](const std::uint8_t* a, const std::uint8_t* b, std::int64_t bytes) {
    std::int64_t differing = 0;
    for (std::int64_t i = 0; i < bytes; ++i)
      differing += std::popcount(static_cast<unsigned>(a[i] ^ b[i]));
    return differing <= 1 + bytes * 8 / 20000;
  };
  EXPECT_TRUE(same(built.codes(), coded.index->codes(), built.coder().bytes_for(coded.count)));
  EXPECT_TRUE(same(tail.codes(), coded.tail->codes(), tail.coder().bytes_for(coded.count)));
  // It may be gone when more keys come: these are the host's.
  CodesIndex grown(CodesParams{});
  grown.build_with(&encoder, coded.rows.part({0, 1000}).keys, {});
  grown.add(coded.rows.part({1000, coded.count}).keys, {});
  EXPECT_EQ(encoder.coded, 2 * coded.count + 1000);
  EXPECT_EQ(grown.inserted(), coded.count);
}

}  // namespace
}  // namespace topkv
