// Tails of the literature, each against float64 written from its paper, and sessions with these and
// with the methods that choose rows (methods_test.cc).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "index/methods/sparq_tail.h"
#include "index/tails/sample_tail.h"
#include "index/tails/summary_tail.h"
#include "tests/index/coded_rows.h"
#include "tests/support/reference.h"
#include "tests/support/stream.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::no_ceiling;
using test::prefilled;
using test::Stream;

/// Some rows, as views and in float64.
struct SomeRows {
  SomeRows(std::int64_t count, std::int64_t dim, float key_size = 1.5F)
      : keys(reference::some_vectors(count, dim, 1)),
        values(reference::some_vectors(count, dim, 2)) {
    for (float& x : keys) x *= key_size;
    for (std::int64_t i = 0; i < count * dim; ++i)
      values[static_cast<std::size_t>(i)] += std::cos(static_cast<float>(i % dim));
    const auto view = [&](const std::vector<float>& of) {
      return KeyView{reinterpret_cast<const std::byte*>(of.data()), DType::f32, count, dim,
                     dim * 4};
    };
    rows = {view(keys), view(values)};
    exact.dim = dim;
    exact.keys.assign(keys.begin(), keys.end());
    exact.values.assign(values.begin(), values.end());
  }
  std::vector<float> keys, values;
  RowsView rows;
  reference::Rows exact;
};

/// What a tail gives for one query.
struct GivenTail {
  GivenTail(const RowTail& tail, const float* q, std::int64_t dim, PositionRange allowed,
            const std::vector<std::int64_t>& taken, float scale, float softcap = 0,
            float ceiling = no_ceiling)
      : estimate(1, dim), exact(1, dim) {
    const std::vector<PositionRange> ranges = {allowed};
    const std::span<const std::int64_t> list(taken);
    const std::vector<float> ceilings = {ceiling};
    tail.attend({q, 1, dim, ranges}, {&list, 1}, ceilings, scale, softcap,
                {estimate.view(), exact.view(), &noise});
    both.reset(1, dim);
    merge(both.view(), estimate.view());
    merge(both.view(), exact.view());
  }
  Partial estimate, exact, both;
  TailNoise noise;
};

void expect_partial(const Partial& have, const reference::Result& want, double tolerance) {
  EXPECT_NEAR(have.lse()[0], want.lse, tolerance);
  for (std::size_t j = 0; j < want.out.size(); ++j)
    EXPECT_NEAR(have.out()[j], want.out[j], tolerance) << j;
}

const std::vector<std::int64_t> some_taken = {60, 61, 62, 100, 101, 102, 103, 500, 777};

TEST(PageTail, OfSingleRowsIsExact) {
  const SomeRows rows(900, 24);
  const SummaryTail tail(rows.rows, {.groups = 900, .page = 1}, true, {});
  const auto q = reference::random_floats(24, 3, 1.0F);
  for (const float softcap : {0.0F, 2.0F}) {
    const GivenTail given(tail, q.data(), 24, {50, 850}, some_taken, 0.2F, softcap);
    expect_partial(given.both,
                   reference::attend(
                       rows.exact, q.data(), 0.2,
                       [](std::int64_t r) {
                         return r >= 50 && r < 850 && std::ranges::count(some_taken, r) == 0;
                       },
                       softcap),
                   2e-5);
  }
}

