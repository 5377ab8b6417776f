// The laws of partials, and both host attention routines against float64.
#include "topkv/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <ostream>
#include <random>

#include "src/attention/arriving_rows.h"
#include "src/attention/block_attention.h"
#include "src/attention/merge_parts.h"
#include "src/core/math/convert.h"
#include "src/store/row_store.h"
#include "tests/support/reference.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using reference::random_bf16;
using reference::random_floats;

// Both sides round each product and each sum to float32: errors grow with the square root of the
// number of terms, here at most a few thousand, times 2^-24 of the largest term.
constexpr double tolerance = 2e-5;

/// Rows of several KV heads in a store and as float64.
struct Fixture {
  Fixture(AttentionShape s, std::int64_t tokens, unsigned seed, float size = 1.0F)
      : shape(std::move(s)), store(shape, DType::bf16, tokens, 0, "test") {
    const std::int64_t width = shape.kv_heads * shape.head_dim;
    const auto k = random_bf16(tokens * width, seed, size);
    const auto v = random_bf16(tokens * width, seed + 1);
    store.append(
        0, TensorView::tokens_first(k.data(), DType::f32, tokens, shape.kv_heads, shape.head_dim),
        TensorView::tokens_first(v.data(), DType::f32, tokens, shape.kv_heads, shape.head_dim));
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      reference::Rows rows;
      rows.dim = shape.head_dim;
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t j = 0; j < shape.head_dim; ++j) {
          rows.keys.push_back(k[(t * shape.kv_heads + h) * shape.head_dim + j]);
          rows.values.push_back(v[(t * shape.kv_heads + h) * shape.head_dim + j]);
        }
      }
      heads.push_back(std::move(rows));
    }
  }
  AttentionShape shape;
  RowStore store;
  std::vector<reference::Rows> heads;
};

void expect_equal(const reference::Result& want, const float* out, float lse) {
  if (std::isinf(want.lse)) {
    EXPECT_EQ(lse, empty_lse);
  } else {
    EXPECT_NEAR(lse, want.lse, tolerance * (1 + std::abs(want.lse)));
  }
  for (std::size_t j = 0; j < want.out.size(); ++j)
    EXPECT_NEAR(out[j], want.out[j], tolerance) << j;
}

Partial random_partial(std::int64_t heads, std::int64_t dim, unsigned seed) {
  Partial partial(heads, dim);
  const auto out = random_floats(heads * dim, seed);
  const auto lse = random_floats(heads, seed + 1, 30.0F);
  std::copy(out.begin(), out.end(), partial.view().out);
  std::copy(lse.begin(), lse.end(), partial.view().lse);
  return partial;
}

void expect_near(const Partial& a, const Partial& b) {
  for (std::size_t i = 0; i < a.out().size(); ++i) EXPECT_NEAR(a.out()[i], b.out()[i], 1e-5);
  for (std::size_t i = 0; i < a.lse().size(); ++i) {
    if (a.lse()[i] == b.lse()[i]) continue;  // both empty, for one
    EXPECT_NEAR(a.lse()[i], b.lse()[i], 1e-5 * 60);
  }
}

TEST(Merge, IsCommutative) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    Partial ab = random_partial(3, 20, seed);
    Partial ba = random_partial(3, 20, seed + 100);
    Partial a = random_partial(3, 20, seed);
    merge(ab.view(), ba.view());
    merge(ba.view(), a.view());
    expect_near(ab, ba);
  }
}

TEST(Merge, IsAssociative) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    Partial left = random_partial(3, 20, seed);
    Partial b = random_partial(3, 20, seed + 100);
    Partial c = random_partial(3, 20, seed + 200);
    Partial a = random_partial(3, 20, seed);
    merge(left.view(), b.view());
    merge(left.view(), c.view());  // (a b) c
    merge(b.view(), c.view());
    merge(a.view(), b.view());  // a (b c)
    expect_near(left, a);
  }
}

TEST(Merge, EmptyPartialIsTheIdentityFromBothSides) {
  const Partial a = random_partial(3, 20, 7);
  Partial left = random_partial(3, 20, 7);
  Partial empty(3, 20);
  merge(left.view(), empty.view());
  EXPECT_TRUE(std::equal(a.out().begin(), a.out().end(), left.out().begin()));
  merge(empty.view(), left.view());
  EXPECT_TRUE(std::equal(a.out().begin(), a.out().end(), empty.out().begin()));
  EXPECT_TRUE(std::equal(a.lse().begin(), a.lse().end(), empty.lse().begin()));
  Partial both(3, 20);
  merge(both.view(), Partial(3, 20).view());
  EXPECT_EQ(both.lse()[0], empty_lse);
  EXPECT_EQ(both.out()[0], 0.0F);
}

