// The tail `mean`, against float64: rows that were not found have the mass that keys' codes tell
// and the mean of all values; contexts that have such codes do not make them again; and a session
// with it is nearer to dense attention than one without.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "tests/index/coded_rows.h"
#include "tests/support/reference.h"
#include "tests/support/stream.h"
#include "topkv/error.h"
#include "topkv/index_spec.h"
#include "topkv/key_index.h"
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

constexpr CodesParams mean_params{.key_bytes = 16, .value_bytes = 0};

TEST(MeanTail, IsTheMeanOfAllValuesWithTheMassThatKeysCodesTell) {
  for (const std::int64_t dim : {7, 64, 128, 256}) {
    // More rows than one thread takes at a time, once.
    const Coded coded(dim == 7 ? 70000 : 3001, dim, mean_params);
    const reference::Rows rows = coded.decoded();
    const std::vector<double> mean = coded.mean_value();
    double reach = 0;  // from the mean to the value that is furthest
    for (std::int64_t r = 0; r < coded.count; ++r) {
      double square = 0;
      for (std::int64_t j = 0; j < dim; ++j) {
        square += std::pow(
            coded.values[static_cast<std::size_t>(r * dim + j)] - mean[static_cast<std::size_t>(j)],
            2);
      }
      reach = std::max(reach, std::sqrt(square));
    }
    const TailQueries of(coded);
    for (const float softcap : {0.0F, 3.0F}) {
      Partial out(of.count, dim);
      attend(*coded.tail, {of.q.data(), of.count, dim, of.allowed}, of.spans, of.ceilings, of.scale,
             softcap, out.view());
      for (std::int64_t i = 0; i < of.count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const float* query = of.q.data() + i * dim;
        SlotWeights weights;
        coded.index->coder().weigh_slots(query, weights);
        // Coefficients are off by up to half a step each, and so is the table of corrections.
        const double rounding =
            of.scale * 3 * static_cast<double>(coded.index->coder().bytes()) * weights.step + 2e-3;
        const double variance =
            softcap > 0 ? 0.0
                        : of.scale * of.scale *
                              static_cast<double>(coded.index->coder().error_variance(query));
        const Tail want = expected(coded, rows, query, of.scale, softcap, variance, of.ceilings[at],
                                   of.allowed[at], of.taken[at]);
        EXPECT_NEAR(out.lse()[at], want.lse, rounding) << dim << " query " << i;
        // Rare rows have a share w of the mass; it is off by up to w (1 - w) <= 1 / 4 of the error
        // of the others' mass, and shifts the output by that part of the way between the two.
        double off = 0;
        for (std::int64_t j = 0; j < dim; ++j) {
          off += std::pow(out.out()[static_cast<std::size_t>(i * dim + j)] -
                              want.out[static_cast<std::size_t>(j)],
                          2);
        }
        EXPECT_LT(std::sqrt(off), reach * (rounding / 4 + 1e-5)) << dim << " query " << i;
      }
    }
  }
}

TEST(MeanTail, LeavesNoValueOutOfTheMean) {
  constexpr std::int64_t dim = 3;
  std::vector<float> values = reference::random_floats(200000 * dim, 5, 1.0F);
  values[123457 * dim + 1] = 1e6F;
  const KeyView view{reinterpret_cast<const std::byte*>(values.data()), DType::f32, 200000, dim,
                     dim * 4};
  const ValueCoder coder(view, 0);
  std::vector<double> want(dim);
  for (std::size_t i = 0; i < values.size(); ++i) want[i % dim] += values[i] / 200000.0;
  std::vector<float> got(dim);
  coder.decode(nullptr, 0, got.data());
  for (std::size_t j = 0; j < dim; ++j) EXPECT_NEAR(got[j], want[j], 1e-6 * (1 + want[j])) << j;
  EXPECT_EQ(coder.bytes_for(200000), 0);
  EXPECT_LT(coder.memory(), 100);
}

