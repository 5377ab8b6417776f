// The attention that each position gets, beside softmax weights in float64 by plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/session/own_codes.h"
#include "tests/support/failing.h"
#include "tests/support/stream.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::Stream;

constexpr std::int64_t mass_context = 150;
constexpr std::int64_t mass_end = 190;

AttentionShape mass_shape() { return {.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16}; }

RetrievalOptions measured(RetrievalOptions options) {
  options.measure_attention = true;
  return options;
}

/// Adds the softmax weights of a query head of the token at p, over the rows that it attends.
template <class Attends>
void add_weights(const Stream& stream, std::int64_t layer, std::int64_t p, std::int64_t head,
                 const Attends& attends, std::vector<double>& sums) {
  const AttentionShape& shape = stream.shape;
  const reference::Rows rows = stream.rows(layer, head / shape.group(), p + 1);
  const float* query =
      &stream.q[static_cast<std::size_t>(layer)]
               [static_cast<std::size_t>(p * stream.q_width() + head * shape.head_dim)];
  const double scale = shape.softmax_scale();
  const double cap = shape.softcap;
  std::vector<double> weights(static_cast<std::size_t>(p + 1));
  for (std::int64_t x = 0; x <= p; ++x) {
    if (!attends(x)) continue;
    const double scaled = scale * reference::score(rows, query, x);
    weights[static_cast<std::size_t>(x)] =
        std::exp(cap == 0 ? scaled : cap * std::tanh(scaled / cap));
  }
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t x = 0; x < weights.size(); ++x) sums[x] += weights[x] / all;
}

/// The sums that a session with an exact index must have, in layers with full attention.
std::vector<double> wanted_mass(const Stream& stream, const RetrievalOptions& options,
                                std::int64_t first = mass_context, std::int64_t end = mass_end) {
  const AttentionShape& shape = stream.shape;
  std::vector<double> sums(static_cast<std::size_t>(end));
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    if (shape.window_of(l) > 0) continue;
    const std::int64_t k = options.k.resolve(shape.layers)[static_cast<std::size_t>(l)];
    for (std::int64_t p = first; p < end; ++p) {
      for (std::int64_t head = 0; head < shape.q_heads; ++head) {
        const auto query = [&](std::int64_t h) {
          return &stream.q[static_cast<std::size_t>(l)]
                          [static_cast<std::size_t>(p * stream.q_width() + h * shape.head_dim)];
        };
        const std::int64_t group = shape.group();
        std::vector<const float*> choosers = {query(head)};
        if (options.select_by == SelectBy::group) {
          choosers.clear();
          for (std::int64_t g = 0; g < group; ++g)
            choosers.push_back(query(head / group * group + g));
        }
        std::set<std::int64_t> found;
        if (l >= options.dense_layers) {
          found = reference::best_rows(stream.rows(l, head / group, p + 1), choosers, options.sinks,
                                       std::max(options.sinks, p - options.window + 1), k,
                                       shape.softmax_scale(), shape.softcap);
        }
        add_weights(
            stream, l, p, head,
            [&](std::int64_t x) {
              return l < options.dense_layers || x < options.sinks || x > p - options.window ||
                     found.contains(x);
            },
            sums);
      }
    }
  }
  return sums;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t x = 0; x < want.size(); ++x)
    ASSERT_NEAR(got[x], want[x], 1e-4 * (1 + want[x])) << "position " << x;
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double exact_mass(const Session& session) {
  double sum = 0;
  for (const TailFigures& of : session.tail_figures()) sum += of.exact_mass;
  return sum;
}

TEST(PositionMass, IsTheSoftmaxWeightOfEachRowThatIsAttended) {
  for (const std::int64_t k : {3, 1000}) {
    for (const SelectBy select_by : {SelectBy::query_head, SelectBy::group}) {
      for (const std::int64_t step : {1, 7, 40}) {
        SCOPED_TRACE(testing::Message()
                     << "k " << k << " by " << static_cast<int>(select_by) << " step " << step);
        const RetrievalOptions options =
            measured({.k = TopK::same(k), .select_by = select_by, .window = 8, .sinks = 2});
        const Stream stream(mass_shape(), mass_end);
        Session session(stream.prefill(mass_context), options);
        stream.feed(session, mass_end, step);
        expect_near(session.attention_by_position(), wanted_mass(stream, options));
      }
    }
  }
}

TEST(PositionMass, CountsDenseLayersAndLeavesOutSlidingOnes) {
  AttentionShape shape = mass_shape();
  shape.layers = 3;
  shape.sliding_window = {0, 8, 0};
  shape.softcap = 2;
  const RetrievalOptions options =
      measured({.k = TopK::same(4), .dense_layers = 1, .window = 8, .sinks = 2});
  const Stream stream(shape, mass_end);
  Session session(stream.prefill(mass_context), options);
  stream.feed(session, mass_end, 5);
  expect_near(session.attention_by_position(), wanted_mass(stream, options));
}

