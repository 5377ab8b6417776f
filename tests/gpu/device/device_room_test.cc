// Sessions for whose index a device has no room.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "src/device/compute_device.h"
#include "tests/gpu/session/choosing_session.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::Choices;
using test::Feed;
using test::furthest;
using test::Place;
using test::same;
using test::TokenStream;

const AttentionShape grouped{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64};

/// A session that finds no room says so, and leaves the device and the context as they were.
TEST(DeviceRoom, KeySummariesAreRefusedWhereThereIsNone) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(grouped, 20020);
  const auto context = stream.context(20000)->with_index("sparq:r=16");
  const RetrievalOptions options{
      .index = "sparq:r=16", .k = TopK::same(48), .window = 16, .capacity = 20};
  const std::int64_t told = device_index_bytes(grouped, options, 20000, place.device());
  EXPECT_GT(told, 20000 * 2 * 2 * 64 * 2);
  EXPECT_EQ(device_index_bytes(grouped, options, 20000, Device()), 0);
  EXPECT_EQ(device_index_bytes(grouped, options, std::int64_t{1} << 19, place.device()), 0);
  const DeviceMemory memory = place.device().memory();
  std::vector<std::vector<float>> host_outs;
  {
    const Buffer rest = place.compute().allocate(memory.ceiling - memory.used - (8 << 20), "test");
    const std::int64_t before = place.device().memory().used;
    try {
      const Session refused(context, options, place.device());
      FAIL() << "there is no room";
    } catch (const OutOfMemory& error) {
      EXPECT_LE(error.wanted_bytes(), told);
      EXPECT_GE(error.wanted_bytes(), told / 10 * 9);
      EXPECT_EQ(error.available_bytes(), memory.ceiling - before);
      EXPECT_NE(std::string(error.what()).find("host_search"), std::string::npos) << error.what();
    }
    EXPECT_EQ(place.device().memory().used, before);
    // The host does without.
    RetrievalOptions by_host = options;
    by_host.host_search = true;
    EXPECT_EQ(device_index_bytes(grouped, by_host, 20000, place.device()), 0);
    Session session(context, by_host, place.device());
    EXPECT_EQ(session.stats().device_index_bytes, 0);
    const Choices choices;
    Feed feed(place, stream, 20000, 20020);
    feed.run(session, 1);
    EXPECT_EQ(Choices::made(), 0);
    host_outs = feed.outs();
  }
  Session session(context, options, place.device());
  EXPECT_LE(session.stats().device_index_bytes, told);
  EXPECT_GE(session.stats().device_index_bytes, told / 10 * 9);
  Feed feed(place, stream, 20000, 20020);
  feed.run(session, 1);
  EXPECT_LT(furthest(feed.outs(), host_outs), same);
}

TEST(DeviceRoom, CodesAreRefusedLikewise) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(grouped, 20020);
  const char* index = "codes:k=32,v=8";
  const auto context = stream.context(20000)->with_index(index);
  RetrievalOptions options{.index = index, .k = TopK::same(48), .window = 16, .capacity = 20};
  const DeviceMemory memory = place.device().memory();
  const Buffer rest = place.compute().allocate(memory.ceiling - memory.used - (4 << 20), "test");
  try {
    const Session refused(context, options, place.device());
    FAIL() << "there is no room";
  } catch (const OutOfMemory& error) {
    EXPECT_GT(error.wanted_bytes(), error.available_bytes());
    EXPECT_NE(std::string(error.what()).find("host_search"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("raise --gpu-mem to at least"), std::string::npos)
        << error.what();
  }
  options.host_search = true;
  options.k = TopK::same(20000);  // all of them: a host's own sessions scan, and find others of few
  EXPECT_EQ(device_index_bytes(grouped, options, 20000, place.device()), 0);
  Session session(context, options, place.device());
  EXPECT_EQ(session.stats().device_index_bytes, 0);
  Feed feed(place, stream, 20000, 20020);
  feed.run(session, 1);
  const Place host("cpu");
  Session by_host(context, options);
  Feed want(host, stream, 20000, 20020);
  want.run(by_host, 1);
  EXPECT_LT(furthest(feed.outs(), want.outs()), same);
}

/// What is on its way is a part of what is told, of so many codes that a scan's room does not hold
/// a head's.
TEST(DeviceRoom, CodesTakeNoMoreOnTheWay) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  AttentionShape shape = grouped;
  shape.layers = 1;
  constexpr std::int64_t keys = 400'000;
  constexpr std::int64_t key_bytes = 64;
  constexpr std::int64_t value_bits = 64;
  constexpr std::int64_t lanes = 32;
  const std::vector<std::uint16_t> rows(keys * 64);
  const KeyView view{reinterpret_cast<const std::byte*>(rows.data()), DType::bf16, keys, 64, 128};
  const std::vector<std::uint8_t> codes(keys * key_bytes);
  HeadCodes head;
  head.rows = {view, view};
  head.keys = codes.data();
  head.key_bytes = key_bytes;
  head.values = codes.data();
  head.value_lanes = lanes;
  head.value_bits = value_bits;
  const std::vector<HeadCodes> heads(2, head);
  const std::int64_t told = place.compute().codes_bytes(shape, keys, key_bytes, value_bits, 0);
  const DeviceMemory before = place.device().memory();
  const std::int64_t left = place.compute().allocation_bytes(told) + (4 << 20);
  const Buffer rest = place.compute().allocate(before.ceiling - before.used - left, "test");
  const auto kept = place.compute().keep_codes(shape, heads);
  EXPECT_LE(kept->memory(), told);
  EXPECT_GE(kept->memory(), told / 10 * 8);  // blocks are counted as of any device
}

}  // namespace
}  // namespace topkv
