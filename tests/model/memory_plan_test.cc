// The planner against what contexts and weights really take.
#include "topkv/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/bundled_model.h"
#include "tests/support/draft_layers.h"
#include "tests/support/temp_directory.h"
#include "topkv/device.h"
#include "topkv/error.h"

namespace topkv {
namespace {

const std::string bundled_folder = std::string(TOPKV_SOURCE_DIR) + "/models/needle-14m";
constexpr std::int64_t mib = 1 << 20;

std::int64_t item(const PlacePlan& place, const std::string& what) {
  for (const MemoryItem& item : place.items) {
    if (item.what == what) return item.bytes;
  }
  ADD_FAILURE() << "no item " << what;
  return 0;
}

TEST(MemoryPlan, EveryWayIsThereOnceTheMostExactFirst) {
  const auto plans = memory_plans(bundled_folder, {.tokens = 1 << 20, .memory = 64LL << 30});
  EXPECT_EQ(plans.size(), 3U * 4 * 2);
  std::set<std::string> flags;
  for (const MemoryPlan& plan : plans) {
    flags.insert(plan.flags());
    std::int64_t sum = 0;
    for (const MemoryItem& item : plan.host.items) sum += item.bytes;
    EXPECT_EQ(plan.host.peak, sum);
    EXPECT_TRUE(plan.gpu.items.empty());
    EXPECT_EQ(plan.host.limit, 64LL << 30);
  }
  EXPECT_EQ(flags.size(), plans.size());
  EXPECT_EQ(plans.front().flags(), "--weights stored --kv-dtype bf16 --kv-index codes:k=32,v=8");
  for (const MemoryPlan& plan : plans) EXPECT_EQ(plan.prefill.mode, Prefill::dense);
  EXPECT_TRUE(std::ranges::is_sorted(plans, {}, &MemoryPlan::loss));
  EXPECT_EQ(best_fitting_plan(plans), plans.data());
  EXPECT_EQ(next_better_plan(plans, plans.data()), nullptr);
}

TEST(MemoryPlan, KeysWhoseBiasesAreNotTakenOffAreNotPlannedIn4Bits) {
  const TempDirectory directory;
  nlohmann::json config = nlohmann::json::parse(std::ifstream(bundled_folder + "/config.json"));
  const PlanRequest request{.tokens = 1 << 20, .memory = 64LL << 30};
  PlanRequest settled = request;
  settled.rows = KvDType(DType::q4);
  const auto write = [&](const char* type, bool bias) {
    config["model_type"] = type;
    config["attention_bias"] = bias;
    directory.write("config.json", config.dump());
  };
  write("qwen2", false);  // it always has them, and RoPE turns them as they are
  EXPECT_EQ(memory_plans(directory.path(), request).size(), 3U * 4 * 2);
  write("qwen3", false);
  EXPECT_EQ(memory_plans(directory.path(), request).size(), 3U * 4 * 2);
  write("qwen3", true);  // a norm comes behind them
  const auto plans = memory_plans(directory.path(), request);
  EXPECT_EQ(plans.size(), 3U * 3 * 2);
  for (const MemoryPlan& plan : plans) EXPECT_NE(plan.rows.keys, DType::q4) << plan.flags();
  EXPECT_EQ(memory_plans(directory.path(), settled).size(), 3U * 2);
}

TEST(MemoryPlan, TheChosenOneFitsAndNothingMoreExactDoes) {
  for (const std::int64_t memory : {1200, 1600, 2200, 2800, 3500, 4700, 5200}) {
    const auto plans = memory_plans(bundled_folder, {.tokens = 1 << 20, .memory = memory * mib});
    const MemoryPlan* chosen = best_fitting_plan(plans);
    const MemoryPlan* up = next_better_plan(plans, chosen);
    for (const MemoryPlan& plan : plans) {
      if (&plan == chosen) break;
      EXPECT_GT(plan.host.peak, memory * mib) << plan.flags();
      ASSERT_NE(up, nullptr);
      EXPECT_GE(plan.missing(), up->missing());
    }
    if (chosen == nullptr) continue;
    EXPECT_LE(chosen->host.peak, memory * mib);
    EXPECT_EQ(chosen->missing(), 0);
  }
  EXPECT_EQ(
      best_fitting_plan(memory_plans(bundled_folder, {.tokens = 1 << 20, .memory = 512 * mib})),
      nullptr);
}

TEST(MemoryPlan, SizesAreWhatWeightsAndContextsTake) {
  constexpr std::int64_t tokens = 8192;
  std::vector<Token> text(tokens);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<Token>(2 + i * 7919 % 4000);
  for (const auto& [weights, rows] : {std::pair(WeightFormat::stored, KvDType(DType::bf16)),
                                      {WeightFormat::int8, KvDType(DType::q8, DType::q4)}}) {
    const auto plans =
        memory_plans(bundled_folder, {.tokens = tokens, .weights = weights, .rows = rows});
    ASSERT_EQ(plans.size(), 2U);  // the default codes, and half of them
    const MemoryPlan& plan = plans.front();
    EXPECT_EQ(item(plan.host, "weights"),
              Model::plan(bundled_folder, {}, {}, {}, weights).weights_bytes);
    const Model model = Model::load(bundled_folder, {}, {}, {.weights = weights});
    PrefillOptions options;
    options.attention.mode = Prefill::window;
    options.kv_dtype = rows;
    auto context = model.prefill(text, options);
    EXPECT_EQ(item(plan.host, "rows"), context->memory().rows_bytes);
    context = context->with_index(plan.index);
    const auto codes = static_cast<double>(context->memory().index_bytes);
    // Beside a byte for each code there are axes and levels, some 90 KiB a head whatever the
    // tokens.
    const double axes = 96.0 * 1024 * 16;
    EXPECT_GE(codes, static_cast<double>(item(plan.host, "codes")));
    EXPECT_LE(codes, static_cast<double>(item(plan.host, "codes")) + axes);
    EXPECT_EQ(plan.host.reads, item(plan.host, "weights") + item(plan.host, "codes"));
    EXPECT_EQ(plan.gpu.reads, 0);
  }
}

TEST(MemoryPlan, WhatIsSettledStaysAndExactReadsKeys) {
  const auto plans = memory_plans(bundled_folder, {.tokens = 4096,
                                                   .weights = WeightFormat::int4,
                                                   .rows = KvDType(DType::q8),
                                                   .index = "exact"});
  ASSERT_EQ(plans.size(), 1U);
  EXPECT_EQ(plans[0].flags(), "--weights int4 --kv-dtype q8 --kv-index exact");
  const auto by_host = memory_plans(bundled_folder, {.tokens = 4096, .host_search = true});
  EXPECT_EQ(by_host[0].flags(),
            "--weights stored --kv-dtype bf16 --kv-index codes:k=32,v=8 --kv-host-search");
  EXPECT_EQ(plans[0].host.reads,
            item(plans[0].host, "weights") + 4096 * 8 * 2 * vector_bytes(DType::q8, 64));
}

TEST(MemoryPlan, SaysHowTheContextIsPrefilled) {
  PlanRequest request{.tokens = 1 << 20, .memory = 64LL << 30};
  request.prefill.mode = Prefill::automatic;
  EXPECT_EQ(memory_plans(bundled_folder, request).front().prefill.mode, Prefill::sparse);
  request.prefill.mode = Prefill::window;
  EXPECT_EQ(memory_plans(bundled_folder, request).front().prefill.mode, Prefill::window);
}

TEST(MemoryPlan, CountsThePassOfATurn) {
  PlanRequest request{.tokens = 4096, .memory = 64LL << 30};
  const PlacePlan without = memory_plans(bundled_folder, request).front().host;
  request.turns = PrefillAttention{.mode = Prefill::automatic};
  const PlacePlan with = memory_plans(bundled_folder, request).front().host;
  EXPECT_GE(with.peak, without.peak);
  EXPECT_EQ(with.peak - without.peak, with.items[1].bytes - without.items[1].bytes);
  EXPECT_GE(with.items[1].bytes, without.items[1].bytes);
}

TEST(MemoryPlan, CountsADraftModel) {
  PlanRequest request{.tokens = 4096, .memory = 64LL << 30};
  const PlacePlan without = memory_plans(bundled_folder, request).front().host;
  request.draft_model = bundled_folder;
  const PlacePlan with = memory_plans(bundled_folder, request).front().host;
  const std::int64_t rows = item(with, "rows of the draft model");
  const std::int64_t others = item(with, "draft model: weights, activations");
  EXPECT_EQ(with.peak, without.peak + rows + others);
  EXPECT_GT(others, item(with, "weights"));
  const auto model = std::make_shared<const Model>(::test::bundled(Device()));
  EXPECT_EQ(rows, DraftModel(model, *model).session_bytes());
  request.drafts.window = 4096;
  EXPECT_GT(item(memory_plans(bundled_folder, request).front().host, "rows of the draft model"),
            3 * rows);
  request.drafts.window = 1;
  EXPECT_THROW(memory_plans(bundled_folder, request), InvalidArgument);
  EXPECT_EQ(DraftModel::device_bytes(bundled_folder, Device()), 0);
}

TEST(MemoryPlan, CountsADraftLayer) {
  const TempDirectory folder;
  ::test::write_with_draft_layer(folder.path(), "qwen3-5");
  PlanRequest request{.tokens = 200, .memory = 64LL << 30};
  const PlacePlan without =
      memory_plans(::test::fixtures("parity") / "qwen3-5", request).front().host;
  const PlacePlan with = memory_plans(folder.path(), request).front().host;
  const std::int64_t kept = item(with, "states and rows of the draft layer");
  const std::int64_t others = item(with, "draft layer: weights, activations");
  EXPECT_EQ(kept, Model::load(folder.path()).draft_layer_bytes());
  EXPECT_GT(others, 0);
  EXPECT_EQ(with.peak, without.peak + kept + others);
  // A draft model takes the layer's place.
  request.draft_model = folder.path();
  const PlacePlan by_model = memory_plans(folder.path(), request).front().host;
  for (const MemoryItem& one : by_model.items)
    EXPECT_NE(one.what, "states and rows of the draft layer");
}

TEST(MemoryPlan, OfAGpuThatNeedNotBeHere) {
  if (Device::open("auto").is_cuda()) GTEST_SKIP() << "see gpu_model_memory_test";
  const PlanRequest request{.tokens = 1 << 20, .gpu_memory = 4LL << 30, .memory = 64LL << 30};
  try {
    const auto plans = memory_plans(bundled_folder, request);
    const PlacePlan& gpu = plans.front().gpu;
    EXPECT_TRUE(gpu.fits());
    EXPECT_GE(gpu.items.size(), 6U);
    // bf16, and codes of 32 and 8 bytes of 16 heads.
    EXPECT_GE(item(gpu, "weights"), 27 * mib);
    EXPECT_GE(item(gpu, "codes of the context"), 640 * mib);
    EXPECT_LE(item(gpu, "codes of the context"), 720 * mib);
    PlanRequest by_host = request;
    by_host.host_search = true;
    const MemoryPlan other = memory_plans(bundled_folder, by_host).front();
    EXPECT_EQ(item(other.gpu, "codes of the context"), 0);
    EXPECT_EQ(item(other.host, "codes"), item(plans.front().host, "codes"));
    EXPECT_EQ(other.host.reads, item(other.host, "codes"));
    EXPECT_EQ(plans.front().host.reads, 0);
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("without CUDA"), std::string::npos) << error.what();
  }
}

TEST(MemoryPlan, WhatCannotBePlannedIsRefused) {
  EXPECT_THROW(memory_plans(bundled_folder, {.tokens = 0}), InvalidArgument);
  EXPECT_THROW(memory_plans(bundled_folder, {.tokens = std::int64_t{1} << 50}), InvalidArgument);
  EXPECT_THROW(memory_plans(bundled_folder, {.tokens = 1, .gpu_memory = -1}), InvalidArgument);
  EXPECT_THROW(memory_plans(bundled_folder, {.tokens = 1, .memory = -1}), InvalidArgument);
  EXPECT_THROW(memory_plans(bundled_folder, {.tokens = 1, .index = "hnsw:M=16"}), InvalidArgument);
  EXPECT_THROW(memory_plans(bundled_folder, {.tokens = 1, .index = "codes:k=nine"}),
               InvalidArgument);
  EXPECT_THROW(memory_plans("/no/such/model", {.tokens = 1}), FileError);
}

}  // namespace
}  // namespace topkv
