// Squeezed Attention of a question on the device (bench/kernels/squeezed_attention.h), against
// float64.
#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/kernels/squeezed_attention.h"
#include "bench/kernels/squeezed_choice.h"
#include "tests/gpu/kernels/attention_case.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/support/needs_gpu.h"
#include "tests/support/reference.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

using test::to_bf16;

#define TOPKV_NEEDS_CUDNN()                                    \
  TOPKV_NEEDS_GPU();                                           \
  do {                                                         \
    std::string why;                                           \
    if (!CudnnAttention::available(&why)) GTEST_SKIP() << why; \
  } while (false)

constexpr double infinity = std::numeric_limits<double>::infinity();

/// A question's queries, and centroids with their clusters.
struct Asked {
  std::int64_t tokens, head_steps, group, dim, clusters;
  float size = 1;  // of queries
  std::int64_t slots = clusters + 3;
  std::vector<float> queries = reference::random_bf16(tokens * head_steps * group * dim, 1, size);
  std::vector<float> centroids = reference::random_bf16(head_steps * slots * dim, 2, 2.0F);
  std::vector<int> begin = some_clusters();  // [head_steps, slots + 1]
  std::int64_t row_slots = 8 * clusters;

  /// Of 0 to 8 rows.
  std::vector<int> some_clusters() const {
    std::vector<int> all;
    std::mt19937 random(3);
    for (std::int64_t m = 0; m < head_steps; ++m) {
      int row = 0;
      for (std::int64_t i = 0; i <= slots; ++i) {
        all.push_back(row);
        if (i < clusters) row += static_cast<int>(random() % 9);
      }
    }
    return all;
  }
  int members(std::int64_t m, std::int64_t i) const {
    const int* of = begin.data() + m * (slots + 1);
    return of[i + 1] - of[i];
  }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(dim)); }
  std::int64_t heads() const { return head_steps * group; }
  /// Of a head: importances averaged over tokens; of those below `tokens` that have a say.
  std::vector<double> importances(std::int64_t head, const std::vector<bool>& say) const {
    std::vector<double> average(static_cast<std::size_t>(clusters), 0.0);
    const std::int64_t m = head / group;
    double asked = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      if (!say.empty() && !say[t]) continue;
      const float* query = queries.data() + (t * heads() + head) * dim;
      std::vector<double> scores;
      double most = -infinity;
      for (std::int64_t i = 0; i < clusters; ++i) {
        const float* centroid = centroids.data() + (m * slots + i) * dim;
        double score = 0;
        for (std::int64_t j = 0; j < dim; ++j) score += double{query[j]} * centroid[j];
        scores.push_back(score * scale());
        most = std::max(most, scores.back());
      }
      double sum = 0;
      for (std::int64_t i = 0; i < clusters; ++i) sum += members(m, i) * std::exp(scores[i] - most);
      for (std::int64_t i = 0; i < clusters; ++i) average[i] += std::exp(scores[i] - most) / sum;
      ++asked;
    }
    for (double& x : average) x /= asked;
    return average;
  }
};

/// Asked, on the device.
struct Device {
  explicit Device(const Asked& of)
      : asked(of),
        queries(to_bf16(of.queries)),
        centroids(to_bf16(of.centroids)),
        begin(of.begin),
        room(weigh_workspace(question(), of.clusters)),
        scores(of.heads() * of.clusters) {}
  SqueezedQueries question() const {
    return {queries.data(), asked.tokens, asked.head_steps, asked.group, asked.dim, asked.scale()};
  }
  void weigh(const int* rows = nullptr) {
    weigh_clusters(question(), centroids.data(), asked.slots, asked.clusters,
                   {begin.data(), rows, asked.slots, asked.row_slots}, room.data(), scores.data(),
                   nullptr);
    room.read();  // its guards
  }
  const Asked& asked;
  DeviceArray<__nv_bfloat16> queries, centroids;
  DeviceArray<int> begin;
  DeviceArray<float> room, scores;
};

