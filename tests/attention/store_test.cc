// The row store: layouts, dtypes, limits and refusals.
#include <gtest/gtest.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_group.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>

#include "src/core/math/convert.h"
#include "src/store/row_store.h"
#include "tests/support/reference.h"
#include "topkv/error.h"

namespace topkv {
namespace {

const AttentionShape shape{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 24};
constexpr std::int64_t width = 2 * 24;

TensorView tokens_first(const std::vector<float>& x) {
  return TensorView::tokens_first(x.data(), DType::f32, static_cast<std::int64_t>(x.size()) / width,
                                  2, 24);
}

std::vector<float> row_of(const RowStore& store, std::int64_t layer, std::int64_t head,
                          std::int64_t position) {
  const RowsView rows = store.rows(layer, head);
  std::vector<float> row(48);
  to_float(rows.key(position), rows.keys.dtype, 24, row.data());
  to_float(rows.value(position), rows.keys.dtype, 24, row.data() + 24);
  return row;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing thrown)";
}

TEST(RowStore, EveryDtypeAndLayoutGivesTheSameRows) {
  const std::int64_t tokens = 700;
  const auto k = reference::random_bf16(tokens * width, 1);
  const auto v = reference::random_bf16(tokens * width, 2);
  for (const DType stored : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType given : {DType::f32, DType::bf16}) {
      RowStore first(shape, stored, tokens, 0, "test");
      RowStore second(shape, stored, tokens, 0, "test");
      // [heads, tokens, dim] copies in the dtype given.
      std::vector<float> kt(k.size()), vt(v.size());
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t h = 0; h < 2; ++h) {
          for (std::int64_t j = 0; j < 24; ++j) {
            kt[(h * tokens + t) * 24 + j] = k[(t * 2 + h) * 24 + j];
            vt[(h * tokens + t) * 24 + j] = v[(t * 2 + h) * 24 + j];
          }
        }
      }
      std::vector<std::byte> kb(k.size() * bytes_of(given)), vb(v.size() * bytes_of(given));
      from_float(kt.data(), tokens * width, given, kb.data());
      from_float(vt.data(), tokens * width, given, vb.data());
      first.append(1, tokens_first(k), tokens_first(v));
      second.append(1, TensorView::heads_first(kb.data(), given, tokens, 2, 24),
                    TensorView::heads_first(vb.data(), given, tokens, 2, 24));
      for (const std::int64_t t : {std::int64_t{0}, std::int64_t{511}, tokens - 1}) {
        for (std::int64_t h = 0; h < 2; ++h) {
          const auto row = row_of(first, 1, h, t);
          EXPECT_EQ(row, row_of(second, 1, h, t));
          EXPECT_NEAR(row[3], k[(t * 2 + h) * 24 + 3], 1e-3);
          EXPECT_NEAR(row[24 + 3], v[(t * 2 + h) * 24 + 3], 1e-3);
        }
      }
      EXPECT_EQ(first.size(0), 0);
      EXPECT_EQ(first.bytes(), tokens * 2 * 48 * bytes_of(stored));
    }
  }
}

TEST(RowStore, ChunksOfAnySizeGiveTheSameRows) {
  const auto k = reference::random_floats(100 * width, 1);
  const auto v = reference::random_floats(100 * width, 2);
  RowStore whole(shape, DType::bf16, 100, 0, "test");
  RowStore pieces(shape, DType::bf16, 100, 0, "test");
  whole.append(0, tokens_first(k), tokens_first(v));
  for (std::int64_t begin = 0, n = 1; begin < 100; begin += n, n = n * 2 + 1) {
    n = std::min(n, 100 - begin);
    pieces.append(0, TensorView::tokens_first(&k[begin * width], DType::f32, n, 2, 24),
                  TensorView::tokens_first(&v[begin * width], DType::f32, n, 2, 24));
  }
  for (std::int64_t t = 0; t < 100; ++t) EXPECT_EQ(row_of(whole, 0, 1, t), row_of(pieces, 0, 1, t));
}

TEST(RowStore, OffsetsBeyond32BitsReachTheirRows) {
  // 60 GB of address space, of which a few pages are touched.
  const std::int64_t capacity = 200'000'000;
  RowStore store(shape, DType::bf16, capacity, std::int64_t{1} << 40, "test");
  const auto k = reference::random_bf16(width, 1);
  store.append(1, tokens_first(k), tokens_first(k));
  EXPECT_GT(store.rows(1, 1).values.data - store.rows(0, 0).keys.data, std::int64_t{2} << 32);
  EXPECT_EQ(row_of(store, 1, 1, 0)[0], k[24]);
}

