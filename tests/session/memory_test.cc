// What sessions and their steps take of the host's memory, as the system counts it.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "src/store/row_store.h"
#include "tests/support/reference.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

constexpr std::int64_t mib = std::int64_t{1} << 20;

/// "VmRSS", now; "VmHWM", the most there was since forget_peak().
std::int64_t resident(const std::string& which = "VmRSS") {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::int64_t kib = -1;
  while (status >> word) {
    if (word == which + ":" && status >> kib) return kib * 1024;
  }
  ADD_FAILURE() << "/proc/self/status does not tell " << which;
  return 0;
}

bool forget_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

std::shared_ptr<const Context> zeros(const AttentionShape& shape, std::int64_t tokens) {
  ContextBuilder builder(shape, {.capacity = tokens});
  const std::vector<float> rows(static_cast<std::size_t>(tokens * shape.kv_heads * shape.head_dim));
  const auto view =
      TensorView::tokens_first(rows.data(), DType::f32, tokens, shape.kv_heads, shape.head_dim);
  for (std::int64_t l = 0; l < shape.layers; ++l) builder.append(l, view, view);
  return builder.freeze();
}

// Llama-3-8B's: a token has 512 rows, in as many arrays.
const AttentionShape large{.layers = 32, .q_heads = 32, .kv_heads = 8, .head_dim = 128};

void give_one_token(Session& session) {
  const std::vector<float> q(32 * 128, 0.5F);
  std::vector<float> out(q.size());
  for (std::int64_t l = 0; l < large.layers; ++l)
    session.attend(l, q.data(), q.data(), q.data(), out.data());
}

TEST(SessionMemory, ATokenOfASessionOrAForkCommitsPagesNotHugePages) {
  const auto context = zeros(large, 1);
  std::vector<Session> sessions;
  sessions.reserve(5);
  sessions.emplace_back(context);
  give_one_token(sessions.back());  // whatever threads keep for themselves is there now
  const std::int64_t before = resident();
  sessions.emplace_back(context);
  give_one_token(sessions.back());
  const std::int64_t one = resident() - before;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(sessions.back().fork());
    give_one_token(sessions.back());
  }
  const std::int64_t forks = resident() - before - one;
  RecordProperty("session_bytes", std::to_string(one));
  RecordProperty("fork_bytes", std::to_string(forks / 3));
  // 512 arrays of a small page are 2 MiB; of a huge page, 1 GiB.
  EXPECT_LT(one, 32 * mib);
  EXPECT_LT(forks, 3 * 32 * mib);
}