TEST(GpuSqueezed, ImportancesAreAveragedOverTokens) {
  TOPKV_NEEDS_GPU();
  const Asked cases[] = {{1, 1, 1, 64, 1},
                         {1, 2, 3, 128, 65},
                         {63, 3, 1, 64, 100},
                         {64, 1, 4, 128, 1000},
                         {300, 2, 2, 64, 64},
                         {257, 1, 1, 128, 3000},
                         {100, 2, 1, 128, 700, 12.0F}};
  for (const Asked& asked : cases) {
    if (std::accumulate(asked.begin.begin(), asked.begin.end(), 0) == 0) continue;
    Device device(asked);
    device.weigh();
    const std::vector<float> got = device.scores.read();
    for (std::int64_t head = 0; head < asked.heads(); ++head) {
      const std::vector<double> want = asked.importances(head, {});
      // Up to a number of the head's: the weighed importances sum to 1.
      double sum = 0;
      for (std::int64_t i = 0; i < asked.clusters; ++i) {
        sum +=
            asked.members(head / asked.group, i) * std::exp(double{got[head * asked.clusters + i]});
      }
      for (std::int64_t i = 0; i < asked.clusters; ++i) {
        if (want[i] < 1e-30) continue;
        ASSERT_NEAR(got[head * asked.clusters + i] - std::log(sum), std::log(want[i]), 1e-3)
            << "head " << head << ", cluster " << i << " of " << asked.clusters << ", "
            << asked.tokens << " tokens of " << asked.dim;
      }
    }
  }
}

TEST(GpuSqueezed, TokensBeyondFloat32HaveNoSay) {
  TOPKV_NEEDS_GPU();
  Asked asked{70, 1, 2, 64, 90};
  std::vector<bool> say(70, true);
  for (const std::int64_t t : {0, 13, 69}) {
    for (std::int64_t j = 0; j < 2 * 64; ++j) {
      asked.queries[t * 2 * 64 + j] =
          t == 13 ? std::numeric_limits<float>::quiet_NaN() : (j % 2 == 0 ? 3e38F : -3e38F);
    }
    say[t] = false;
  }
  Device device(asked);
  device.weigh();
  const std::vector<float> got = device.scores.read();
  for (std::int64_t head = 0; head < 2; ++head) {
    const std::vector<double> want = asked.importances(head, say);
    double sum = 0;
    for (std::int64_t i = 0; i < 90; ++i)
      sum += asked.members(0, i) * std::exp(double{got[head * 90 + i]});
    for (std::int64_t i = 0; i < 90; ++i)
      ASSERT_NEAR(got[head * 90 + i] - std::log(sum), std::log(want[i]), 1e-3);
  }
}

TEST(GpuSqueezed, ClustersAboveAThresholdOfAnyHeadAreChosen) {
  TOPKV_NEEDS_GPU();
  const Asked asked{130, 3, 2, 128, 800, 3.0F};
  std::vector<int> rows;  // cluster by cluster, in an order that is not theirs
  for (std::int64_t m = 0; m < asked.head_steps; ++m) {
    for (std::int64_t i = 0; i < asked.row_slots; ++i)
      rows.push_back(static_cast<int>(asked.row_slots - 1 - i));
  }
  Device device(asked);
  const DeviceArray<int> device_rows(rows);
  device.weigh(device_rows.data());
  const double threshold = std::log(1.0 / 3200);
  const DeviceArray<int> entries(asked.head_steps * asked.row_slots);
  const DeviceArray<int> counts(asked.head_steps);
  choose_important(
      device.scores.data(), {nullptr, asked.head_steps, asked.group, asked.dim, asked.scale()},
      asked.clusters, {device.begin.data(), device_rows.data(), asked.slots, asked.row_slots},
      static_cast<float>(threshold), {entries.data(), counts.data(), asked.row_slots}, nullptr);
  const std::vector<int> got = entries.read();
  const std::vector<int> got_counts = counts.read();
  for (std::int64_t m = 0; m < asked.head_steps; ++m) {
    std::vector<bool> chosen(static_cast<std::size_t>(asked.row_slots), false);
    for (int i = 0; i < got_counts[m]; ++i) chosen[got[m * asked.row_slots + i]] = true;
    const std::vector<double> a = asked.importances(m * 2, {});
    const std::vector<double> b = asked.importances(m * 2 + 1, {});
    std::int64_t above = 0;
    for (std::int64_t c = 0; c < asked.clusters; ++c) {
      const double margin = std::log(std::max(a[c], b[c])) - threshold;
      above += margin > 0;
      if (std::abs(margin) < 2e-3) continue;
      const int* begin = asked.begin.data() + m * (asked.slots + 1);
      for (int i = begin[c]; i < begin[c + 1]; ++i)
        ASSERT_EQ(chosen[asked.row_slots - 1 - i], margin > 0) << "cluster " << c;
    }
    EXPECT_GT(above, 20);
    EXPECT_LT(above, asked.clusters - 20);
  }
}