TEST(PositionMass, CountsRowsOfAWindowThatHoldsTheWholeText) {
  const RetrievalOptions options = measured({.window = 1000});
  const Stream stream(mass_shape(), mass_end);
  Session session(stream.prefill(mass_context), options);
  stream.feed(session, mass_end, 9);
  expect_near(session.attention_by_position(), wanted_mass(stream, options));
}

TEST(PositionMass, CountsStepsOfManyTokensInParts) {
  // A step of 300 tokens is taken in two parts.
  const RetrievalOptions options = measured({.k = TopK::same(3), .window = 8, .sinks = 2});
  const Stream stream(mass_shape(), mass_context + 300);
  Session session(stream.prefill(mass_context), options);
  stream.feed(session, mass_context + 300, 300);
  expect_near(session.attention_by_position(),
              wanted_mass(stream, options, mass_context, mass_context + 300));
}

// With a tail, the weights of all rows that are attended exactly are the share that the tail's
// figures report: another sum, of the partials.
TEST(PositionMass, AddsUpToTheExactShareBesideATail) {
  constexpr std::int64_t context = 3000;
  const Stream stream(mass_shape(), context + 20);
  const auto prefilled = stream.prefill(context);
  for (const auto& [index, tail, select_by] :
       {std::tuple{"codes:k=16,v=8", "", SelectBy::query_head},
        std::tuple{"codes:k=16,v=8", "", SelectBy::group},
        std::tuple{"exact", "mean", SelectBy::query_head},
        std::tuple{"hnsw:M=16", "codes:k=16,v=8", SelectBy::query_head}}) {
    for (const std::int64_t step : {1, 10}) {
      SCOPED_TRACE(testing::Message() << index << " " << tail << " step " << step);
      const RetrievalOptions options = measured({.index = index,
                                                 .k = TopK::same(20),
                                                 .select_by = select_by,
                                                 .tail = tail,
                                                 .window = 16,
                                                 .sinks = 2});
      Session session(prefilled->ready_for(options), options);
      stream.feed(session, context + 20, step);
      const double exact = exact_mass(session);
      EXPECT_GT(exact, 1);
      EXPECT_NEAR(sum_of(session.attention_by_position()), exact, 1e-4 * exact);
    }
  }
}

TEST(PositionMass, WeighsEachRowOfAScanByItsScore) {
  constexpr std::int64_t context = 3000;
  AttentionShape shape = mass_shape();
  shape.layers = 1;
  const Stream stream(shape, context + 1);
  const RetrievalOptions options =
      measured({.index = "codes:k=16,v=8", .k = TopK::same(20), .window = 16, .sinks = 2});
  Session session(stream.prefill(context)->ready_for(options), options);
  std::vector<float> out(static_cast<std::size_t>(stream.q_width()));
  std::vector<float> lse(static_cast<std::size_t>(shape.q_heads));
  session.attend(stream.step(0, context, 1, out.data(), lse.data()));
  // A group shares rows, so that each is attended by both heads of one group or of two.
  std::vector<std::vector<double>> weights;
  for (std::int64_t group = 0; group < shape.kv_heads; ++group) {
    std::vector<double>& of = weights.emplace_back(static_cast<std::size_t>(context + 1));
    const reference::Rows rows = stream.rows(0, group, context + 1);
    for (std::int64_t head = group * shape.group(); head < (group + 1) * shape.group(); ++head) {
      const float* query =
          &stream
               .q[0][static_cast<std::size_t>(context * stream.q_width() + head * shape.head_dim)];
      for (std::int64_t x = 0; x <= context; ++x) {
        of[static_cast<std::size_t>(x)] +=
            std::exp(shape.softmax_scale() * reference::score(rows, query, x) -
                     lse[static_cast<std::size_t>(head)]);
      }
    }
  }
  const std::vector<double> mass = session.attention_by_position();
  std::int64_t attended = 0;
  for (std::size_t x = 0; x < mass.size(); ++x) {
    const double a = weights[0][x];
    const double b = weights[1][x];
    const auto is = [&](double want) { return std::abs(mass[x] - want) <= 1e-4 * want; };
    ASSERT_TRUE(mass[x] == 0 || is(a) || is(b) || is(a + b)) << "position " << x;
    attended += mass[x] > 0;
  }
  EXPECT_GT(attended, 18 + 20);
  EXPECT_LT(attended, context / 4);
}

TEST(PositionMass, CountsOwnRowsThatHaveCodes) {
  const std::int64_t least = std::exchange(least_coded_on_host, 2048);
  constexpr std::int64_t context = 1500;
  constexpr std::int64_t end = context + 3000;
  const Stream stream(mass_shape(), end);
  const RetrievalOptions options =
      measured({.index = "codes:k=16,v=8", .k = TopK::same(20), .window = 16, .sinks = 2});
  Session session(stream.prefill(context)->ready_for(options), options);
  stream.feed(session, end - 100, 100);
  EXPECT_GT(session.stats().coded_tokens, 0);
  session.reset_attention();
  const double before = exact_mass(session);
  stream.feed(session, end, 3);
  least_coded_on_host = least;
  const double exact = exact_mass(session) - before;
  EXPECT_NEAR(sum_of(session.attention_by_position()), exact, 1e-4 * exact);
}

