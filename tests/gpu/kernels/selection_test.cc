// Scores, choices and attention over chosen rows on the device (gpu/entries/entry_scores.h),
// against float64 and plain loops.
#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "bench/kernels/chosen_attention.h"
#include "bench/kernels/quest_bounds.h"
#include "bench/kernels/sparq_components.h"
#include "gpu/entries/entry_scores.h"
#include "gpu/entries/top_entries.h"
#include "tests/gpu/kernels/attention_case.h"
#include "tests/gpu/kernels/choices.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/support/needs_gpu.h"
#include "tests/support/reference.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

using test::best_of;
using test::nasty_scores;
using test::to_bf16;

/// Random rows of some head steps and a query for each of their heads.
struct Case {
  std::int64_t head_steps, group, dim, rows;
  std::int64_t slots = (rows + 7) / 8 * 8;
  std::vector<float> queries = reference::random_bf16(head_steps * group * dim, 1);
  std::vector<float> keys = reference::random_bf16(head_steps * slots * dim, 2);
  std::vector<float> values = reference::random_bf16(head_steps * slots * dim, 3);
  DeviceArray<__nv_bfloat16> device_queries{to_bf16(queries)};
  DeviceArray<__nv_bfloat16> device_keys{to_bf16(keys)};
  DeviceArray<__nv_bfloat16> device_values{to_bf16(values)};

  float scale() const { return 1.0F / std::sqrt(static_cast<float>(dim)); }
  HeadStepQueries head_step_queries() const {
    return {device_queries.data(), head_steps, group, dim, scale()};
  }
  DeviceRows device_rows() const {
    return {.keys = device_keys.data(),
            .values = device_values.data(),
            .head_stride = slots * dim,
            .count = rows};
  }
  const float* query(std::int64_t head_step, std::int64_t g) const {
    return queries.data() + (head_step * group + g) * dim;
  }
  const float* key(std::int64_t head_step, std::int64_t row) const {
    return keys.data() + (head_step * slots + row) * dim;
  }
  reference::Rows rows_of(std::int64_t head_step) const {
    reference::Rows some;
    some.dim = dim;
    some.keys.assign(key(head_step, 0), key(head_step, 0) + rows * dim);
    const float* value = values.data() + head_step * slots * dim;
    some.values.assign(value, value + rows * dim);
    return some;
  }
};

/// What attend_chosen is given and gives.
struct Chosen {
  Chosen(const Case& given, std::int64_t capacity)
      : of(given),
        entries(given.head_steps * capacity),
        counts(given.head_steps),
        arrived(std::vector<int>(static_cast<std::size_t>(given.head_steps), 0)),
        partials(chosen_workspace_bytes(given.dim) / 4),
        out(test::not_numbers(given.head_steps * given.group * given.dim)),
        lse(test::not_numbers(given.head_steps * given.group)),
        room(capacity) {}

  ChosenEntries chosen() const { return {entries.data(), counts.data(), room}; }
  std::set<std::int64_t> of_head_step(std::int64_t head_step) const {
    const std::vector<int> all = entries.read();
    const int count = counts.read()[static_cast<std::size_t>(head_step)];
    const auto begin = all.begin() + head_step * room;
    EXPECT_LE(count, room);
    std::set<std::int64_t> some(begin, begin + count);
    EXPECT_EQ(std::ssize(some), count) << "an entry stands twice";
    return some;
  }
  bool ascends(std::int64_t head_step) const {
    const std::vector<int> all = entries.read();
    const auto begin = all.begin() + head_step * room;
    return std::is_sorted(begin, begin + counts.read()[static_cast<std::size_t>(head_step)]);
  }
  void attend(std::int64_t page) {
    attend_chosen(of.head_step_queries(), of.device_rows(), chosen(), page,
                  {out.data(), lse.data()}, {arrived.data(), partials.data()}, nullptr);
  }
  /// Against float64 over the rows of the entries; bounds as in AttentionCase::expect_close.
  void expect_attended(std::int64_t page) const {
    const std::vector<float> got = out.read();
    const std::vector<float> got_lse = lse.read();
    for (std::int64_t m = 0; m < of.head_steps; ++m) {
      const std::set<std::int64_t> some = of_head_step(m);
      const reference::Rows rows = of.rows_of(m);
      const auto visible = [&](std::int64_t row) { return some.count(row / page) > 0; };
      for (std::int64_t g = 0; g < of.group; ++g) {
        const std::int64_t head = m * of.group + g;
        const reference::Result want = reference::attend(rows, of.query(m, g), of.scale(), visible);
        if (std::isinf(want.lse)) {
          ASSERT_EQ(got_lse[head], want.lse);
          for (std::int64_t j = 0; j < of.dim; ++j) ASSERT_EQ(got[head * of.dim + j], 0.0F);
          continue;
        }
        // Scores of that size are sums of float32 products, too.
        const double rounding = 0x1p-21 * std::abs(want.lse);
        ASSERT_NEAR(got_lse[head], want.lse, 1e-4 + rounding)
            << "head step " << m << ", head " << g;
        for (std::int64_t j = 0; j < of.dim; ++j)
          ASSERT_NEAR(got[head * of.dim + j], want.out[j], 5 * 0x1p-8)
              << "head step " << m << ", head " << g << ", element " << j;
      }
    }
    for (const int left : arrived.read()) ASSERT_EQ(left, 0);
  }