TEST(SessionMemory, AShortContextWithALargeCapacityCommitsPagesNotHugePages) {
  const std::vector<float> row(8 * 128, 0.5F);
  const auto view = TensorView::tokens_first(row.data(), DType::f32, 1, 8, 128);
  const std::int64_t before = resident();
  ContextBuilder builder(large, {.capacity = 100'000, .memory_budget = std::int64_t{1} << 40});
  for (std::int64_t l = 0; l < large.layers; ++l) builder.append(l, view, view);
  EXPECT_LT(resident() - before, 32 * mib);
}

TEST(SessionMemory, RowsAreRightAcrossTheChangeOfPageSize) {
  const AttentionShape shape{.layers = 2, .q_heads = 2, .kv_heads = 2, .head_dim = 128};
  const std::int64_t tokens = 20'000;  // 5 MB an array in bf16
  const auto k = reference::random_bf16(tokens * 256, 1);
  RowStore store(shape, DType::bf16, tokens, 0, "test");
  for (std::int64_t t = 0; t < tokens; t += 2500) {
    const auto view = TensorView::tokens_first(&k[t * 256], DType::f32, 2500, 2, 128);
    for (std::int64_t l = 0; l < 2; ++l) store.append(l, view, view);
  }
  RowStore copy(shape, DType::bf16, tokens + 7, 0, "test");
  copy.copy_from(store);
  for (const RowStore* rows : {&store, &copy}) {
    for (const std::int64_t t : {0, 8191, 8192, 10'000, 16'384, 19'999}) {
      for (std::int64_t h = 0; h < 2; ++h) {
        const auto* key = reinterpret_cast<const std::uint16_t*>(rows->rows(1, h).key(t));
        std::uint32_t bits = 0;
        std::memcpy(&bits, &k[t * 256 + h * 128 + 127], 4);
        ASSERT_EQ(key[127], bits >> 16) << t;
      }
    }
  }
}

TEST(SessionMemory, AStepOfManyTokensThatRetrievesEverythingIsBounded) {
  const AttentionShape shape{.layers = 1, .q_heads = 32, .kv_heads = 8, .head_dim = 16};
  const std::int64_t tokens = 256;
  const auto context = zeros(shape, 4096);
  Session session(context, {.k = TopK::same(1'000'000), .window = 16, .capacity = tokens});
  const auto q = reference::random_floats(tokens * 32 * 16, 1);
  std::vector<float> out(q.size());
  if (!forget_peak()) GTEST_SKIP() << "this system does not let the peak be forgotten";
  const std::int64_t before = resident();
  session.attend(0, q.data(), q.data(), q.data(), out.data(), tokens);
  const std::int64_t peak = resident("VmHWM") - before;
  RecordProperty("peak_bytes", std::to_string(peak));
  EXPECT_LT(peak, 400 * mib);  // all at once: 20 bytes a row and query head, 640 MiB and more
}

TEST(SessionMemory, RoundsThatARuleAsksForAreBounded) {
  const AttentionShape shape{.layers = 1, .q_heads = 32, .kv_heads = 16, .head_dim = 16};
  const std::int64_t context_tokens = 32'768;
  const std::int64_t tokens = 256;
  ContextBuilder builder(shape, {.capacity = context_tokens});
  const auto rows = reference::random_floats(context_tokens * 16 * 16, 1);
  const auto view = TensorView::tokens_first(rows.data(), DType::f32, context_tokens, 16, 16);
  builder.append(0, view, view);
  const auto context = builder.freeze()->with_index("codes");
  // The second round looks for 2,048 rows: with 20 bytes each, for all queries, 320 MiB.
  RetrievalOptions options{
      .index = "codes", .k = TopK::same(128), .error = 1e-6, .window = 16, .capacity = tokens};
  const auto q = reference::random_floats(tokens * 32 * 16, 2);
  std::vector<float> out(q.size());
  std::vector<float> dense(q.size());
  Session session(context, options);
  if (!forget_peak()) GTEST_SKIP() << "this system does not let the peak be forgotten";
  const std::int64_t before = resident();
  session.attend(0, q.data(), rows.data(), rows.data(), out.data(), tokens);
  const std::int64_t peak = resident("VmHWM") - before;
  RecordProperty("peak_bytes", std::to_string(peak));
  EXPECT_LT(peak, 250 * mib);
  EXPECT_EQ(session.stats().retrieved_more, tokens * 32);
  options.dense_layers = 1;  // which is what the rule ends at
  Session all(context, options);
  all.attend(0, q.data(), rows.data(), rows.data(), dense.data(), tokens);
  EXPECT_LT(reference::distance({out}, {dense}), 1e-3);
}

TEST(SessionMemory, ABudgetForItsRowsIsKept) {
  const auto context = zeros(large, 1);
  const std::int64_t token = RowStore::bytes_per_token(large, DType::bf16);
  const Session fits(context, {.capacity = 100, .memory_budget = 100 * token});
  try {
    const Session refused(context, {.capacity = 101, .memory_budget = 100 * token});
    FAIL() << "not refused";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.wanted_bytes(), 101 * token);
    EXPECT_EQ(error.available_bytes(), 100 * token);
    EXPECT_NE(std::string(error.what()).find("session"), std::string::npos) << error.what();
  }
  EXPECT_THROW(Session(context, {.memory_budget = -1}), InvalidArgument);
  EXPECT_THROW(Session(context, {.device_rows = -1}), InvalidArgument);
  EXPECT_THROW(Session(context, {.device_rows = 1}), InvalidArgument);  // no scan on a CUDA device
}

}  // namespace
}  // namespace topkv