TEST(PageTail, HasTheMassesOfMeansAndVariancesWithoutTheRowsTaken) {
  constexpr std::int64_t dim = 24;
  const SomeRows rows(900, dim);
  const auto q = reference::random_floats(dim, 3, 1.0F);
  const PositionRange allowed{50, 850};
  for (const auto& [softcap, ceiling, second_order] :
       {std::tuple{0.0, 1e30, true}, {2.0, 1e30, true}, {0.0, 0.3, true}, {0.0, 1e30, false}}) {
    const SummaryTail tail(rows.rows, {.groups = 57, .page = 16}, second_order, {});
    reference::Result want;
    want.out.assign(dim, 0.0);
    double total = 0;
    for (std::int64_t page = 0; page < 57; ++page) {
      std::vector<std::int64_t> in;
      for (std::int64_t r = page * 16; r < std::min<std::int64_t>((page + 1) * 16, 900); ++r) {
        if (allowed.contains(r) && std::ranges::count(some_taken, r) == 0) in.push_back(r);
      }
      if (in.empty()) continue;
      const auto n = static_cast<double>(in.size());
      double score = 0;
      double second = 0;
      std::vector<double> value(dim);
      for (std::int64_t j = 0; j < dim; ++j) {
        double mean = 0;
        double square = 0;
        for (const std::int64_t r : in) {
          const auto at = static_cast<std::size_t>(r * dim + j);
          mean += rows.exact.keys[at] / n;
          value[static_cast<std::size_t>(j)] += rows.exact.values[at] / n;
        }
        for (const std::int64_t r : in)
          square += std::pow(rows.exact.keys[static_cast<std::size_t>(r * dim + j)] - mean, 2) / n;
        score += 0.2F * double{q[static_cast<std::size_t>(j)]} * mean;
        second += std::pow(0.2F * double{q[static_cast<std::size_t>(j)]}, 2) * square / 2;
      }
      score = softcap > 0    ? softcap * std::tanh(score / softcap)
              : second_order ? score + second
                             : score;
      score = std::min(score, ceiling);
      const double mass = n * std::exp(score);
      total += mass;
      for (std::int64_t j = 0; j < dim; ++j)
        want.out[static_cast<std::size_t>(j)] += mass * value[static_cast<std::size_t>(j)];
    }
    for (double& x : want.out) x /= total;
    want.lse = std::log(total);
    const GivenTail given(tail, q.data(), dim, allowed, some_taken, 0.2F,
                          static_cast<float>(softcap), static_cast<float>(ceiling));
    expect_partial(given.estimate, want, 2e-5);
    EXPECT_EQ(given.exact.lse()[0], empty_lse);
  }
}

TEST(PageTail, WithAllRowsTakenIsEmpty) {
  const SomeRows rows(100, 8);
  const SummaryTail tail(rows.rows, {.groups = 7, .page = 16}, true, {});
  const auto q = reference::random_floats(8, 3, 1.0F);
  std::vector<std::int64_t> taken(60);
  std::iota(taken.begin(), taken.end(), 20);
  const GivenTail given(tail, q.data(), 8, {20, 80}, taken, 0.3F);
  EXPECT_EQ(given.both.lse()[0], empty_lse);
  for (const float x : given.both.out()) EXPECT_EQ(x, 0);
}

TEST(SparqTail, ReallocatesToTheMeanValueWhatTheRowsTakenDoNotHave) {
  constexpr std::int64_t dim = 32;
  constexpr std::int64_t r = 8;
  const SomeRows rows(1200, dim);
  SparqIndex index(r, 1);
  index.add(rows.rows.keys, {});
  index.build({});
  const SparqTail tail(index, rows.rows, {});
  const auto q = reference::random_floats(dim, 3, 1.0F);
  const auto scale = static_cast<float>(1 / std::sqrt(32.0));
  // Algorithm 1: s^ of the r largest components, α of the rows taken, y = α y_k + (1 - α) v̄.
  std::vector<std::pair<double, std::int64_t>> sizes;
  double all = 0;
  for (std::int64_t i = 0; i < dim; ++i) {
    sizes.emplace_back(-std::abs(q[static_cast<std::size_t>(i)]), i);
    all += std::abs(q[static_cast<std::size_t>(i)]);
  }
  std::sort(sizes.begin(), sizes.end());
  double read = 0;
  for (std::int64_t i = 0; i < r; ++i) read -= sizes[static_cast<std::size_t>(i)].first;
  double total = 0;
  double taken_mass = 0;
  for (std::int64_t row = 0; row < 1200; ++row) {
    double sum = 0;
    for (std::int64_t i = 0; i < r; ++i) {
      const std::int64_t c = sizes[static_cast<std::size_t>(i)].second;
      sum +=
          q[static_cast<std::size_t>(c)] * rows.exact.keys[static_cast<std::size_t>(row * dim + c)];
    }
    const double weight = std::exp(sum / std::sqrt(dim * read / all));
    total += weight;
    if (std::ranges::count(some_taken, row) > 0) taken_mass += weight;
  }
  const double alpha = taken_mass / total;
  const auto taken = reference::attend(rows.exact, q.data(), scale, [](std::int64_t row) {
    return std::ranges::count(some_taken, row) > 0;
  });
  reference::Result want;
  want.lse = taken.lse - std::log(alpha);  // of all
  for (std::int64_t j = 0; j < dim; ++j) {
    double mean = 0;
    for (std::int64_t row = 0; row < 1200; ++row)
      mean += rows.exact.values[static_cast<std::size_t>(row * dim + j)] / 1200;
    want.out.push_back(alpha * taken.out[static_cast<std::size_t>(j)] + (1 - alpha) * mean);
  }
  GivenTail given(tail, q.data(), dim, {0, 1200}, some_taken, scale);
  Partial attended(1, dim);
  attend_rows(q.data(), rows.rows, some_taken, scale, attended.view());
  merge(given.both.view(), attended.view());
  expect_partial(given.both, want, 5e-3);  // keys' components are bf16 in the index
}