  const Case& of;
  DeviceArray<int> entries, counts, arrived;
  DeviceArray<float> partials;
  DeviceArray<float> out, lse;
  std::int64_t room;
};

TEST(GpuSelection, ScoresOfPagesBoundTheirKeys) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t dim : {64, 128}) {
    for (const std::int64_t page : {1, 16, 48}) {
      const Case of{3, 4, dim, 1000};
      const std::int64_t pages = (of.rows + page - 1) / page;
      const DeviceArray<__nv_bfloat16> bounds(of.head_steps * pages * 2 * dim);
      // In two calls, as rows arrive: the second makes the page of the last row anew.
      const std::int64_t some = 500 / page * page;
      bound_pages(of.device_keys.data(), of.head_steps, of.slots, dim, page, 0, some, bounds.data(),
                  pages, nullptr);
      bound_pages(of.device_keys.data(), of.head_steps, of.slots, dim, page, some, of.rows,
                  bounds.data(), pages, nullptr);
      const DeviceArray<float> scores(of.head_steps * of.group * pages);
      score_pages(of.head_step_queries(), bounds.data(), pages, pages, scores.data(), nullptr);
      const std::vector<float> got = scores.read();
      for (std::int64_t m = 0; m < of.head_steps; ++m) {
        for (std::int64_t g = 0; g < of.group; ++g) {
          for (std::int64_t p = 0; p < pages; ++p) {
            double want = 0;
            for (std::int64_t j = 0; j < dim; ++j) {
              double most = -infinity;
              for (std::int64_t r = p * page; r < std::min((p + 1) * page, of.rows); ++r)
                most = std::max(most, double{of.query(m, g)[j]} * of.key(m, r)[j]);
              want += most;
            }
            ASSERT_NEAR(got[(m * of.group + g) * pages + p], want * of.scale(), 1e-3)
                << "page " << p << " of " << page;
          }
        }
      }
    }
  }
}

TEST(GpuSelection, ScoresOfCentroidsAreProducts) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t dim : {64, 128}) {
    for (const std::int64_t count : {1, 15, 64, 777}) {
      const Case of{2, 5, dim, count};
      const DeviceArray<float> scores(of.head_steps * of.group * count);
      score_centroids(of.head_step_queries(), of.device_keys.data(), of.slots, count, scores.data(),
                      nullptr);
      const std::vector<float> got = scores.read();
      for (std::int64_t m = 0; m < of.head_steps; ++m) {
        const reference::Rows rows = of.rows_of(m);
        for (std::int64_t g = 0; g < of.group; ++g)
          for (std::int64_t i = 0; i < count; ++i)
            ASSERT_NEAR(got[(m * of.group + g) * count + i],
                        of.scale() * reference::score(rows, of.query(m, g), i), 1e-3);
      }
    }
  }
}

