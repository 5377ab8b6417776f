// Choices among scores on the device (gpu/entries/top_entries.h), against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "bench/kernels/squeezed_choice.h"
#include "gpu/entries/top_entries.h"
#include "tests/gpu/kernels/choices.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/support/needs_gpu.h"

namespace topkv::gpu {
namespace {

using test::best_of;
using test::infinity;
using test::nasty_scores;
using test::not_a_number;
using test::shape_of;

TEST(GpuChoice, BestOfAnyHead) {
  TOPKV_NEEDS_GPU();
  struct {
    std::int64_t head_steps, group, count, k;
  } const cases[] = {{2, 1, 1, 1},         {3, 1, 33, 5},       {2, 3, 2048, 128},
                     {1, 2, 2049, 2049},   {2, 7, 5000, 100},   {1, 1, 8193, 64},
                     {2, 2, 40000, 256},   {1, 1, 65536, 4096}, {1, 2, 70001, 9},
                     {1, 1, 262144, 1000}, {4, 1, 4096, 4095}};
  unsigned seed = 0;
  for (const auto& [head_steps, group, count, k] : cases) {
    for (int repeat = 0; repeat < 4; ++repeat, ++seed) {
      const std::vector<float> scores = nasty_scores(head_steps * group * count, seed);
      const DeviceArray<float> device(scores);
      const std::int64_t room = group * k;
      const DeviceArray<int> entries(head_steps * room);
      const DeviceArray<int> counts(head_steps);
      choose_best(device.data(), shape_of(head_steps, group), count, k,
                  {entries.data(), counts.data(), room}, nullptr);
      const std::vector<int> got = entries.read();
      const std::vector<int> got_counts = counts.read();
      for (std::int64_t m = 0; m < head_steps; ++m) {
        std::set<std::int64_t> want;
        for (std::int64_t g = 0; g < group; ++g) {
          const auto begin = scores.begin() + (m * group + g) * count;
          want.merge(best_of({begin, begin + count}, k));
        }
        const std::vector<int> ascending(want.begin(), want.end());
        const auto begin = got.begin() + m * room;
        ASSERT_EQ(std::vector<int>(begin, begin + got_counts[m]), ascending)
            << "head step " << m << " of " << group << " heads, " << k << " of " << count
            << ", seed " << seed;
      }
    }
  }
}

TEST(GpuChoice, HeaviestOfAllHeads) {
  TOPKV_NEEDS_GPU();
  struct {
    std::int64_t head_steps, group, count, k;
  } const cases[] = {{2, 1, 300, 5}, {3, 4, 4096, 128}, {1, 7, 20000, 64}, {1, 16, 777, 700}};
  for (const auto& [head_steps, group, count, k] : cases) {
    const std::vector<float> scores = nasty_scores(head_steps * group * count, 4);
    const DeviceArray<float> device(scores);
    const DeviceArray<int> entries(head_steps * k);
    const DeviceArray<int> counts(head_steps);
    const DeviceArray<float> shares(head_steps * group);
    choose_heaviest(device.data(), shape_of(head_steps, group), count, k,
                    {entries.data(), counts.data(), k}, shares.data(), nullptr);
    const std::vector<int> got = entries.read();
    const std::vector<float> got_shares = shares.read();
    for (std::int64_t m = 0; m < head_steps; ++m) {
      std::vector<double> weights(static_cast<std::size_t>(count), 0.0);
      std::vector<double> sums;
      for (std::int64_t g = 0; g < group; ++g) {
        const auto begin = scores.begin() + (m * group + g) * count;
        double sum = 0;
        for (std::int64_t i = 0; i < count; ++i) sum += std::exp(double{begin[i]});
        for (std::int64_t i = 0; i < count; ++i) weights[i] += std::exp(double{begin[i]}) / sum;
        sums.push_back(sum);
      }
      ASSERT_EQ(counts.read()[m], k);
      const std::set<std::int64_t> found(got.begin() + m * k, got.begin() + (m + 1) * k);
      ASSERT_EQ(std::ssize(found), k);
      double least = infinity;
      for (const std::int64_t i : found) least = std::min(least, weights[i]);
      for (std::int64_t i = 0; i < count; ++i)
        if (found.count(i) == 0) {
          ASSERT_LE(weights[i], least * (1 + 1e-5));
        }
      for (std::int64_t g = 0; g < group; ++g) {
        const auto begin = scores.begin() + (m * group + g) * count;
        double share = 0;
        for (const std::int64_t i : found) share += std::exp(double{begin[i]}) / sums[g];
        ASSERT_NEAR(got_shares[m * group + g], share, 1e-4);
      }
    }
  }
}

TEST(GpuChoice, ImportantClusters) {
  TOPKV_NEEDS_GPU();
  struct {
    std::int64_t head_steps, group, clusters, rows;
    double log_threshold;
  } const cases[] = {{2, 1, 100, 1500, -5.0},
                     {1, 3, 3000, 40000, -9.0},
                     {2, 1, 20000, 90000, -12.0},
                     {1, 2, 64, 64, -100.0},  // all
                     {1, 2, 64, 500, 0.5}};   // none
  for (const auto& [head_steps, group, clusters, rows, log_threshold] : cases) {
    std::mt19937 random(5);
    std::vector<int> begin, members;
    for (std::int64_t m = 0; m < head_steps; ++m) {
      std::vector<std::vector<int>> of(static_cast<std::size_t>(clusters));
      std::uniform_int_distribution<std::size_t> any(0, of.size() - 1);
      for (int row = 0; row < rows; ++row) of[any(random)].push_back(row);
      int before = 0;
      for (const auto& one : of) {
        begin.push_back(before);
        before += static_cast<int>(one.size());
        members.insert(members.end(), one.begin(), one.end());
      }
      begin.push_back(before);
    }
    const std::vector<float> scores = nasty_scores(head_steps * group * clusters, 8);
    const DeviceArray<float> device(scores);
    const DeviceArray<int> device_begin(begin);
    const DeviceArray<int> device_members(members);
    const DeviceArray<int> entries(head_steps * rows);
    const DeviceArray<int> counts(head_steps);
    choose_important(device.data(), shape_of(head_steps, group), clusters,
                     {device_begin.data(), device_members.data(), clusters, rows},
                     static_cast<float>(log_threshold), {entries.data(), counts.data(), rows},
                     nullptr);
    const std::vector<int> got = entries.read();
    const std::vector<int> got_counts = counts.read();
    for (std::int64_t m = 0; m < head_steps; ++m) {
      const int* first = begin.data() + m * (clusters + 1);
      const auto at = got.begin() + m * rows;
      const std::set<int> found(at, at + got_counts[m]);
      ASSERT_EQ(std::ssize(found), got_counts[m]) << "a row stands twice";
      std::int64_t expected = 0;
      for (std::int64_t c = 0; c < clusters; ++c) {
        double margin = -infinity;  // above the threshold, of any head
        for (std::int64_t g = 0; g < group; ++g) {
          const auto of_head = scores.begin() + (m * group + g) * clusters;
          double sum = 0;
          for (std::int64_t j = 0; j < clusters; ++j)
            sum += (first[j + 1] - first[j]) * std::exp(double{of_head[j]});
          margin = std::max(margin, of_head[c] - std::log(sum) - log_threshold);
        }
        for (int i = first[c]; i < first[c + 1]; ++i) {
          const bool is_there = found.count(members[m * rows + i]) > 0;
          if (std::abs(margin) > 1e-4) {
            ASSERT_EQ(is_there, margin > 0) << "cluster " << c;
          }
          expected += is_there;
        }
      }
      ASSERT_EQ(expected, got_counts[m]);
    }
  }
}

TEST(GpuChoice, ScoresThatAreNoNumbersWeighNothing) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t group : {1, 3}) {
    const std::int64_t count = 5000;
    std::vector<float> scores = nasty_scores(group * count, 4);
    for (std::int64_t g = 0; g < group; ++g)
      for (std::int64_t i = 0; i < 2000; ++i) scores[g * count + i] = not_a_number;
    const DeviceArray<float> device(scores);
    const DeviceArray<int> entries(50);
    const DeviceArray<int> counts(1);
    const DeviceArray<float> shares(group);
    choose_heaviest(device.data(), shape_of(1, group), count, 50,
                    {entries.data(), counts.data(), 50}, shares.data(), nullptr);
    for (const int entry : entries.read()) ASSERT_GE(entry, 2000);
    for (const float share : shares.read()) {
      ASSERT_GT(share, 0.0F);
      ASSERT_LE(share, 1.0F);
    }
  }
}

