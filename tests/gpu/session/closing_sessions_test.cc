// A session is closed by one thread while another's work is recorded, to be replayed: it is not
// disturbed.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "src/device/compute_device.h"
#include "tests/support/session_feed.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::Place;
using test::TokenStream;

TEST(ClosingSessions, WhileAnotherThreadRecordsDisturbsNothing) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream({.layers = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 64}, 300);
  auto session = std::make_unique<Session>(
      stream.context(300), RetrievalOptions{.k = TopK::same(8), .window = 16}, place.device());
  const Buffer values = place.put({1, 2, 3, 4});
  ComputeDevice& compute = place.compute();
  std::atomic<bool> records = false;
  std::thread closing([&] {
    records.wait(false);
    session.reset();
  });
  {
    const auto lock = compute.lock();
    std::unique_ptr<Recording> recording;
    const auto twice = [&] { compute.scale(2, 4, values.floats()); };
    compute.replay(recording, twice);
    EXPECT_NO_THROW(compute.replay(recording, [&] {  // this one is recorded
      twice();
      records = true;
      records.notify_one();
      std::this_thread::sleep_for(
          std::chrono::milliseconds(100));  // the other thread waits, or not
    }));
    EXPECT_NO_THROW(compute.replay(recording, twice));
    records = true;
    records.notify_one();
  }
  closing.join();
  EXPECT_EQ(place.get(values.floats(), 4), (std::vector<float>{8, 16, 24, 32}));
}

}  // namespace
}  // namespace topkv