TEST(GpuSelection, ScoresByComponents) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t dim : {64, 128}) {
    for (const std::int64_t group : {1, 3, 4}) {
      for (const std::int64_t read : {std::int64_t{1}, std::int64_t{13}, std::int64_t{32}, dim}) {
        const Case of{2, group, dim, 1501};
        const DeviceArray<__nv_bfloat16> components(of.head_steps * of.slots * dim);
        spread_components(of.device_keys.data(), of.head_steps, of.slots, dim, 0, 700,
                          components.data(), nullptr);
        spread_components(of.device_keys.data(), of.head_steps, of.slots, dim, 700, of.rows,
                          components.data(), nullptr);
        const DeviceArray<float> scores(of.head_steps * group * of.rows);
        score_components(of.head_step_queries(), components.data(), of.slots, of.rows, read,
                         scores.data(), nullptr);
        const std::vector<float> got = scores.read();
        for (std::int64_t m = 0; m < of.head_steps; ++m) {
          std::vector<double> sizes(static_cast<std::size_t>(dim), 0.0);
          for (std::int64_t g = 0; g < group; ++g)
            for (std::int64_t j = 0; j < dim; ++j) sizes[j] += std::abs(of.query(m, g)[j]);
          const std::set<std::int64_t> chosen = best_of(sizes, read);
          for (std::int64_t g = 0; g < group; ++g) {
            const float* q = of.query(m, g);
            double some = 0;
            double all = 0;
            for (std::int64_t j = 0; j < dim; ++j) {
              all += std::abs(q[j]);
              if (chosen.count(j) > 0) some += std::abs(q[j]);
            }
            for (std::int64_t r = 0; r < of.rows; ++r) {
              double want = 0;
              for (const std::int64_t j : chosen) want += double{q[j]} * of.key(m, r)[j];
              want *= of.scale() / std::sqrt(some / all);
              ASSERT_NEAR(got[(m * group + g) * of.rows + r], want, 2e-3)
                  << read << " components, row " << r;
            }
          }
        }
      }
    }
  }
}

TEST(GpuSelection, AttentionOverChosenPages) {
  TOPKV_NEEDS_GPU();
  std::mt19937 random(7);
  for (const std::int64_t dim : {64, 128}) {
    for (const std::int64_t page : {1, 2, 16, 128}) {
      for (const std::int64_t group : {1, 7, 16}) {
        const Case of{5, group, dim, 3001};
        const std::int64_t pages = (of.rows + page - 1) / page;
        Chosen chosen(of, pages);
        // None, all, the last (a short page), and some at random.
        std::vector<int> counts, entries(static_cast<std::size_t>(of.head_steps * pages), -1);
        for (std::int64_t m = 0; m < of.head_steps; ++m) {
          int count = 0;
          for (int p = 0; p < pages; ++p) {
            const bool kept = m == 1 || (m == 2 && p == pages - 1) || (m > 2 && random() % 9 == 0);
            if (kept) entries[m * pages + count++] = p;
          }
          counts.push_back(count);
        }
        TOPKV_CUDA(cudaMemcpy(chosen.entries.data(), entries.data(), entries.size() * 4,
                              cudaMemcpyHostToDevice));
        TOPKV_CUDA(cudaMemcpy(chosen.counts.data(), counts.data(), counts.size() * 4,
                              cudaMemcpyHostToDevice));
        for (int repeat = 0; repeat < 2; ++repeat) {  // its room is as it was
          chosen.attend(page);
          chosen.expect_attended(page);
        }
      }
    }
  }
}

TEST(GpuSelection, OneHeadStepIsSpreadOverAllBlocks) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t head_steps : {1, 3, 700}) {
    const std::int64_t rows = head_steps == 700 ? 90 : 60000;
    const Case of{head_steps, 1, 128, rows};
    Chosen chosen(of, rows);
    const std::vector<float> scores(static_cast<std::size_t>(head_steps * rows), 0.0F);
    const DeviceArray<float> device(scores);
    choose_best(device.data(), of.head_step_queries(), rows, rows, chosen.chosen(), nullptr);
    chosen.attend(1);
    chosen.expect_attended(1);
  }
}