TEST(RowStore, NotFiniteValuesAreRefusedWithTheirPlaceAndNothingIsKept) {
  RowStore store(shape, DType::bf16, 10, 0, "test");
  auto k = reference::random_floats(3 * width, 1);
  const auto v = reference::random_floats(3 * width, 2);
  store.append(1, tokens_first(k), tokens_first(v));
  k[(2 * 2 + 1) * 24 + 5] = std::numeric_limits<float>::quiet_NaN();
  const std::string message =
      message_of([&] { store.append(1, tokens_first(k), tokens_first(v)); });
  EXPECT_NE(message.find("K of layer 1, KV head 1, position 5 holds nan at element 5"),
            std::string::npos)
      << message;
  EXPECT_EQ(store.size(1), 3);
  k[(2 * 2 + 1) * 24 + 5] = -std::numeric_limits<float>::infinity();
  EXPECT_THROW(store.append(1, tokens_first(v), tokens_first(k)), InvalidArgument);
  EXPECT_EQ(store.size(1), 3);
}

TEST(RowStore, ANegativeNumberOfTokensIsRefusedAndNothingIsLost) {
  RowStore store(shape, DType::bf16, 10, 0, "test");
  const auto k = reference::random_floats(4 * width, 1);
  store.append(1, tokens_first(k), tokens_first(k));
  for (const std::int64_t tokens : {std::int64_t{-3}, std::numeric_limits<std::int64_t>::min()}) {
    const auto view = TensorView::tokens_first(k.data(), DType::f32, tokens, 2, 24);
    const std::string message = message_of([&] { store.append(1, view, view); });
    EXPECT_NE(message.find(std::to_string(tokens) + " tokens"), std::string::npos) << message;
    EXPECT_EQ(store.size(1), 4);
  }
}

TEST(RowStore, ValuesBeyondF16AreRefusedInF16Only) {
  auto k = reference::random_floats(width, 1);
  k[7] = 70000.0F;
  RowStore half(shape, DType::f16, 10, 0, "test");
  EXPECT_THROW(half.append(0, tokens_first(k), tokens_first(k)), InvalidArgument);
  RowStore brain(shape, DType::bf16, 10, 0, "test");
  brain.append(0, tokens_first(k), tokens_first(k));
  EXPECT_EQ(brain.size(0), 1);
}

TEST(RowStore, ValuesThatBf16RoundsToInfinityAreRefused) {
  auto k = reference::random_floats(width, 1);
  k[7] = std::numeric_limits<float>::max();
  RowStore store(shape, DType::bf16, 10, 0, "test");
  EXPECT_THROW(store.append(0, tokens_first(k), tokens_first(k)), InvalidArgument);
  EXPECT_EQ(store.size(0), 0);
}

TEST(RowStore, WhatDoesNotFitIsRefusedWithWantedAndAvailableBytes) {
  try {
    RowStore store(shape, DType::bf16, 1000, 1000 * 2 * 2 * 96 - 1, "test");
    FAIL() << "made a store above its budget";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.wanted_bytes(), 1000 * 2 * 2 * 96);
    EXPECT_EQ(error.available_bytes(), 1000 * 2 * 2 * 96 - 1);
  }
  EXPECT_THROW(RowStore(shape, DType::bf16, std::int64_t{1} << 50, 0, "test"), OutOfMemory);
  EXPECT_THROW(RowStore(shape, DType::bf16, std::int64_t{1} << 61, 0, "test"), InvalidArgument);
  EXPECT_THROW(RowStore(shape, DType::bf16, -1, 0, "test"), InvalidArgument);
}

TEST(RowStore, OneViewMayBeKeysAndValues) {
  RowStore store(shape, DType::f32, 10, 0, "test");
  const auto k = reference::random_floats(3 * width, 1);
  const TensorView both = tokens_first(k);
  store.append(1, both, both);
  EXPECT_EQ(row_of(store, 1, 1, 2)[0], k[5 * 24]);
  EXPECT_EQ(row_of(store, 1, 1, 2)[24], k[5 * 24]);
}

TEST(RowStore, LastRowsFitTheBudgetThatTheyAreCountedIn) {
  AttentionShape sliding = shape;
  sliding.sliding_window = {5, 0};
  const auto rows = reference::random_floats(100 * width, 1);
  const std::int64_t bytes = RowStore::bytes_while_read(sliding, DType::bf16, 100, 30);
  EXPECT_EQ(bytes, (4 * 5 + 2 * 30 + 100) * 2 * 96);
  RowStore store(sliding, DType::bf16, 100, bytes, "test", SlidingRows::last);
  store.make_room_for_steps(30);
  for (const std::int64_t layer : {0, 1})
    store.append(layer, tokens_first(rows), tokens_first(rows));
  store.freeze();
  EXPECT_EQ(store.first_row(0), 95);
  EXPECT_EQ(store.bytes(), 105 * 2 * 96);
  RowStore small(sliding, DType::bf16, 100, bytes - 1, "test", SlidingRows::last);
  EXPECT_THROW(small.make_room_for_steps(30), OutOfMemory);
}