TEST(MeanTail, WhatIsTakenAndTheRestAreTwoPartsOfOneSum) {
  constexpr std::int64_t dim = 48;
  const Coded coded(5000, dim, mean_params);
  const auto q = reference::random_floats(dim, 3, 1.0F);
  const PositionRange all{0, coded.count};
  const auto tail_without = [&](const std::vector<std::int64_t>& taken) {
    const std::span<const std::int64_t> span(taken);
    Partial out(1, dim);
    attend(*coded.tail, {q.data(), 1, dim, {&all, 1}}, {&span, 1}, {&no_ceiling, 1}, 0.3F, 0,
           out.view());
    return out;
  };
  std::vector<std::int64_t> every(5000);
  std::iota(every.begin(), every.end(), 0);
  EXPECT_EQ(tail_without(every).lse()[0], empty_lse);
  std::vector<std::int64_t> some;
  std::vector<std::int64_t> others;
  for (std::int64_t i = 0; i < 5000; ++i) (i % 7 == 3 || i < 1100 ? some : others).push_back(i);
  Partial whole = tail_without({});
  Partial parts = tail_without(some);
  Partial rest = tail_without(others);
  merge(parts.view(), rest.view());
  EXPECT_NEAR(parts.lse()[0], whole.lse()[0], 1e-5);
  for (std::size_t j = 0; j < dim; ++j) EXPECT_NEAR(parts.out()[j], whole.out()[j], 1e-4) << j;
}

TEST(MeanTail, NoRowsAndHugeRowsGiveNoNonsense) {
  const std::vector<float> q(16, 1.0F);
  const PositionRange all{0, 1000};
  const std::span<const std::int64_t> none;
  const auto tail_of = [&](const RowsView& rows, const PositionRange& range) {
    CodesIndex index(mean_params);
    index.add(rows.keys, {});
    index.build({});
    const CodeTail tail(index, rows, 0, {});
    Partial out(1, 16);
    attend(tail, {q.data(), 1, 16, {&range, 1}}, {&none, 1}, {&no_ceiling, 1}, 1, 0, out.view());
    return out;
  };
  for (const float key_size : {0.0F, 1e-30F, 1e10F, 1e30F}) {
    for (const float value_size : {0.0F, 1e-38F, 3e37F}) {
      Coded coded(1000, 16, mean_params, key_size);
      for (float& x : coded.values) x *= value_size;
      Partial out = tail_of(coded.rows, all);
      EXPECT_FALSE(std::isnan(out.lse()[0])) << key_size;
      for (const float x : out.out())
        EXPECT_TRUE(std::isfinite(x)) << key_size << " " << value_size;
    }
  }
  Coded coded(1, 16, mean_params);
  Partial one = tail_of(coded.rows, all);
  for (std::size_t j = 0; j < 16; ++j) EXPECT_FLOAT_EQ(one.out()[j], coded.values[j]);
  EXPECT_EQ(tail_of(coded.rows, {0, 0}).lse()[0], empty_lse);
  coded.rows = coded.rows.part({0, 0});
  EXPECT_EQ(tail_of(coded.rows, all).lse()[0], empty_lse);
}

TEST(MeanTail, ValuesThatAreNotFiniteAreRefusedAndAStopEndsIt) {
  Coded coded(100, 16, mean_params);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_THROW(CodeTail(*coded.index, coded.rows, 0, stop.get_token()), Stopped);
  coded.values[777] = std::numeric_limits<float>::infinity();
  EXPECT_THROW(CodeTail(*coded.index, coded.rows, 0, {}), InvalidArgument);
}