/// Rows of head steps, of which some were chosen.
struct Attended {
  std::int64_t tokens, head_steps, group, dim, rows, piece_rows, pieces;
  std::vector<std::int64_t> counts;  // per head step
  std::int64_t slots = rows + 5;
  std::vector<float> queries = reference::random_bf16(tokens * head_steps * group * dim, 4, 2.0F);
  std::vector<float> keys = reference::random_bf16(head_steps * slots * dim, 5, 2.0F);
  std::vector<float> values = reference::random_bf16(head_steps * slots * dim, 6);

  std::vector<std::vector<int>> chosen() const {
    std::vector<std::vector<int>> all;
    std::mt19937 random(7);
    for (const std::int64_t count : counts) {
      std::vector<int> some(static_cast<std::size_t>(rows));
      std::iota(some.begin(), some.end(), 0);
      std::shuffle(some.begin(), some.end(), random);
      some.resize(static_cast<std::size_t>(count));
      all.push_back(some);
    }
    return all;
  }
};

void expect_attended(CudnnAttention& cudnn, const Attended& of, Into into) {
  SCOPED_TRACE(std::to_string(of.tokens) + " tokens, " + std::to_string(of.head_steps) + " x " +
               std::to_string(of.group) + " heads of " + std::to_string(of.dim) + ", " +
               std::to_string(of.rows) + " rows, pieces of " + std::to_string(of.piece_rows));
  const float scale = 1.0F / std::sqrt(static_cast<float>(of.dim));
  const std::int64_t heads = of.head_steps * of.group;
  const auto chosen = of.chosen();
  std::vector<int> listed, counts;
  for (const auto& some : chosen) {
    counts.push_back(static_cast<int>(some.size()));
    listed.insert(listed.end(), some.begin(), some.end());
    listed.resize(counts.size() * static_cast<std::size_t>(of.rows), 1 << 29);
  }
  const DeviceArray<__nv_bfloat16> queries(to_bf16(of.queries));
  const DeviceArray<__nv_bfloat16> keys(to_bf16(of.keys));
  const DeviceArray<__nv_bfloat16> values(to_bf16(of.values));
  const DeviceArray<int> entries(listed);
  const DeviceArray<int> device_counts(counts);
  // What a partial that is merged into says: an output of 0.5 with the weight e^1.
  std::vector<float> before_out = test::not_numbers(of.tokens * heads * of.dim);
  std::vector<float> before_lse = test::not_numbers(of.tokens * heads);
  if (into == Into::merge) {
    std::fill(before_out.begin(), before_out.end(), 0.5F);
    std::fill(before_lse.begin(), before_lse.end(), 1.0F);
  }
  const DeviceArray<float> out(before_out);
  const DeviceArray<float> lse(before_lse);
  SqueezedAttention attention(cudnn, {.tokens = of.tokens,
                                      .head_steps = of.head_steps,
                                      .group = of.group,
                                      .head_dim = of.dim,
                                      .scale = scale,
                                      .rows = of.rows,
                                      .piece_rows = of.piece_rows,
                                      .pieces = of.pieces});
  const DeviceArray<std::byte> room(attention.workspace_bytes());
  attention.attend({queries.data(), of.tokens, of.head_steps, of.group, of.dim, scale},
                   {.keys = keys.data(),
                    .values = values.data(),
                    .head_stride = of.slots * of.dim,
                    .count = of.rows},
                   {entries.data(), device_counts.data(), of.rows}, {out.data(), lse.data()}, into,
                   room.data(), nullptr);
  room.read();  // its guards
  const std::vector<float> got = out.read();
  const std::vector<float> got_lse = lse.read();
  for (std::int64_t t = 0; t < of.tokens; t += 1 + of.tokens / 37) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t m = head / of.group;
      const float* query = of.queries.data() + (t * heads + head) * of.dim;
      double sum = into == Into::merge ? std::exp(1.0) : 0.0;
      std::vector<double> want(static_cast<std::size_t>(of.dim), 0.5 * sum);
      for (const int row : chosen[m]) {
        double score = 0;
        for (std::int64_t j = 0; j < of.dim; ++j)
          score += double{query[j]} * of.keys[(m * of.slots + row) * of.dim + j];
        const double weight = std::exp(score * scale);
        sum += weight;
        for (std::int64_t j = 0; j < of.dim; ++j)
          want[j] += weight * of.values[(m * of.slots + row) * of.dim + j];
      }
      const std::int64_t at = t * heads + head;
      if (sum == 0) {
        ASSERT_EQ(got_lse[at], -infinity);
        for (std::int64_t j = 0; j < of.dim; ++j) ASSERT_EQ(got[at * of.dim + j], 0.0F);
        continue;
      }
      ASSERT_NEAR(got_lse[at], std::log(sum), 1e-3) << "token " << t << ", head " << head;
      for (std::int64_t j = 0; j < of.dim; ++j) {
        ASSERT_NEAR(got[at * of.dim + j], want[j] / sum, 5 * 0x1p-8)
            << "token " << t << ", head " << head << ", element " << j;
      }
    }
  }
}