/// Most weights are 0 in float32, and so equal: those that have no number are still the last.
TEST(GpuChoice, WhatIsNoNumberComesBehindWeightsOfNothing) {
  TOPKV_NEEDS_GPU();
  struct {
    std::int64_t group, count, k;
  } const cases[] = {{1, 64, 50}, {2, 64, 50}, {4, 5000, 3000}, {7, 40000, 900}, {16, 300, 296}};
  for (const auto& [group, count, k] : cases) {
    constexpr std::int64_t left_out = 4;
    std::vector<float> scores(static_cast<std::size_t>(group * count));
    for (std::int64_t i = 0; i < group * count; ++i) {
      const std::int64_t at = i % count;
      scores[i] = at < left_out ? not_a_number : at % 100 == 50 ? 0.0F : -200.0F;
    }
    // A head that has a number is enough.
    if (group > 1) scores[3] = -300.0F;
    const DeviceArray<float> device(scores);
    const DeviceArray<int> entries(k);
    const DeviceArray<int> counts(1);
    const DeviceArray<float> shares(group);
    choose_heaviest(device.data(), shape_of(1, group), count, k, {entries.data(), counts.data(), k},
                    shares.data(), nullptr);
    ASSERT_EQ(counts.read()[0], k);
    const std::vector<int> got = entries.read();
    const std::set<int> found(got.begin(), got.end());
    ASSERT_EQ(std::ssize(found), k);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(found.count(i), 0U) << i << ", " << group << " heads";
    for (int i = 50; i < count; i += 100) EXPECT_EQ(found.count(i), 1U) << i;
    for (const float share : shares.read()) EXPECT_NEAR(share, 1, 1e-5);
  }
}