TEST(GpuSelection, ARoomServesManyRowsThenFew) {
  TOPKV_NEEDS_GPU();
  // More tiles than the device has blocks, then fewer: what the first left is nobody's.
  for (const float size : {1.0F, 40.0F}) {
    Case of{8, 1, 128, 5000};
    for (float& x : of.queries) x = size * std::abs(x);  // scores of -200 and less
    for (float& x : of.keys) x = -size * std::abs(x) / 8;
    const DeviceArray<__nv_bfloat16> queries(to_bf16(of.queries));
    const DeviceArray<__nv_bfloat16> keys(to_bf16(of.keys));
    for (std::size_t i = 0; i < of.queries.size(); ++i)
      of.queries[i] = __bfloat162float(__float2bfloat16(of.queries[i]));
    for (std::size_t i = 0; i < of.keys.size(); ++i)
      of.keys[i] = __bfloat162float(__float2bfloat16(of.keys[i]));
    TOPKV_CUDA(cudaMemcpy(of.device_queries.data(), queries.data(), of.queries.size() * 2,
                          cudaMemcpyDeviceToDevice));
    TOPKV_CUDA(cudaMemcpy(of.device_keys.data(), keys.data(), of.keys.size() * 2,
                          cudaMemcpyDeviceToDevice));
    Chosen chosen(of, of.rows);
    for (const std::int64_t k : {4000, 1000, 3, 4999}) {
      const DeviceArray<float> scores(nasty_scores(of.head_steps * of.rows, 4));
      choose_best(scores.data(), of.head_step_queries(), of.rows, k, chosen.chosen(), nullptr);
      chosen.attend(1);
      chosen.expect_attended(1);
    }
  }
}

TEST(GpuSelection, ManyHeadsOfOneHeadStep) {
  TOPKV_NEEDS_GPU();
  const Case of{1, 16, 64, 40000};
  Chosen chosen(of, of.rows);
  const DeviceArray<float> scores(std::vector<float>(static_cast<std::size_t>(16 * of.rows), 0.0F));
  HeadStepQueries one = of.head_step_queries();
  one.group = 1;
  choose_best(scores.data(), one, of.rows, of.rows, chosen.chosen(), nullptr);
  chosen.attend(1);
  chosen.expect_attended(1);
}

TEST(GpuSelection, AllPagesChosenIsDenseAttention) {
  TOPKV_NEEDS_GPU();
  const Case of{4, 4, 128, 5003};
  const std::int64_t pages = (of.rows + 15) / 16;
  const DeviceArray<__nv_bfloat16> bounds(of.head_steps * pages * 2 * of.dim);
  bound_pages(of.device_keys.data(), of.head_steps, of.slots, of.dim, 16, 0, of.rows, bounds.data(),
              pages, nullptr);
  const DeviceArray<float> scores(of.head_steps * of.group * pages);
  score_pages(of.head_step_queries(), bounds.data(), pages, pages, scores.data(), nullptr);
  Chosen chosen(of, of.group * pages);
  choose_best(scores.data(), of.head_step_queries(), pages, pages, chosen.chosen(), nullptr);
  chosen.attend(16);
  const DeviceArray<float> out(of.head_steps * of.group * of.dim);
  const DeviceArray<float> lse(of.head_steps * of.group);
  attend({.kv_heads = of.head_steps, .head_dim = of.dim, .scale = of.scale()},
         {.data = of.device_queries.data(),
          .tokens = 1,
          .heads = of.head_steps * of.group,
          .head_dim = of.dim},
         of.device_rows(), {}, {out.data(), lse.data()}, Into::overwrite, nullptr);
  const std::vector<float> got = chosen.out.read();
  const std::vector<float> want = out.read();
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 0x1p-8);
  const std::vector<float> want_lse = lse.read();
  const std::vector<float> got_lse = chosen.lse.read();
  for (std::size_t i = 0; i < want_lse.size(); ++i) ASSERT_NEAR(got_lse[i], want_lse[i], 1e-4);
}