TEST(GpuSqueezed, AttendsTheRowsOfEachHead) {
  TOPKV_NEEDS_CUDNN();
  CudnnAttention cudnn;
  const Attended cases[] = {
      {128, 4, 1, 128, 1000, 512, 16, {1000, 0, 1, 700}},
      {300, 3, 4, 64, 1500, 256, 64, {257, 1500, 256}},
      {128, 2, 2, 128, 900, 256, 2, {900, 300}},         // two rounds
      {64, 5, 1, 64, 2000, 256, 3, {0, 0, 2000, 5, 0}},  // many, and pieces of a head in several
      {200, 3, 1, 128, 400, 1024, 8, {0, 0, 0}},
      {1, 2, 7, 128, 600, 512, 8, {600, 33}},
      {1024, 6, 1, 128, 3000, 2048, 256, {3000, 1, 64, 2048, 2049, 1500}}};
  for (const Attended& of : cases) {
    for (const Into into : {Into::overwrite, Into::merge}) expect_attended(cudnn, of, into);
  }
}

TEST(GpuSqueezed, RefusesWhatItDoesNotKnow) {
  TOPKV_NEEDS_GPU();
  const SqueezedQueries odd{nullptr, 8, 1, 1, 80, 1.0F};
  EXPECT_THROW(
      weigh_clusters(odd, nullptr, 4, 4, {nullptr, nullptr, 4, 4}, nullptr, nullptr, nullptr),
      Unsupported);
  const SqueezedQueries none{nullptr, 0, 1, 1, 64, 1.0F};
  EXPECT_THROW(
      weigh_clusters(none, nullptr, 4, 4, {nullptr, nullptr, 4, 4}, nullptr, nullptr, nullptr),
      InvalidArgument);
  const SqueezedQueries fine{nullptr, 8, 1, 1, 64, 1.0F};
  EXPECT_THROW(
      weigh_clusters(fine, nullptr, 4, 5, {nullptr, nullptr, 5, 5}, nullptr, nullptr, nullptr),
      InvalidArgument);
  std::string why;
  if (!CudnnAttention::available(&why)) return;
  CudnnAttention cudnn;
  SqueezedAttention::Shape shape{
      .tokens = 64, .head_steps = 2, .head_dim = 64, .scale = 1, .rows = 9};
  shape.piece_rows = 100;
  EXPECT_THROW(SqueezedAttention(cudnn, shape), InvalidArgument);
  shape.piece_rows = 256;
  shape.head_dim = 96;
  EXPECT_THROW(SqueezedAttention(cudnn, shape), Unsupported);
  shape.head_dim = 64;
  SqueezedAttention attention(cudnn, shape);
  EXPECT_THROW(attention.attend({nullptr, 64, 2, 1, 64, 1}, {.count = 10}, {}, {}, Into::overwrite,
                                nullptr, nullptr),
               InvalidArgument);
  EXPECT_THROW(attention.attend({nullptr, 32, 2, 1, 64, 1}, {.count = 9}, {}, {}, Into::overwrite,
                                nullptr, nullptr),
               InvalidArgument);
}

}  // namespace
}  // namespace topkv::gpu