TEST(Merge, OfManyAtOnceIsThatOfOneAfterTheOther) {
  for (const std::int64_t count : {0, 1, 2, 7, 40}) {
    for (const bool begun : {false, true}) {
      Partial one = begun ? random_partial(3, 20, 5) : Partial(3, 20);
      Partial all = begun ? random_partial(3, 20, 5) : Partial(3, 20);
      std::vector<float> outs;
      std::vector<float> lses;
      for (std::int64_t i = 0; i < count; ++i) {
        Partial part =
            i == 2 ? Partial(3, 20) : random_partial(3, 20, 50 + static_cast<unsigned>(i));
        merge(one.view(), part.view());
        outs.insert(outs.end(), part.out().begin(), part.out().end());
        lses.insert(lses.end(), part.lse().begin(), part.lse().end());
      }
      // Nothing is read of what is empty.
      for (std::size_t i = 0; i < outs.size(); ++i)
        if (lses[i / 20] == empty_lse) outs[i] = std::nanf("");
      if (!begun && count > 0) std::fill_n(all.view().out, 3 * 20, std::nanf(""));
      merge_parts(all.view(), {outs.data(), lses.data(), count * 3, 20});
      expect_near(one, all);
    }
  }
}

TEST(Merge, DifferentShapesAreRefused) {
  Partial a(3, 20);
  Partial b(2, 20);
  EXPECT_THROW(merge(a.view(), b.view()), InvalidArgument);
}

TEST(AttendRows, EqualsFloat64ForAnyNumberOfRows) {
  const Fixture f({.layers = 1, .q_heads = 3, .kv_heads = 1, .head_dim = 80}, 700, 1, 2.0F);
  const auto q = random_floats(3 * 80, 9);
  for (const std::int64_t count : {0, 1, 5, 255, 256, 257, 700}) {
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < count; ++i) positions.push_back((i * 37) % 700);  // any order
    Partial out = random_partial(3, 80, 3);  // what was there must not matter
    attend_rows(q.data(), f.store.rows(0, 0), positions, 0.2F, out.view());
    for (std::int64_t h = 0; h < 3; ++h) {
      const auto want = reference::attend(f.heads[0], &q[h * 80], 0.2F, [&](std::int64_t r) {
        return std::find(positions.begin(), positions.end(), r) != positions.end();
      });
      expect_equal(want, out.out().data() + h * 80, out.lse()[h]);
    }
  }
}

TEST(AttendRows, CapsScoresAsFloat64Does) {
  const Fixture f({.layers = 1, .q_heads = 3, .kv_heads = 1, .head_dim = 80}, 700, 1, 2.0F);
  const auto q = random_floats(3 * 80, 9);
  std::vector<std::int64_t> all(700);
  std::iota(all.begin(), all.end(), 0);
  for (const float softcap : {50.0F, 2.0F, 0.01F}) {  // hardly bent, bent, two values alone
    Partial out = random_partial(3, 80, 3);
    attend_rows(q.data(), f.store.rows(0, 0), all, 0.2F, out.view(), softcap);
    for (std::int64_t h = 0; h < 3; ++h) {
      const auto want = reference::attend(
          f.heads[0], &q[h * 80], 0.2F, [](std::int64_t) { return true; }, softcap);
      expect_equal(want, out.out().data() + h * 80, out.lse()[h]);
    }
  }
}

TEST(AttendRows, PartialsOverAnySplitMergeIntoTheWhole) {
  const Fixture f({.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 64}, 500, 5, 2.0F);
  const auto q = random_floats(2 * 64, 6);
  std::vector<std::int64_t> all(500);
  std::iota(all.begin(), all.end(), 0);
  Partial whole(2, 64);
  attend_rows(q.data(), f.store.rows(0, 0), all, 0.3F, whole.view());
  for (const std::size_t cut : {1U, 100U, 499U}) {
    Partial head(2, 64);
    Partial tail(2, 64);
    attend_rows(q.data(), f.store.rows(0, 0), std::span(all).first(cut), 0.3F, head.view());
    attend_rows(q.data(), f.store.rows(0, 0), std::span(all).subspan(cut), 0.3F, tail.view());
    merge(head.view(), tail.view());
    for (std::size_t i = 0; i < 128; ++i) EXPECT_NEAR(head.out()[i], whole.out()[i], tolerance);
    EXPECT_NEAR(head.lse()[0], whole.lse()[0], 1e-4);
  }
}