/// Sums of weights and of weighted values that a sample must give on average.
TEST(SampleTail, SumsAreUnbiased) {
  constexpr std::int64_t dim = 8;
  const SomeRows rows(2000, dim);
  const SampleTail tail({.rows = 64}, rows.rows);
  const auto base = reference::random_floats(dim, 3, 1.0F);
  const auto want = reference::attend(rows.exact, base.data(), 0.3, [](std::int64_t r) {
    return r >= 50 && r < 1950 && std::ranges::count(some_taken, r) == 0;
  });
  constexpr int draws = 4000;
  std::vector<double> mean(dim + 1), square(dim + 1);
  for (int i = 0; i < draws; ++i) {
    std::vector<float> q = base;
    q[0] *= 1 + 1e-6F * static_cast<float>(i - draws / 2);  // another draw, hardly another query
    const GivenTail given(tail, q.data(), dim, {50, 1950}, some_taken, 0.3F);
    const double mass = std::exp(given.estimate.lse()[0] - want.lse);
    for (std::int64_t j = 0; j <= dim; ++j) {
      const double x = j < dim ? mass * given.estimate.out()[static_cast<std::size_t>(j)] : mass;
      mean[static_cast<std::size_t>(j)] += x / draws;
      square[static_cast<std::size_t>(j)] += x * x / draws;
    }
  }
  for (std::int64_t j = 0; j <= dim; ++j) {
    const auto at = static_cast<std::size_t>(j);
    const double spread = std::sqrt((square[at] - mean[at] * mean[at]) / draws);
    EXPECT_GT(spread, 0);
    EXPECT_NEAR(mean[at], j < dim ? want.out[at] : 1.0, 4 * spread + 1e-4) << j;
  }
}

TEST(SampleTail, IsOffByMoreThanItSaysNoMoreOftenThanItSays) {
  constexpr std::int64_t dim = 8;
  const SomeRows rows(20000, dim);
  const SampleTail tail({.rows = 200, .epsilon = 20, .delta = 10}, rows.rows);
  int off = 0;
  std::int64_t sampled = 0;
  constexpr int queries = 300;
  for (int i = 0; i < queries; ++i) {
    const auto q = reference::random_floats(dim, 100 + i, 1.0F);
    // What a search selects: the best.
    std::vector<std::pair<double, std::int64_t>> order;
    for (std::int64_t row = 0; row < 20000; ++row)
      order.emplace_back(-reference::score(rows.exact, q.data(), row), row);
    std::partial_sort(order.begin(), order.begin() + 50, order.end());
    std::vector<std::int64_t> taken;
    for (std::size_t at = 0; at < 50; ++at) taken.push_back(order[at].second);
    std::sort(taken.begin(), taken.end());
    GivenTail given(tail, q.data(), dim, {0, 20000}, taken, 0.3F);
    sampled += given.exact.lse()[0] == empty_lse;
    Partial attended(1, dim);
    attend_rows(q.data(), rows.rows, taken, 0.3F, attended.view());
    merge(given.both.view(), attended.view());
    const auto want =
        reference::attend(rows.exact, q.data(), 0.3, [](std::int64_t) { return true; });
    double apart = 0;
    double size = 0;
    for (std::int64_t j = 0; j < dim; ++j) {
      const auto at = static_cast<std::size_t>(j);
      apart += std::pow(given.both.out()[at] - want.out[at], 2);
      size += want.out[at] * want.out[at];
    }
    off += std::sqrt(apart / size) > 0.2;
  }
  EXPECT_GT(sampled, queries / 2);  // else nothing was tested
  EXPECT_LE(off, queries / 10);
}

