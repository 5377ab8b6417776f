// The tail `mean`, against float64: rows that were not found have the mass that keys' codes tell
// and the mean of all values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <stop_token>
#include <vector>

#include "tests/coded_rows.h"
#include "tests/reference.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::Coded;
using test::expected;
using test::no_ceiling;
using test::Tail;

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
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    constexpr std::int64_t queries = 3;
    const auto q = reference::random_floats(queries * dim, 7, 1.0F);
    const std::vector<PositionRange> allowed = {
        {0, coded.count}, {5, coded.count - 77}, {1300, 1311}};
    const std::vector<std::set<std::int64_t>> taken = {{}, {5, 6, 100, 2000, 2923}, {1305}};
    std::vector<std::vector<std::int64_t>> lists;
    std::vector<std::span<const std::int64_t>> spans;
    for (const auto& set : taken) lists.emplace_back(set.begin(), set.end());
    for (const auto& list : lists) spans.emplace_back(list);
    const std::vector<float> ceilings = {no_ceiling, 1.0F, 0.4F};
    for (const float softcap : {0.0F, 3.0F}) {
      Partial out(queries, dim);
      coded.tail->attend({q.data(), queries, dim, allowed}, spans, ceilings, scale, softcap,
                         out.view());
      for (std::int64_t i = 0; i < queries; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const float* query = q.data() + i * dim;
        CodeTables tables;
        coded.index->coder().make_tables(query, tables);
        // Entries of the tables are off by up to half a step each, and the table of corrections.
        const double rounding =
            scale * static_cast<double>(coded.index->coder().bytes()) * tables.step + 2e-3;
        const double variance =
            softcap > 0
                ? 0.0
                : scale * scale * static_cast<double>(coded.index->coder().error_variance(query));
        const Tail want = expected(coded, rows, query, scale, softcap, variance, ceilings[at],
                                   allowed[at], taken[at]);
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
    coded.tail->attend({q.data(), 1, dim, {&all, 1}}, {&span, 1}, {&no_ceiling, 1}, 0.3F, 0,
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
    index.add(rows.keys(), {});
    index.build({});
    const CodeTail tail(index, rows, 0, {});
    Partial out(1, 16);
    tail.attend({q.data(), 1, 16, {&range, 1}}, {&none, 1}, {&no_ceiling, 1}, 1, 0, out.view());
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
  coded.rows.count = 0;
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

}  // namespace
}  // namespace topkv
