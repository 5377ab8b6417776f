// What a model takes of a device's memory: what the plan says, and never more than the ceiling.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <string>

#include "tests/support/bundled_model.h"
#include "tests/support/needs_gpu.h"
#include "topkv/error.h"
#include "topkv/memory_plan.h"

namespace topkv {
namespace {

constexpr std::int64_t mib = 1 << 20;
constexpr std::int64_t ample = std::int64_t{4} << 30;

std::string directory() { return TOPKV_SOURCE_DIR "/models/needle-14m"; }

const PrefillOptions prefill_options{.chunk = 1024};

const RetrievalOptions session_options{
    .k = TopK::same(64), .dense_layers = 1, .window = 2000, .capacity = 1024};

DevicePlan plan_of(const Device& device) {
  return Model::plan(directory(), device, prefill_options, session_options);
}

/// Loads, prefills, and generates.
void run(const Device& device) {
  const Model model = test::bundled(device);
  const auto context = model.prefill(test::text_with_fact(model, 4096), prefill_options);
  Session session(context, session_options, device);
  model.generate(session, test::question(model), {.max_tokens = 4});
}

/// What a device holds when it is opened does not change any more: the CUDA context stays, and so
/// does the code that its libraries load when it is first needed.
void load_all_code() { run(Device::open("cuda", ample)); }

TEST(CudaMemory, ACeilingBelowTheLibrariesIsRefusedWithNumbers) {
  TOPKV_NEEDS_GPU();
  try {
    Device::open("cuda", mib);
    ADD_FAILURE() << "a device under a ceiling of 1 MiB was opened";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.available_bytes(), mib);
    EXPECT_GT(error.wanted_bytes(), mib);
    const std::string what = error.what();
    EXPECT_NE(what.find(std::to_string(error.wanted_bytes())), std::string::npos) << what;
    EXPECT_NE(what.find(std::to_string(mib)), std::string::npos) << what;
  }
}

TEST(CudaMemory, ACeilingBelowTheWeightsIsRefusedWithNumbersAndLeavesNothingBehind) {
  TOPKV_NEEDS_GPU();
  load_all_code();
  const std::int64_t libraries = Device::open("cuda", ample).memory().used;
  const Device device = Device::open("cuda", libraries + 16 * mib);
  const std::int64_t used = device.memory().used;
  try {
    test::bundled(device);
    ADD_FAILURE() << "28 MB of weights were loaded";
  } catch (const OutOfMemory& error) {
    EXPECT_GT(error.wanted_bytes(), 20 * mib);
    EXPECT_LE(error.available_bytes(), 16 * mib + device.memory().ceiling / 10);
    const std::string what = error.what();
    EXPECT_NE(what.find("weights"), std::string::npos) << what;
    EXPECT_NE(what.find(std::to_string(error.wanted_bytes())), std::string::npos) << what;
  }
  EXPECT_EQ(device.memory().used, used);
}

TEST(CudaMemory, ARunTakesWhatThePlanSaid) {
  TOPKV_NEEDS_GPU();
  const Device device = Device::open("cuda", ample);
  const std::int64_t before = device.memory().used;
  const DevicePlan plan = plan_of(device);
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.chunk, 1024);
  run(device);
  const DeviceMemory memory = device.memory();
  std::cout << "planned " << plan.peak - before << " bytes besides the libraries, taken "
            << memory.peak - before << '\n';
  EXPECT_LE(memory.peak, plan.peak);
  EXPECT_GE(static_cast<double>(memory.peak - before),
            0.8 * static_cast<double>(plan.peak - before));
  EXPECT_EQ(memory.used, before) << "the model gave its memory back";
}