TEST(SampleTail, OfAsManyRowsAsThereAreIsExact) {
  const SomeRows rows(900, 24);
  const SampleTail tail({.rows = 900}, rows.rows);
  const auto q = reference::random_floats(24, 3, 1.0F);
  const GivenTail given(tail, q.data(), 24, {50, 850}, some_taken, 0.2F);
  EXPECT_EQ(given.estimate.lse()[0], empty_lse);
  expect_partial(given.exact,
                 reference::attend(rows.exact, q.data(), 0.2,
                                   [](std::int64_t r) {
                                     return r >= 50 && r < 850 &&
                                            std::ranges::count(some_taken, r) == 0;
                                   }),
                 2e-5);
}

TEST(Tails, BringSessionsNearerToDenseAttention) {
  const AttentionShape shape{.layers = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 16};
  const Stream stream(shape, 3040);
  const auto context = stream.prefill(3000)
                           ->with_index("quest:page=16")
                           ->with_index("none")
                           ->with_index("retroinfer:size=16,segment=1000")
                           ->with_index("sparq:r=8,v=1")
                           ->with_index("pages:size=16")
                           ->with_index("sample:rows=200");
  const auto error = [&](const std::string& index, const std::string& tail) {
    Session session(context, {.index = index, .k = TopK::same(32), .tail = tail, .window = 64});
    const auto outs = stream.feed(session, 3040, 1);
    double apart = 0;
    double size = 0;
    for (std::int64_t p = 3000; p < 3040; ++p) {
      for (std::int64_t h = 0; h < 4; ++h) {
        const auto want = reference::attend(stream.rows(0, h / 2, p + 1),
                                            &stream.q[0][p * stream.q_width() + h * 16], 0.25,
                                            [](std::int64_t) { return true; });
        for (std::int64_t j = 0; j < 16; ++j) {
          const double have =
              outs[0][static_cast<std::size_t>((p - 3000) * stream.q_width() + h * 16 + j)];
          apart += std::pow(have - want.out[static_cast<std::size_t>(j)], 2);
          size += std::pow(want.out[static_cast<std::size_t>(j)], 2);
        }
      }
    }
    return std::sqrt(apart / size);
  };
  for (const char* index : {"exact", "quest:page=16"}) {
    const double without = error(index, "none");
    for (const char* tail :
         {"pages:size=16", "sample:rows=200", "sparq:r=8,v=1", "retroinfer:size=16,segment=1000"}) {
      EXPECT_LT(error(index, tail), 0.8 * without) << index << " " << tail;
    }
  }
  EXPECT_LT(error("none", "pages:size=16"), 1);
}

TEST(None, AttendsSinksAndWindowAlone) {
  const AttentionShape shape{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16};
  const Stream stream(shape, 700);
  const auto context = stream.prefill(600)->with_index("none");
  const RetrievalOptions options{.index = "none", .window = 40, .sinks = 3};
  Session session(context, options);
  const auto outs = stream.feed(session, 700, 1);
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    for (const std::int64_t p : {600, 655, 699}) {
      for (std::int64_t h = 0; h < 4; ++h) {
        const auto want = reference::attend(
            stream.rows(layer, h / 2, p + 1), &stream.q[layer][p * stream.q_width() + h * 16], 0.25,
            [&](std::int64_t row) { return row < 3 || row > p - 40; });
        for (std::int64_t j = 0; j < 16; ++j) {
          EXPECT_NEAR(outs[static_cast<std::size_t>(layer)]
                          [static_cast<std::size_t>((p - 600) * stream.q_width() + h * 16 + j)],
                      want.out[static_cast<std::size_t>(j)], test::tolerance);
        }
      }
    }
  }
  EXPECT_EQ(session.stats().rows_retrieved, 0);
}

