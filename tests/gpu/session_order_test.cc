// The order of a session's copies and work among streams: late copies change nothing, and would be
// seen if a wait were missing.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gpu/handles.h"
#include "tests/gpu/faults_guard.h"
#include "tests/gpu/session_feed.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::Feed;
using test::Place;
using test::TokenStream;

constexpr int delay_us = 2000;

const AttentionShape shape{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64};

RetrievalOptions fetching(std::int64_t dense_layers) {
  return {.k = TopK::same(16),
          .dense_layers = dense_layers,
          .window = 16,
          .capacity = 1024,
          .attend_on = AttendOn::device};
}

/// Largest error of ten steps whose copies are late.
double worst_of_late_steps(const RetrievalOptions& options, unsigned seed, bool drop_waits) {
  const Place place("cuda");
  const TokenStream stream(shape, 310, seed);
  Session session(stream.context(300), options, place.device());
  Feed feed(place, stream, 300, 310);
  {
    const test::InjectedFaults late(delay_us, drop_waits);
    feed.run(session, 1);
  }
  return feed.worst(options, {300, 301, 305, 309});
}

TEST(CudaSessionOrder, LateFetchedRowsChangeNothing) {
  TOPKV_NEEDS_GPU();
  EXPECT_LE(worst_of_late_steps(fetching(0), 1, false), 1.0);
}

TEST(CudaSessionOrder, LatePartialsAndTilesChangeNothing) {
  TOPKV_NEEDS_GPU();
  RetrievalOptions options = fetching(1);
  options.attend_on = AttendOn::host;
  EXPECT_LE(worst_of_late_steps(options, 1, false), 1.0);
}

TEST(CudaSessionOrder, WithoutItsWaitsLateFetchedRowsAreSeen) {
  TOPKV_NEEDS_GPU();
  // Other tokens than above: memory may still hold those.
  EXPECT_GT(worst_of_late_steps(fetching(0), 50, true), 1.0)
      << "the tests above could not see a missing wait";
}

/// Tensors that are made late on a stream of the caller's, and results read on it.
class OnAStreamOfItsOwn {
 public:
  OnAStreamOfItsOwn(std::int64_t first, std::int64_t tokens)
      : stream_(shape, first + tokens), first_(first), tokens_(tokens) {}

  /// Largest error; all tokens in one step.
  double worst(const RetrievalOptions& options, bool drop_waits) {
    const std::int64_t q_bytes = tokens_ * stream_.q_width() * 4;
    const std::int64_t kv_bytes = tokens_ * stream_.kv_width() * 4;
    Session session(stream_.context(first_), options, place_.device());
    double worst = 0;
    // Zeros, which a session takes, where the tensors will be.
    const auto zeros = [&](std::int64_t bytes) {
      return place_.put(std::vector<float>(static_cast<std::size_t>(bytes / 4), 0.0F));
    };
    const Buffer q = zeros(q_bytes);
    const Buffer k = zeros(kv_bytes);
    const Buffer v = zeros(kv_bytes);
    const Buffer out = zeros(q_bytes);
    const gpu::PinnedBuffer made(q_bytes + 2 * kv_bytes);
    const gpu::PinnedBuffer read(q_bytes);
    place_.compute().synchronize();
    const test::InjectedFaults late(delay_us, drop_waits);
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      const auto at = static_cast<std::size_t>(l);
      auto* from = made.as<float>();
      from = std::copy_n(stream_.q[at].end() - q_bytes / 4, q_bytes / 4, from);
      from = std::copy_n(stream_.k[at].end() - kv_bytes / 4, kv_bytes / 4, from);
      std::copy_n(stream_.v[at].end() - kv_bytes / 4, kv_bytes / 4, from);
      gpu::inject_copy_delay(user_);
      copy(q.data(), made.data(), q_bytes, cudaMemcpyHostToDevice);
      copy(k.data(), made.data() + q_bytes, kv_bytes, cudaMemcpyHostToDevice);
      copy(v.data(), made.data() + q_bytes + kv_bytes, kv_bytes, cudaMemcpyHostToDevice);
      session.attend(l, q.floats(), k.floats(), v.floats(), out.floats(), tokens_, user());
      copy(read.data(), out.data(), q_bytes, cudaMemcpyDeviceToHost);
      user_.synchronize();
      worst = std::max(worst, worst_of(l, options, read.as<float>()));
    }
    return worst;
  }

 private:
  void* user() { return static_cast<cudaStream_t>(user_); }
  void copy(void* to, const void* from, std::int64_t bytes, cudaMemcpyKind kind) {
    TOPKV_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, user_));
  }
  double worst_of(std::int64_t layer, const RetrievalOptions& options, const float* out) const {
    double worst = 0;
    for (std::int64_t t = 0; t < tokens_; ++t) {
      const std::int64_t p = first_ + t;
      for (std::int64_t head = 0; head < shape.q_heads; ++head) {
        const auto found = test::found_rows(stream_, options, layer, p, head);
        const float* row = out + t * stream_.q_width() + head * shape.head_dim;
        worst = std::max(worst, stream_.error(layer, p, head, true, row, [&](std::int64_t x) {
          return x < options.sinks || x > p - options.window || found.contains(x);
        }));
      }
    }
    return worst;
  }

  Place place_{"cuda"};
  gpu::Stream user_;
  TokenStream stream_;
  std::int64_t first_, tokens_;
};

TEST(CudaSessionOrder, TensorsOfAnotherStreamAreWaitedForAndResultsWait) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t tokens : {1, 7, 300}) {
    for (const AttendOn attend_on : {AttendOn::host, AttendOn::device}) {
      RetrievalOptions options = fetching(0);
      options.attend_on = attend_on;
      EXPECT_LE(OnAStreamOfItsOwn(200, tokens).worst(options, false), 1.0) << tokens;
    }
  }
}

TEST(CudaSessionOrder, WithoutWaitsTensorsOfAnotherStreamComeTooLate) {
  TOPKV_NEEDS_GPU();
  EXPECT_GT(OnAStreamOfItsOwn(200, 7).worst(fetching(0), true), 1.0)
      << "the test above could not see a missing wait";
}

}  // namespace
}  // namespace topkv