TEST(AttendRows, HugeScoresDoNotOverflow) {
  const Fixture f({.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 64}, 300, 5, 1000.0F);
  const auto q = random_floats(64, 6, 1000.0F);
  std::vector<std::int64_t> all(300);
  std::iota(all.begin(), all.end(), 0);
  Partial out(1, 64);
  attend_rows(q.data(), f.store.rows(0, 0), all, 1.0F, out.view());
  const auto want = reference::attend(f.heads[0], q.data(), 1.0, [](std::int64_t) { return true; });
  for (std::size_t j = 0; j < 64; ++j) EXPECT_NEAR(out.out()[j], want.out[j], 1e-3);
}

struct Case {
  std::int64_t group, head_dim, tokens, rows, first, window, sinks;
  float softcap = 0;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << "group " << c.group << ", head_dim " << c.head_dim << ", tokens " << c.tokens << ", rows "
       << c.rows << ", first " << c.first << ", window " << c.window << ", sinks " << c.sinks
       << ", softcap " << c.softcap;
}

class AttendTokens : public testing::TestWithParam<Case> {};

TEST_P(AttendTokens, EqualsFloat64) {
  const Case c = GetParam();
  const AttentionShape shape{.layers = 1,
                             .q_heads = 2 * c.group,
                             .kv_heads = 2,
                             .head_dim = c.head_dim,
                             .softcap = c.softcap};
  const Fixture f(shape, c.rows, 11, 1.5F);
  const std::int64_t width = shape.q_heads * c.head_dim;
  const auto q = random_floats(c.tokens * width, 12);
  const CausalWindow visible{c.window, c.sinks};
  const std::vector<RowSpan> spans = {{f.store.rows(0, 0), c.first}, {f.store.rows(0, 1), c.first}};
  const std::int64_t q_first = c.first + c.rows - c.tokens;
  Partial out(c.tokens * shape.q_heads, c.head_dim);
  attend_tokens(shape, {q.data(), c.tokens, shape.q_heads, c.head_dim, q_first}, visible, spans,
                out.view());
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const std::int64_t p = q_first + t;
    for (std::int64_t h = 0; h < shape.q_heads; ++h) {
      const auto want = reference::attend(
          f.heads[static_cast<std::size_t>(h / c.group)], &q[t * width + h * c.head_dim],
          shape.softmax_scale(),
          [&](std::int64_t row) {
            const std::int64_t x = c.first + row;
            return x <= p && (c.window == 0 || x < c.sinks || x > p - c.window);
          },
          c.softcap);
      const std::int64_t at = t * shape.q_heads + h;
      expect_equal(want, out.out().data() + at * c.head_dim, out.lse()[at]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttendTokens,
    testing::Values(Case{3, 64, 1, 1, 0, 0, 0},        // one key
                    Case{3, 64, 200, 200, 0, 0, 0},    // dense from the start
                    Case{1, 8, 70, 600, 0, 0, 0},      // dense, later tokens
                    Case{3, 64, 300, 700, 0, 50, 4},   // window and sinks
                    Case{2, 80, 300, 300, 0, 50, 4},   // sinks inside the window
                    Case{2, 80, 90, 400, 0, 1, 0},     // each sees itself only
                    Case{2, 80, 90, 400, 0, 1, 300},   // more sinks than window
                    Case{16, 96, 30, 310, 0, 100, 2},  // wide group
                    Case{1, 256, 9, 40, 0, 0, 3},      // sinks without a window
                    Case{3, 64, 40, 40, 5000, 64, 4},  // rows of a later span
                    Case{3, 64, 40, 600, 5000, 64, 4}, Case{3, 64, 300, 700, 0, 0, 0, 1.5F},
                    Case{2, 80, 90, 400, 0, 50, 4, 0.2F}));

/// Rows that arrive in any order, and are scored at any time, are attended as attend_rows does.
TEST(ArrivingRows, AttendAsIfTheyHadBeenThereInOrder) {
  for (const std::int64_t heads : {1, 4, 7}) {
    const Fixture f({.layers = 1, .q_heads = heads, .kv_heads = 1, .head_dim = 48}, 300, 5);
    const auto q = random_floats(heads * 48, 9);
    ArrivingRows arriving;
    Partial want(heads, 48);
    Partial got(heads, 48);
    for (const std::size_t count : {0U, 1U, 3U, 4U, 5U, 63U, 64U, 65U, 200U}) {
      std::vector<std::int64_t> positions(300);
      std::iota(positions.begin(), positions.end(), 0);
      std::mt19937 random(static_cast<unsigned>(count));
      std::ranges::shuffle(positions, random);
      positions.resize(count);
      const ArrivingRows::Queries queries{q.data()};
      arriving.begin({&queries, 1}, heads, f.store.rows(0, 0));
      for (std::size_t i = 0; i < count; ++i) {
        arriving.add(positions[i]);
        if (i % 11 == 10) {
          while (arriving.score_some()) continue;
        }
      }
      arriving.attend(0.2F, 5.0F, got.view());
      std::ranges::sort(positions);
      EXPECT_TRUE(std::ranges::equal(arriving.positions(), positions));
      attend_rows(q.data(), f.store.rows(0, 0), positions, 0.2F, want.view(), 5.0F);
      EXPECT_TRUE(std::ranges::equal(got.out(), want.out())) << count;
      EXPECT_TRUE(std::ranges::equal(got.lse(), want.lse())) << count;
    }
  }
}

/// Each row meets the query of its range: the merge of what these give by themselves.
TEST(ArrivingRows, MeetTheQueriesOfTheirRanges) {
  constexpr std::int64_t heads = 3;
  constexpr std::int64_t dim = 48;
  const Fixture f({.layers = 1, .q_heads = heads, .kv_heads = 1, .head_dim = dim}, 300, 5);
  const auto q = random_floats(query_forms * heads * dim, 9);
  const std::array<PositionRange, query_forms> ranges{{{170, 400}, {60, 170}, {0, 60}}};
  std::array<ArrivingRows::Queries, query_forms> queries;
  for (std::size_t i = 0; i < queries.size(); ++i) queries[i] = {&q[i * heads * dim], ranges[i]};
  std::vector<std::int64_t> positions(300);
  std::iota(positions.begin(), positions.end(), 0);
  std::mt19937 random(1);
  std::ranges::shuffle(positions, random);
  positions.resize(101);
  ArrivingRows arriving;
  Partial got(heads, dim);
  for (const std::size_t forms : {1U, 2U, 3U}) {  // the last takes all others
    arriving.begin(std::span(queries).first(forms), heads, f.store.rows(0, 0));
    for (std::size_t i = 0; i < positions.size(); ++i) {
      arriving.add(positions[i]);
      if (i % 7 == 6) arriving.score_some();
    }
    arriving.attend(0.2F, 0, got.view());
    Partial want(heads, dim);
    for (std::size_t i = 0; i < forms; ++i) {
      std::vector<std::int64_t> some;
      std::ranges::copy_if(positions, std::back_inserter(some), [&](std::int64_t x) {
        const bool last = i + 1 == forms;
        return last ? x < (i == 0 ? 300 : ranges[i - 1].begin) : ranges[i].contains(x);
      });
      std::ranges::sort(some);
      Partial part(heads, dim);
      attend_rows(queries[i].data, f.store.rows(0, 0), some, 0.2F, part.view());
      merge(want.view(), part.view());
    }
    for (std::size_t i = 0; i < got.out().size(); ++i)
      EXPECT_NEAR(got.out()[i], want.out()[i], 1e-5F) << forms << " " << i;
    for (std::size_t h = 0; h < heads; ++h) EXPECT_NEAR(got.lse()[h], want.lse()[h], 1e-5F);
  }
}

TEST(AttendTokens, RowsOutsideEveryWindowGiveTheEmptyPartial) {
  const AttentionShape shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16};
  const Fixture f(shape, 100, 1);
  const auto q = random_floats(2 * 16, 2);
  const RowSpan span{f.store.rows(0, 0), 0};
  Partial out = random_partial(2, 16, 1);
  attend_tokens(shape, {q.data(), 1, 2, 16, 5000}, {64, 0}, {&span, 1}, out.view());
  EXPECT_EQ(out.lse()[0], empty_lse);
  for (const float x : out.out()) EXPECT_EQ(x, 0.0F);
}

TEST(AttendTokens, DenseOverManyRowsIsSplitAndStillEqualsFloat64) {
  const AttentionShape shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 8};
  const std::int64_t rows = 3 * 65536 + 17;  // more than the rows of three tasks
  const Fixture f(shape, rows, 3, 2.0F);
  const auto q = random_floats(2 * 2 * 8, 4);
  const RowSpan span{f.store.rows(0, 0), 0};
  Partial out(4, 8);
  attend_tokens(shape, {q.data(), 2, 2, 8, rows - 2}, {}, {&span, 1}, out.view());
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto want = reference::attend(f.heads[0], &q[i * 8], shape.softmax_scale(),
                                        [&](std::int64_t x) { return x <= rows - 2 + i / 2; });
    expect_equal(want, out.out().data() + i * 8, out.lse()[i]);
  }
}

}  // namespace
}  // namespace topkv