// The planner needs no device, and knows what this one takes but for CUDA itself.
TEST(CudaMemory, APlanWithoutTheDeviceIsWhatTheDeviceTakes) {
  TOPKV_NEEDS_GPU();
  load_all_code();
  constexpr std::int64_t tokens = 65536;
  for (const auto& [weights, rows] :
       {std::pair(WeightFormat::stored, KvDType(DType::bf16)),
        {WeightFormat::int8, KvDType(DType::q8)}, {WeightFormat::int4, KvDType(DType::q4)}}) {
    SCOPED_TRACE(std::string(name_of(weights)));
    const Device device = Device::open("cuda", ample);
    const std::int64_t before = device.memory().used;
    const auto plans = memory_plans(
        directory(), {.tokens = tokens, .gpu_memory = ample, .weights = weights, .rows = rows});
    const MemoryPlan& plan = plans.front();
    const std::int64_t planned = plan.gpu.peak - plan.gpu.items.front().bytes;
    {
      const Model model = Model::load(directory(), device, {}, {.weights = weights});
      PrefillOptions options;
      options.kv_dtype = rows;
      const auto context = model.prefill(test::text_with_fact(model, tokens - 1024), options)
                               ->with_index(plan.index, {}, device);
      Session session(context, {.index = plan.index, .capacity = 1024}, device);
      model.generate(session, test::question(model), {.max_tokens = 4});
      EXPECT_LE(session.stats().device_index_bytes, plan.gpu.items.back().bytes);
    }
    const std::int64_t taken = device.memory().peak - before;
    std::cout << "planned " << planned << " bytes besides CUDA, taken " << taken << '\n';
    EXPECT_LE(taken, planned);
    EXPECT_GE(static_cast<double>(taken), 0.8 * static_cast<double>(planned));
  }
}

TEST(CudaMemory, APlanFitsIfAndOnlyIfTheRunDoes) {
  TOPKV_NEEDS_GPU();
  load_all_code();
  const std::int64_t peak = plan_of(Device::open("cuda", ample)).peak;
  for (const std::int64_t difference : {64 * mib, std::int64_t{0}, -4 * mib, -32 * mib}) {
    const Device device = Device::open("cuda", peak + difference);
    const bool fits = plan_of(device).fits();
    if (difference > 0) {
      EXPECT_TRUE(fits);
    } else if (difference == -32 * mib) {
      EXPECT_FALSE(fits);
    }
    bool ran = true;
    try {
      run(device);
    } catch (const OutOfMemory&) {
      ran = false;
    }
    EXPECT_TRUE(ran || !fits) << "at " << difference << " bytes: planned to fit, but did not";
    if (difference == -32 * mib) {
      EXPECT_FALSE(ran);
    }
    EXPECT_LE(device.memory().peak, device.memory().ceiling);
  }
}

TEST(CudaMemory, AChunkIsChosenThatFits) {
  TOPKV_NEEDS_GPU();
  load_all_code();
  const std::int64_t ceiling =
      Model::plan(directory(), Device::open("cuda", ample), {.chunk = 2048}, {}).peak + 4 * mib;
  const Device device = Device::open("cuda", ceiling);
  const DevicePlan plan = Model::plan(directory(), device, {}, {});
  EXPECT_LT(plan.chunk, 8192);
  EXPECT_GE(plan.chunk, 256);
  EXPECT_TRUE(plan.fits());
  const Model model = test::bundled(device);
  const auto text = test::text_with_fact(model, 9000);
  EXPECT_EQ(model.prefill(text)->tokens(), static_cast<std::int64_t>(text.size()));
  EXPECT_LE(device.memory().peak, ceiling);
}

TEST(CudaMemory, GeneratingTakesRowsOfItsTokensAlone) {
  TOPKV_NEEDS_GPU();
  const Device device = Device::open("cuda", ample);
  const Model model = test::bundled(device);
  const auto context = model.prefill(test::text_with_fact(model, 3000), prefill_options);
  Session session(context, session_options, device);
  const DeviceMemory opened = device.memory();
  model.generate(session, test::question(model), {.max_tokens = 8});
  constexpr std::int64_t row_bytes = 8 * 2 * 2 * 64 * 2;  // of a token
  const std::int64_t tokens = std::ssize(test::question(model)) + 8;
  // At most twice as many, and half of that beside them as they grow; and a page.
  const std::int64_t most = 3 * tokens * row_bytes + 2 * mib;
  EXPECT_LE(device.memory().used, opened.used + most);
  EXPECT_LE(device.memory().peak, opened.peak + most);
}

}  // namespace
}  // namespace topkv