TEST(GpuSelection, AttentionOverTheRowsOfQuestAndSparq) {
  TOPKV_NEEDS_GPU();
  const Case of{3, 2, 128, 4000};
  const HeadStepQueries queries = of.head_step_queries();
  {
    const std::int64_t pages = of.rows / 16;
    const DeviceArray<__nv_bfloat16> bounds(of.head_steps * pages * 2 * of.dim);
    bound_pages(of.device_keys.data(), of.head_steps, of.slots, of.dim, 16, 0, of.rows,
                bounds.data(), pages, nullptr);
    const DeviceArray<float> scores(of.head_steps * of.group * pages);
    score_pages(queries, bounds.data(), pages, pages, scores.data(), nullptr);
    Chosen chosen(of, of.group * 20);
    choose_best(scores.data(), queries, pages, 20, chosen.chosen(), nullptr);
    chosen.attend(16);
    chosen.expect_attended(16);
    for (std::int64_t m = 0; m < of.head_steps; ++m) ASSERT_TRUE(chosen.ascends(m));
  }
  const DeviceArray<__nv_bfloat16> components(of.head_steps * of.slots * of.dim);
  spread_components(of.device_keys.data(), of.head_steps, of.slots, of.dim, 0, of.rows,
                    components.data(), nullptr);
  const DeviceArray<float> scores(of.head_steps * of.group * of.rows);
  score_components(queries, components.data(), of.slots, of.rows, of.dim, scores.data(), nullptr);
  Chosen chosen(of, 64);
  DeviceArray<float> shares(of.head_steps * of.group);
  choose_heaviest(scores.data(), queries, of.rows, 64, chosen.chosen(), shares.data(), nullptr);
  chosen.attend(1);
  chosen.expect_attended(1);
  // With all components read scores are exact, and so are shares: y = share y_k + (1 - share) mean.
  const std::vector<float> before = chosen.out.read();
  const std::vector<float> means = reference::random_bf16(of.head_steps * of.dim, 9);
  const DeviceArray<float> device_means(means);
  reallocate_mean(queries, shares.data(), device_means.data(),
                  {chosen.out.data(), chosen.lse.data()}, nullptr);
  const std::vector<float> after = chosen.out.read();
  for (std::int64_t m = 0; m < of.head_steps; ++m) {
    const reference::Rows rows = of.rows_of(m);
    const std::set<std::int64_t> some = chosen.of_head_step(m);
    for (std::int64_t g = 0; g < of.group; ++g) {
      const auto all =
          reference::attend(rows, of.query(m, g), of.scale(), [](auto) { return true; });
      const auto taken = reference::attend(rows, of.query(m, g), of.scale(),
                                           [&](std::int64_t r) { return some.count(r) > 0; });
      const double share = std::exp(taken.lse - all.lse);
      for (std::int64_t j = 0; j < of.dim; ++j) {
        const std::int64_t at = (m * of.group + g) * of.dim + j;
        ASSERT_NEAR(after[at], share * before[at] + (1 - share) * means[m * of.dim + j], 1e-3);
      }
    }
  }
}

TEST(GpuSelection, WhatCannotBeIsRefused) {
  TOPKV_NEEDS_GPU();
  const Case of{1, 1, 64, 100};
  Chosen chosen(of, 10);
  const DeviceArray<float> scores(100);
  HeadStepQueries queries = of.head_step_queries();
  EXPECT_THROW(choose_best(scores.data(), queries, 100, 11, chosen.chosen(), nullptr),
               InvalidArgument);  // no room
  EXPECT_THROW(choose_best(scores.data(), queries, 100, 0, chosen.chosen(), nullptr),
               InvalidArgument);
  EXPECT_THROW(
      choose_best(scores.data(), queries, most_candidates() + 1, 1, chosen.chosen(), nullptr),
      Unsupported);
  EXPECT_THROW(chosen.attend(3), InvalidArgument);
  queries.group = 17;
  EXPECT_THROW(choose_best(scores.data(), queries, 100, 1, chosen.chosen(), nullptr), Unsupported);
  queries = of.head_step_queries();
  EXPECT_THROW(score_centroids(queries, of.device_keys.data(), 99, 100, scores.data(), nullptr),
               InvalidArgument);
  EXPECT_THROW(score_pages(queries, of.device_keys.data(), 10, 11, scores.data(), nullptr),
               InvalidArgument);
  EXPECT_THROW(
      spread_components(of.device_keys.data(), 1, 96, 64, 0, 100, of.device_keys.data(), nullptr),
      InvalidArgument);
  EXPECT_THROW(
      spread_components(of.device_keys.data(), 1, 100, 64, 0, 100, of.device_keys.data(), nullptr),
      InvalidArgument);
  EXPECT_THROW(
      bound_pages(of.device_keys.data(), 1, 104, 64, 16, 8, 100, of.device_keys.data(), 7, nullptr),
      InvalidArgument);
  queries.head_dim = 96;
  EXPECT_THROW(score_centroids(queries, of.device_keys.data(), 100, 100, scores.data(), nullptr),
               Unsupported);
}

}  // namespace
}  // namespace topkv::gpu