TEST(Methods, WithAllKeysRetrievedSessionsAreDense) {
  const AttentionShape shape{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16};
  const Stream stream(shape, 560);
  auto context = stream.prefill(500);
  for (const char* spec : {"quest:page=16", "sparq:r=4", "sparq:r=4,v=1", "squeezed:c=5",
                           "retroinfer:size=8,segment=200,v=1", "lowrank:r=4"}) {
    context = context->with_index(spec);
    const RetrievalOptions options{.index = spec, .k = TopK::same(1000), .window = 20, .sinks = 2};
    Session session(context, options);
    const auto outs = stream.feed(session, 560, 7 * 4);
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      for (const std::int64_t p : {500, 530, 555}) {
        test::expect_step(stream, layer, p, options,
                          &outs[static_cast<std::size_t>(layer)]
                               [static_cast<std::size_t>((p - 500) * stream.q_width())]);
      }
    }
  }
}

TEST(Evicting, KeepsTheKeysThatThePrefillAttendedMost) {
  const AttentionShape shape{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16};
  const Stream stream(shape, 1100);
  for (const std::int64_t chunk : {1000, 130}) {  // what is kept does not depend on it
    const auto context = prefilled(stream, 1000, chunk)->with_index("h2o")->with_index("tova");
    for (const std::string spec : {"h2o", "tova"}) {
      for (std::int64_t layer = 0; layer < 2; ++layer) {
        const reference::Rows rows = stream.rows(layer, 1, 1000);
        std::vector<double> sums(1000);
        // Of 1000 tokens every 16th, and the last.
        for (std::int64_t p = spec == "h2o" ? 0 : 999; p < 1000; p += 16) {
          for (std::int64_t h = 2; h < 4; ++h) {
            const float* q = &stream.q[static_cast<std::size_t>(layer)]
                                      [static_cast<std::size_t>(p * stream.q_width() + h * 16)];
            const auto all =
                reference::attend(rows, q, 0.25, [&](std::int64_t r) { return r <= p; });
            for (std::int64_t r = 0; r <= p; ++r) {
              sums[static_cast<std::size_t>(r)] +=
                  std::exp(0.25 * reference::score(rows, q, r) - all.lse);
            }
          }
        }
        std::vector<double> sorted(sums.begin() + 50, sums.begin() + 900);
        std::nth_element(sorted.begin(), sorted.begin() + 39, sorted.end(), std::greater<>());
        const std::vector<float> any(2 * 16, 1.0F);
        const std::vector<PositionRange> ranges = {{50, 900}, {50, 900}};
        SearchResult result;
        context->index(spec, layer, 1).search({any.data(), 2, 16, ranges, 2}, 40, result);
        for (std::int64_t h = 0; h < 2; ++h) {
          EXPECT_EQ(result.positions(h).size(), 40U);
          for (const std::int64_t row : result.positions(h))
            EXPECT_GE(sums[static_cast<std::size_t>(row)], sorted[39] * (1 - 1e-4)) << spec << row;
        }
      }
    }
  }
}