TEST(MeanSpec, IsATailAndNoIndex) {
  const IndexSpec mean("mean");
  EXPECT_EQ(mean.text(), "mean");
  EXPECT_TRUE(mean.has_tail());
  EXPECT_FALSE(mean.grows());
  EXPECT_EQ(mean, IndexSpec("mean"));
  EXPECT_NE(mean, IndexSpec("codes:k=16,v=0"));
  EXPECT_NO_THROW(mean.check(1024, 0));
  EXPECT_THROW(mean.check(1025, 0), InvalidArgument);
  EXPECT_THROW(mean.check_index(), InvalidArgument);
  EXPECT_THROW(mean.make(), InvalidArgument);
  EXPECT_THROW(make_index("mean"), InvalidArgument);
  for (const char* spec : {"exact", "codes:v=0", "hnsw"})
    EXPECT_NO_THROW(IndexSpec(spec).check_index());
  for (const char* spec : {"mean:", "mean:k=16", "Mean", "means", " mean"}) {
    EXPECT_THROW(IndexSpec{spec}, InvalidArgument) << spec;
  }
}

const AttentionShape mean_shape{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 16};

TEST(MeanContext, SharesKeysCodesOf16BytesAndCountsThemOnce) {
  AttentionShape shape = mean_shape;
  shape.layers = 3;
  shape.sliding_window = {8, 0, 0};  // the first layer has no index
  const Stream stream(shape, 3000);
  const auto plain = stream.prefill(3000);
  const std::int64_t before = plain->memory().index_bytes;
  const auto mean = plain->with_index("mean");
  const std::int64_t alone = mean->index_memory("mean");
  EXPECT_GT(alone, 8 * 3000 * 4);  // 4 bits for each of 16 dims, of 4 heads
  EXPECT_LT(alone, 9 * 3000 * 4 + 20000);
  EXPECT_EQ(mean->memory().index_bytes - before, alone);
  EXPECT_EQ(mean->indices(), (std::vector<std::string>{"exact", "mean"}));
  EXPECT_TRUE(mean->has_index("mean"));
  EXPECT_EQ(mean->with_index("mean")->indices(), mean->indices());
  for (const char* spec : {"codes", "codes:k=16,v=0", "codes:v=16"}) {
    const auto codes = plain->with_index(spec);
    std::vector<Progress> reports;
    const auto both = codes->with_index("mean", [&](const Progress& p) { reports.push_back(p); });
    EXPECT_EQ(&both->index(spec, 1, 0), &both->index("mean", 1, 0)) << spec;
    EXPECT_EQ(&both->index(spec, 2, 1), &both->index("mean", 2, 1)) << spec;
    EXPECT_EQ(both->index_memory("mean"), alone) << spec;
    const std::int64_t shared_errors = 4 * 16 * 16 * 4;  // of 4 heads of 16 dims, float32
    EXPECT_LT(both->memory().index_bytes - codes->memory().index_bytes, shared_errors + 4 * 1000)
        << spec;
    EXPECT_GT(both->memory().index_bytes, codes->memory().index_bytes) << spec;
    EXPECT_EQ(reports.back().done, reports.back().total);
  }
  const auto later = mean->with_index("codes");
  EXPECT_EQ(&later->index("codes", 1, 0), &later->index("mean", 1, 0));
  EXPECT_EQ(later->index("codes", 1, 0).spec(), "codes:k=16,v=8");
  EXPECT_EQ(later->memory().index_bytes,
            plain->with_index("codes")->with_index("mean")->memory().index_bytes);
  const auto others = plain->with_index("codes:k=8,v=0")->with_index("hnsw")->with_index("mean");
  EXPECT_EQ(others->index_memory("mean"), alone);
  EXPECT_NE(&others->index("codes:k=8,v=0", 1, 0), &others->index("mean", 1, 0));
}

void expect_mean_nearer(const Stream& stream, double most, double times) {
  const auto context =
      stream.prefill(3000)->with_index("codes:k=8,v=0")->with_index("hnsw")->with_index("mean");
  Session dense(context, {.dense_layers = 2});
  const auto want = stream.feed(dense, 3060, 20);
  for (const char* index : {"exact", "hnsw", "codes:k=8,v=0"}) {
    for (const SelectBy by : {SelectBy::query_head, SelectBy::group}) {
      RetrievalOptions options{
          .index = index, .k = TopK::same(32), .select_by = by, .tail = "none", .window = 16};
      Session without(context, options);
      options.tail = "mean";
      Session with(context, options);
      EXPECT_EQ(with.options().tail, "mean");
      const double far = distance(stream.feed(without, 3060, 20), want);
      const double near = distance(stream.feed(with, 3060, 20), want);
      EXPECT_LT(near, most) << index << ", without " << far;
      EXPECT_LT(near, far / times) << index << ", without " << far;
    }
  }
}

