// Work that takes a device long leaves its lock to others, between pieces and while it waits.
#include "gpu/long_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/device.h"
#include "src/core/io/faults.h"
#include "tests/gpu/device/lock_seeker.h"
#include "tests/gpu/vectors.h"
#include "tests/support/session_feed.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::LockSeeker;
using test::Place;
using test::TokenStream;
using test::Vectors;
using test::vectors_about;

TEST(LongWork, CopiesWhatItIsGiven) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  auto& device = static_cast<gpu::CudaDevice&>(place.compute());
  gpu::LongWork work(device);
  for (const std::int64_t count : {1, 1000, 3'000'001}) {  // of four bytes: up to three pieces
    const auto values = reference::random_floats(count, 1);
    const Buffer plain = place.room(count);
    work.copy_in(values.data(), 4 * count, plain.data());
    std::vector<float> back(values.size());
    work.copy_out(plain.data(), 4 * count, back.data());
    EXPECT_TRUE(back == values) << count;
  }
  // Rows of a matrix that do not fill pieces.
  const std::int64_t rows = 30'001;
  const std::int64_t width = 100;
  const auto values = reference::random_floats(rows * width, 2);
  const Buffer rounded = place.room(rows * width / 2);
  work.upload({reinterpret_cast<const std::byte*>(values.data()), DType::f32, rows, width},
              rounded.data());
  std::vector<std::uint16_t> back(values.size());
  work.copy_out(rounded.data(), 2 * rows * width, back.data());
  for (std::size_t i = 0; i < back.size(); ++i) {
    ASSERT_EQ(test::bf16_at(reinterpret_cast<const std::byte*>(&back[i]), 0),
              reference::as_bf16(values[i]));
  }
}

TEST(LongWork, ClusteringLeavesTheLockToOthers) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const std::int64_t dim : {64, 256}) {
    const Vectors all = vectors_about(200'000, dim, 100, 0.5F, 11);
    const auto clusterer = place.compute().clusterer(dim);
    const Clustering want = clusterer->cluster(all.data, 10'000, {});
    const LockSeeker seeker(place.compute());
    const Clustering got = clusterer->cluster(all.data, 10'000, {});
    EXPECT_EQ(LockSeeker::refused, 0);
    EXPECT_GE(LockSeeker::waits, 11);
    EXPECT_GE(LockSeeker::pieces, 200'000 * dim * 4 / gpu::LongWork::piece_bytes);
    EXPECT_TRUE(got.cluster == want.cluster) << dim;
  }
}

TEST(LongWork, CopiesOfAnIndexLeaveTheLockToOthers) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const AttentionShape shape{.layers = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 128};
  const TokenStream stream(shape, 40'000);
  const auto plain = stream.context(40'000);
  for (const char* index : {"sparq:r=16", "quest:page=1", "retroinfer:size=1,segment=64,v=0"}) {
    const auto context = plain->with_index(index);
    std::int64_t bytes = 0;
    const LockSeeker seeker(place.compute());
    const Session session(context, {.index = index, .capacity = 20}, place.device());
    bytes = session.stats().device_index_bytes;
    EXPECT_GT(bytes, 2 * gpu::LongWork::piece_bytes) << index;
    EXPECT_EQ(LockSeeker::refused, 0) << index;
    EXPECT_GT(LockSeeker::pieces, 4) << index;
    EXPECT_EQ(LockSeeker::waits, 1) << index;
  }
  const auto coded = plain->with_index("codes:k=64,v=0");
  const LockSeeker seeker(place.compute());
  const Session session(coded, {.index = "codes:k=64,v=0", .tail = "none", .capacity = 20},
                        place.device());
  EXPECT_GT(session.stats().device_index_bytes, 0);
  EXPECT_EQ(LockSeeker::refused, 0);
  EXPECT_EQ(LockSeeker::waits, 1);
}

std::atomic<std::int64_t> steps{0};
std::stop_source* stopped_at_fifth = nullptr;

TEST(LongWork, ClusteringStopsAmidItsSteps) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const Vectors all = vectors_about(30'000, 64, 100, 0.5F, 11);
  const auto clusterer = place.compute().clusterer(64);
  const Clustering want = clusterer->cluster(all.data, 1500, {});
  std::stop_source source;
  stopped_at_fifth = &source;
  steps = 0;
  fault_hook = [](const char* at) {
    if (std::string_view(at) == "clustering.step" && ++steps == 5) stopped_at_fifth->request_stop();
  };
  EXPECT_THROW(clusterer->cluster(all.data, 1500, source.get_token()), Stopped);
  fault_hook = nullptr;
  EXPECT_EQ(steps, 5);
  EXPECT_TRUE(clusterer->cluster(all.data, 1500, {}).cluster == want.cluster);
}

}  // namespace
}  // namespace topkv