TEST(Squeezed, AThresholdLeavesOutAsManyKeysAsWantedOverAllHeads) {
  const AttentionShape shape{.layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 16};
  const Stream stream(shape, 3000);
  const auto context = prefilled(stream, 3000, 500)
                           ->with_index("squeezed:c=5,s=80")
                           ->with_index("squeezed:c=5,s=95");
  const auto share = [&](const char* spec, std::set<std::size_t>& counts) {
    double found = 0;
    for (std::int64_t layer = 0; layer < 3; ++layer) {
      for (std::int64_t head = 0; head < 2; ++head) {
        for (std::int64_t p = 2900; p < 3000; ++p) {
          const float* q = &stream.q[static_cast<std::size_t>(layer)]
                                    [static_cast<std::size_t>(p * stream.q_width() + head * 32)];
          const std::vector<PositionRange> ranges = {{0, 3000}, {0, 3000}};
          SearchResult result;
          context->index(spec, layer, head).search({q, 2, 16, ranges, 2, 0.25F}, 3000, result);
          for (std::int64_t h = 0; h < 2; ++h) {
            found += static_cast<double>(result.positions(h).size());
            counts.insert(result.positions(h).size());
          }
        }
      }
    }
    return found / (3.0 * 2 * 100 * 2 * 3000);
  };
  std::set<std::size_t> counts;
  EXPECT_NEAR(share("squeezed:c=5,s=80", counts), 0.20, 0.01);
  EXPECT_GT(counts.size(), 20U);  // heads and tokens attend different numbers
  EXPECT_NEAR(share("squeezed:c=5,s=95", counts), 0.05, 0.005);
  // At most k.
  const std::vector<PositionRange> ranges = {{0, 3000}};
  SearchResult result;
  context->index("squeezed:c=5,s=80", 0, 0).search({stream.q[0].data(), 1, 16, ranges}, 7, result);
  EXPECT_LE(result.positions(0).size(), 7U);
}

TEST(Methods, ThatLearnFromQueriesRefuseContextsWithoutThem) {
  const AttentionShape shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16};
  const Stream stream(shape, 300);
  const auto context = stream.prefill(300);
  for (const char* spec : {"h2o", "tova", "squeezed:c=5,s=90"}) {
    try {
      context->with_index(spec);
      FAIL() << spec;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("has no queries"), std::string::npos);
    }
  }
  EXPECT_THROW(prefilled(stream, 300, 300, false)->with_index("h2o"), InvalidArgument);
  ContextBuilder builder(shape, {.capacity = 300, .keep_queries = true});
  std::vector<float> out(static_cast<std::size_t>(300 * stream.q_width()));
  builder.attend(stream.step(0, 0, 300, out.data()));
  builder.truncate(150);  // the last tokens that are left are not those that were kept as such
  const auto taken_back = builder.freeze();
  EXPECT_NO_THROW(taken_back->with_index("h2o"));
  EXPECT_THROW(taken_back->with_index("tova"), InvalidArgument);
}

TEST(Methods, QueriesThatAContextKeepsAreInItsMemory) {
  const AttentionShape shape{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16};
  const Stream stream(shape, 3000);
  EXPECT_EQ(stream.prefill(300)->memory().queries_bytes, 0);
  EXPECT_EQ(prefilled(stream, 300, 100, false)->memory().queries_bytes, 0);
  for (const std::int64_t tokens : {100, 3000}) {
    const auto context = prefilled(stream, tokens, 500);
    // The last 128 tokens', and of those before them every 16th.
    const std::int64_t kept = tokens == 100 ? 100 : 128 + (3000 - 128) / 16;
    const std::int64_t each = 2 * (4 * 16 * 4 + 8);  // layers; float32 queries and a position
    EXPECT_GE(context->memory().queries_bytes, kept * each) << tokens;
    EXPECT_LE(context->memory().queries_bytes, (kept + 2) * each + 512) << tokens;
    const auto with = context->with_index("tova");
    EXPECT_EQ(with->memory().queries_bytes, context->memory().queries_bytes);
  }
}

TEST(None, NeedsNoIndexWhereAllLayersHaveWindows) {
  AttentionShape shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16};
  shape.sliding_window = {8};
  const Stream stream(shape, 60);
  Session session(stream.prefill(50), {.index = "codes:k=16"});
  EXPECT_NO_THROW(stream.feed(session, 60, 5));
}

TEST(Tails, AloneAreNoIndices) {
  for (const char* spec : {"pages:size=16", "sample:rows=8"}) {
    EXPECT_TRUE(IndexSpec(spec).has_tail());
    EXPECT_THROW(make_index(spec), InvalidArgument);
  }
}

}  // namespace
}  // namespace topkv