#ifndef TOPKV_STD_THREADS  // of oneTBB's cancellation
/// Calls work as part of a task group, which is cancelled after a time. Returns whether work threw.
bool is_stopped(std::chrono::nanoseconds after, const std::function<void()>& work) {
  oneapi::tbb::task_group_context group;
  std::jthread cancels;
  bool stopped = false;
  oneapi::tbb::parallel_for(
      0, 1,
      [&](int) {
        if (after.count() == 0) {
          group.cancel_group_execution();
        } else {
          cancels = std::jthread([&] {
            const auto end = std::chrono::steady_clock::now() + after;
            while (std::chrono::steady_clock::now() < end) {
            }
            group.cancel_group_execution();
          });
        }
        try {
          work();
        } catch (const Stopped&) {
          stopped = true;
        }
      },
      group);
  return stopped;
}

TEST(RowStore, LastRowsThatAreNotCopiedLeaveItEmpty) {
  AttentionShape sliding = shape;
  sliding.sliding_window = {5, 0};
  const auto rows = reference::random_floats(40 * width, 1);
  RowStore from(sliding, DType::bf16, 40, 0, "test", SlidingRows::last);
  for (const std::int64_t layer : {0, 1})
    from.append(layer, tokens_first(rows), tokens_first(rows));
  from.freeze();
  RowStore store(sliding, DType::bf16, 60, 0, "test", SlidingRows::last);
  EXPECT_TRUE(is_stopped({}, [&] { store.copy_from(from); }));
  EXPECT_EQ(store.size(0), 0);
  EXPECT_EQ(store.first_row(0), 0);  // where the next rows go
  store.copy_from(from);
  EXPECT_EQ(store.first_row(0), 35);
  EXPECT_EQ(row_of(store, 0, 1, 39), row_of(from, 1, 1, 39));
}

/// Rows that move, and rows that replace others, while the caller's task group is cancelled.
TEST(RowStore, LastRowsStayWhereTheyAreWhateverIsStoppedWhen) {
  const AttentionShape sliding{
      .layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 64, .sliding_window = {256}};
  constexpr std::int64_t most = 1500;
  const auto values = reference::random_floats(most * 128, 1);
  RowStore store(sliding, DType::f32, std::int64_t{1} << 20, 0, "test", SlidingRows::last);
  std::vector<std::int64_t> given;  // of each token, which of the values it has
  std::int64_t stopped = 0;
  for (std::int64_t i = 0; i < 300; ++i) {
    const std::int64_t tokens = i % 3 == 0 ? most : 200 + i;
    const auto view = TensorView::tokens_first(values.data(), DType::f32, tokens, 2, 64);
    const std::int64_t size = store.size(0);
    if (is_stopped(std::chrono::microseconds(1 + i * 7 % 150),
                   [&] { store.append(0, view, view); })) {
      ++stopped;
      ASSERT_EQ(store.size(0), size);
    } else {
      for (std::int64_t t = 0; t < tokens; ++t) given.push_back(t);
    }
    ASSERT_LE(store.first_row(0), std::max<std::int64_t>(0, store.size(0) - 256));
    for (std::int64_t p = store.first_row(0); p < store.size(0); ++p) {
      for (const std::int64_t head : {0, 1}) {
        const RowsView rows = store.rows(0, head);
        const float* wanted = &values[given[p] * 128 + head * 64];
        ASSERT_EQ(std::memcmp(rows.key(p), wanted, 256), 0) << p << " of " << store.size(0);
        ASSERT_EQ(std::memcmp(rows.value(p), wanted, 256), 0) << p << " of " << store.size(0);
      }
    }
  }
  EXPECT_GT(stopped, 0);
}
#endif

TEST(RowStore, WrongShapesAndAFullStoreAreRefused) {
  RowStore store(shape, DType::bf16, 2, 0, "test");
  const auto k = reference::random_floats(3 * width, 1);
  EXPECT_THROW(store.append(0, tokens_first(k), tokens_first(k)), InvalidArgument);  // 3 into 2
  EXPECT_THROW(store.append(2, tokens_first(k), tokens_first(k)), InvalidArgument);  // layer
  EXPECT_THROW(store.append(0, TensorView::tokens_first(k.data(), DType::f32, 1, 3, 24),
                            TensorView::tokens_first(k.data(), DType::f32, 1, 3, 24)),
               InvalidArgument);
  EXPECT_EQ(store.size(0), 0);
}

}  // namespace
}  // namespace topkv