TEST(SessionMeanTail, BringsASessionNearToDenseAttentionWhateverSelects) {
  Stream stream(mean_shape, 3060);
  for (std::size_t l = 0; l < stream.v.size(); ++l) {  // values of chance around a mean
    for (std::size_t i = 0; i < stream.v[l].size(); ++i) {
      stream.v[l][i] += reference::as_bf16(std::sin(static_cast<float>(i % 32)));
    }
  }
  expect_mean_nearer(stream, 0.5, 1.5);
}

TEST(SessionMeanTail, IsTheSameWhereverTheKeysCodesComeFrom) {
  const Stream stream(mean_shape, 1340);
  const auto own = stream.prefill(1300)->with_index("mean");
  const auto shared = stream.prefill(1300)->with_index("codes")->with_index("mean");
  const RetrievalOptions options{.k = TopK::same(8), .tail = "mean", .window = 10};
  Session a(own, options);
  Session b(shared, options);
  EXPECT_EQ(stream.feed(a, 1340, 1), stream.feed(b, 1340, 1));
}

TEST(SessionMeanTail, AllKeysRetrievedEqualsDense) {
  const Stream stream(mean_shape, 440);
  for (const std::int64_t tokens : {0, 1, 400}) {
    const auto context = stream.prefill(tokens)->with_index("codes")->with_index("mean");
    for (const char* index : {"exact", "codes"}) {
      Session dense(context, {.dense_layers = 2});
      Session all(
          context,
          {.index = index, .k = TopK::same(100000), .tail = "mean", .window = 16, .sinks = 2});
      const std::int64_t end = tokens + 40;
      EXPECT_LT(distance(stream.feed(all, end, 1), stream.feed(dense, end, 1)), 1e-5) << tokens;
    }
  }
}

TEST(SessionMeanTail, OwnTokensAreAllAttendedAndStepsOfAnySizeGiveTheSame) {
  const Stream stream(mean_shape, 1360);
  const auto empty = stream.prefill(0)->with_index("mean");
  Session dense(empty, {.dense_layers = 2});
  Session with(empty, {.k = TopK::same(1), .tail = "mean", .window = 5});
  EXPECT_LT(distance(stream.feed(with, 200, 9), stream.feed(dense, 200, 9)), 1e-5);

  const auto context = stream.prefill(1300)->with_index("mean");
  const RetrievalOptions options{.k = TopK::same(8), .tail = "mean", .window = 10, .sinks = 3};
  Session one(context, options);
  const auto want = stream.feed(one, 1360, 1);
  for (const std::int64_t step : {7, 60}) {
    Session many(context, options);
    EXPECT_LT(distance(stream.feed(many, 1360, step), want), 1e-4) << step;
  }
}

TEST(SessionMeanTail, MustBeThereAndIsNoIndex) {
  const Stream stream(mean_shape, 100);
  const auto without = stream.prefill(100)->with_index("codes");
  EXPECT_THROW(Session(without, {.tail = "mean"}), InvalidArgument);
  const auto context = without->with_index("mean");
  EXPECT_EQ(Session(context, {.index = "codes"}).options().tail, "codes:k=16,v=8");
  EXPECT_EQ(Session(context, {.index = "codes", .tail = "mean"}).options().tail, "mean");
  EXPECT_EQ(Session(context, {}).options().tail, "none");
  EXPECT_THROW(Session(context, {.index = "mean"}), InvalidArgument);
}

}  // namespace
}  // namespace topkv