TEST(PositionMass, OfSessionsThatStepTogetherIsTheirOwn) {
  const RetrievalOptions options = measured({.k = TopK::same(4), .window = 8, .sinks = 2});
  const Stream stream(mass_shape(), mass_context + 2);
  const auto context = stream.prefill(mass_context);
  Session a(context, options), b(context, options);
  stream.feed(b, mass_context + 1, 1);
  b.reset_attention();
  Session* const both[] = {&a, &b};
  for (std::int64_t layer = 0; layer < stream.shape.layers; ++layer) {
    const auto l = static_cast<std::size_t>(layer);
    const auto joined = [&](const std::vector<float>& values, std::int64_t width) {
      return std::vector<float>(values.begin() + mass_context * width,
                                values.begin() + (mass_context + 2) * width);
    };
    const auto q = joined(stream.q[l], stream.q_width());
    const auto k = joined(stream.k[l], stream.kv_width()),
               v = joined(stream.v[l], stream.kv_width());
    std::vector<float> out(q.size());
    Session::attend_together(both, {.layer = layer,
                                    .tokens = 1,
                                    .q = q.data(),
                                    .k = k.data(),
                                    .v = v.data(),
                                    .out = out.data()});
  }
  expect_near(a.attention_by_position(),
              wanted_mass(stream, options, mass_context, mass_context + 1));
  expect_near(b.attention_by_position(),
              wanted_mass(stream, options, mass_context + 1, mass_context + 2));
}

TEST(PositionMass, OfAStepThatFailsIsNotCounted) {
  for (const char* index : {"exact", "codes:k=16,v=8"}) {
    SCOPED_TRACE(index);
    const RetrievalOptions options =
        measured({.index = index, .k = TopK::same(3), .window = 8, .sinks = 2});
    const Stream stream(mass_shape(), mass_context + 300);
    const auto context = stream.prefill(mass_context)->ready_for(options);
    Session session(context, options);
    std::vector<float> out(static_cast<std::size_t>(300 * stream.q_width()));
    const std::int64_t places = ::test::fail_everywhere([&](std::int64_t) {
      session.truncate(0);
      session.reset_attention();
      try {
        session.attend(stream.step(0, mass_context, 300, out.data()));
      } catch (const std::bad_alloc&) {
        EXPECT_EQ(sum_of(session.attention_by_position()), 0);
      }
    });
    EXPECT_GT(places, 3);
  }
}

TEST(PositionMass, FollowsForksAndTruncation) {
  const RetrievalOptions options = measured({.k = TopK::same(4), .window = 8, .sinks = 2});
  const Stream stream(mass_shape(), mass_end);
  Session session(stream.prefill(mass_context), options);
  EXPECT_EQ(session.attention_by_position(), std::vector<double>(mass_context));
  stream.feed(session, mass_end, 5);
  const std::vector<double> all = session.attention_by_position();
  EXPECT_EQ(session.fork().attention_by_position(), all);
  session.truncate(10);
  EXPECT_EQ(session.attention_by_position(),
            std::vector<double>(all.begin(), all.begin() + mass_context + 10));
  session.reset_attention();
  EXPECT_EQ(session.attention_by_position(), std::vector<double>(mass_context + 10));
}

TEST(PositionMass, ChangesNoResult) {
  for (const char* index : {"exact", "codes:k=16,v=8"}) {
    RetrievalOptions options{.index = index, .k = TopK::same(4), .window = 8, .sinks = 2};
    const Stream stream(mass_shape(), mass_end);
    const auto context = stream.prefill(mass_context)->ready_for(options);
    Session plain(context, options);
    Session with(context, measured(options));
    EXPECT_EQ(stream.feed(plain, mass_end, 5), stream.feed(with, mass_end, 5));
    EXPECT_THROW(plain.attention_by_position(), InvalidArgument);
  }
}

TEST(PositionMass, IsRefusedWhereRowsAreNotKnown) {
  const Stream stream(mass_shape(), mass_context);
  const auto context = stream.prefill(mass_context)->with_index("mean");
  const auto refused = [&](RetrievalOptions options) {
    EXPECT_THROW(Session(context, measured(std::move(options))), Unsupported);
  };
  refused({.tail = "mean", .mass = 0.9});
  refused({.tail = "mean", .error = 0.1});
  refused({.guarantee = Guarantee{}});
  AttentionShape chunks = mass_shape();
  chunks.chunk_len = 64;
  EXPECT_THROW(Session(ContextBuilder(chunks, {}).freeze(), measured({})), Unsupported);
}

}  // namespace
}  // namespace topkv
