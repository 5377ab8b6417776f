// What tests of sessions on a device that chooses have in common.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "src/core/io/faults.h"
#include "tests/support/session_feed.h"
#include "topkv/session.h"

namespace test {

/// How often a device was asked to choose, while one lives, and searches for a KV head that could
/// not go by what it chose: then the host chose once more.
class Choices {
 public:
  Choices() {
    count = lost = 0;
    topkv::fault_hook = [](const char* place) {
      count += std::string_view(place) == "session.choose";
      lost += std::string_view(place) == "search.choice_dropped";
    };
  }
  ~Choices() { topkv::fault_hook = nullptr; }
  Choices(const Choices&) = delete;  // belongs to one scope
  Choices& operator=(const Choices&) = delete;
  static std::int64_t made() { return count; }
  static std::int64_t dropped() { return lost; }

 private:
  static inline std::atomic<std::int64_t> count{0}, lost{0};
};

/// The first tokens as a context that has kept queries of its prefill.
inline std::shared_ptr<const topkv::Context> prefilled(const TokenStream& stream,
                                                       std::int64_t tokens,
                                                       topkv::KvDType dtype = {}) {
  const Place host("cpu");
  const Feed feed(host, stream, 0, tokens);
  topkv::ContextBuilder builder(stream.shape,
                                {.capacity = tokens, .dtype = dtype, .keep_queries = true});
  for (std::int64_t t = 0; t < tokens; t += 500) {
    for (std::int64_t l = 0; l < stream.shape.layers; ++l)
      builder.attend(feed.step(l, t, std::min<std::int64_t>(500, tokens - t)));
  }
  return builder.freeze();
}

struct Outcome {
  std::vector<std::vector<float>> outs;
  topkv::SessionStats stats;
  std::int64_t choices = 0;
  std::int64_t dropped = 0;
};

inline Outcome run(const Place& place, const TokenStream& stream,
                   const std::shared_ptr<const topkv::Context>& context,
                   topkv::RetrievalOptions options, std::int64_t step) {
  options.measure_recall = true;
  const Choices choices;
  topkv::Session session(context, options, place.device());
  Feed feed(place, stream, context->tokens(), stream.total);
  feed.run(session, step);
  return {feed.outs(), session.stats(), Choices::made(), Choices::dropped()};
}

/// Of the largest difference of two results; values are normal, rows' weights rounded to bf16.
inline constexpr double same = 0.03;
inline double furthest(const std::vector<std::vector<float>>& a,
                       const std::vector<std::vector<float>>& b) {
  double most = 0;
  for (std::size_t l = 0; l < a.size(); ++l) {
    for (std::size_t i = 0; i < a[l].size(); ++i) {
      const double off = std::abs(double{a[l][i]} - b[l][i]);
      most = off <= most ? most : off;  // NaN replaces what was
    }
  }
  return most;
}

/// That the rows were the same, which recall tells, and what came of them.
inline void expect_same(const Outcome& got, const Outcome& want) {
  EXPECT_LT(furthest(got.outs, want.outs), same);
  EXPECT_EQ(got.stats.rows_retrieved, want.stats.rows_retrieved);
  EXPECT_EQ(got.stats.exact_rows_found, want.stats.exact_rows_found);
  EXPECT_EQ(got.stats.mass_found, want.stats.mass_found);
  EXPECT_EQ(got.stats.retrieved_more, want.stats.retrieved_more);
  EXPECT_EQ(got.stats.went_dense, want.stats.went_dense);
  EXPECT_EQ(got.dropped, 0) << "the host chose once more";
}

}  // namespace test