TEST(GpuChoice, NothingIsImportantWhereNoScoreIsFinite) {
  TOPKV_NEEDS_GPU();
  constexpr std::int64_t clusters = 500;
  constexpr std::int64_t heads = 2;
  std::vector<int> begin, members;
  for (int c = 0; c <= clusters; ++c) begin.push_back(2 * c);
  for (int row = 0; row < 2 * clusters; ++row) members.push_back(row);
  const DeviceArray<int> device_begin(begin);
  const DeviceArray<int> device_members(members);
  for (const bool other_head : {false, true}) {
    for (const float nothing : {-infinity, not_a_number}) {
      std::vector<float> scores(heads * clusters, nothing);
      if (other_head) {  // which has nine that are important
        std::fill(scores.begin() + clusters, scores.end(), -50.0F);
        std::fill_n(scores.begin() + clusters + 100, 9, 0.0F);
      }
      const DeviceArray<float> device(scores);
      const DeviceArray<int> entries(2 * clusters);
      const DeviceArray<int> counts(1);
      choose_important(device.data(), shape_of(1, heads), clusters,
                       {device_begin.data(), device_members.data(), clusters, 2 * clusters}, -5.0F,
                       {entries.data(), counts.data(), 2 * clusters}, nullptr);
      EXPECT_EQ(counts.read()[0], other_head ? 18 : 0) << nothing;
    }
  }
}

}  // namespace
}  // namespace topkv::gpu
