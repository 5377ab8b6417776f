// Plans of a prefill for a CUDA device: which mode they say, with the memory of that mode.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>

#include "src/model/model_impl.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// A device whose prefill takes memory for each token of a text in which tokens choose keys, and
/// none else.
class SparseSizes final : public DeviceSizes {
 public:
  static constexpr std::int64_t of_token = 4096;

  bool is_cuda() const override { return true; }
  DType operand_dtype() const override { return DType::bf16; }
  std::int64_t prefill_chunk() const override { return 8192; }
  std::int64_t upload_bytes(const Matrix& /*host*/) const override { return 0; }
  std::int64_t prefill_attention_bytes(const AttentionShape& /*shape*/,
                                       const PrefillVisibility& visible, KvDType /*rows*/,
                                       std::int64_t /*chunk*/, std::int64_t tokens) const override {
    for (const LayerVisibility& layer : visible)
      if (layer.chooses()) return tokens * of_token;
    return 0;
  }
  std::int64_t decode_backend_bytes(const SessionShape& /*shape*/) const override { return 0; }
};

constexpr std::int64_t text_tokens = 1 << 20;
constexpr std::int64_t ample = 64LL << 30;  // bytes of device memory
constexpr std::int64_t scarce = 2LL << 30;  // less than the rows of a layer

ModelConfig needle_config() { return ModelConfig::load(TOPKV_SOURCE_DIR "/models/needle-14m"); }

DevicePlan plan_of(const ModelConfig& config, Prefill mode, std::int64_t tokens,
                   std::int64_t ceiling, std::int64_t keys = 8192) {
  DeviceMemory memory;
  memory.ceiling = ceiling;
  return plan_device(config, {}, SparseSizes(), memory, {.attention = {.mode = mode, .keys = keys}},
                     {}, tokens);
}

// A session reads a turn while it is there itself, after the context's prefill.
TEST(PrefillPlan, CountsATurnBesideTheSession) {
  const ModelConfig config = needle_config();
  DeviceMemory memory;
  memory.ceiling = ample;
  const auto plan = [&](const std::optional<PrefillAttention>& turns) {
    RetrievalOptions retrieval;
    retrieval.turns = turns;
    return plan_device(config, {}, SparseSizes(), memory, {.chunk = 256}, retrieval, text_tokens);
  };
  const DevicePlan without = plan({});
  const DevicePlan dense = plan(PrefillAttention{.mode = Prefill::automatic});
  const DevicePlan sparse = plan(PrefillAttention{.mode = Prefill::sparse});
  ASSERT_EQ(without.items.size() + 1, dense.items.size());
  EXPECT_GT(dense.items.back().bytes, 0);
  EXPECT_LT(dense.items.back().bytes, scarce);
  EXPECT_GT(dense.peak, without.peak);
  EXPECT_EQ(sparse.items.back().bytes - dense.items.back().bytes,
            (text_tokens + RetrievalOptions().capacity) * SparseSizes::of_token);
  EXPECT_EQ(sparse.peak - dense.peak, sparse.items.back().bytes - dense.items.back().bytes);
}

TEST(PrefillPlan, HasTheModeOfItsMemory) {
  const ModelConfig config = needle_config();
  const DevicePlan sparse = plan_of(config, Prefill::automatic, text_tokens, ample);
  EXPECT_EQ(sparse.prefill.mode, Prefill::sparse);
  EXPECT_GE(sparse.items[3].bytes, text_tokens * SparseSizes::of_token);
  const DevicePlan dense = plan_of(config, Prefill::automatic, text_tokens, scarce);
  EXPECT_EQ(dense.prefill.mode, Prefill::dense);
  EXPECT_LT(dense.items[3].bytes, scarce);
  EXPECT_TRUE(dense.fits());
  EXPECT_EQ(plan_of(config, Prefill::automatic, 32768, ample).prefill.mode, Prefill::dense);
  const DevicePlan asked = plan_of(config, Prefill::sparse, text_tokens, scarce);
  EXPECT_EQ(asked.prefill.mode, Prefill::sparse);
  EXPECT_FALSE(asked.fits());
}

TEST(PrefillPlan, HasLongChunksIfTokensChoose) {
  const ModelConfig config = needle_config();
  const auto chunk = [&](std::int64_t tokens, double mass) {
    DeviceMemory memory;
    memory.ceiling = ample;
    const PrefillAttention attention{
        .mode = Prefill::sparse, .window = 1024, .keys = 65536, .least_keys = 512, .mass = mass};
    return plan_device(config, {}, SparseSizes(), memory, {.attention = attention}, {}, tokens)
        .chunk;
  };
  EXPECT_EQ(chunk(text_tokens, 0.9), 32768);
  EXPECT_EQ(chunk(40000, 0.9), 32768);
  EXPECT_EQ(chunk(40000, 1), 8192);  // no more than `keys`
  EXPECT_EQ(chunk(0, 1), 32768);
}

TEST(PrefillPlan, IsDenseWithoutASparseOneOnTheDevice) {
  ModelConfig config = needle_config();
  EXPECT_EQ(plan_of(config, Prefill::automatic, text_tokens, ample, 65537).prefill.mode,
            Prefill::dense);
  config.attention.q_heads = 256 * config.attention.kv_heads;
  const DevicePlan plan = plan_of(config, Prefill::automatic, text_tokens, ample);
  EXPECT_EQ(plan.prefill.mode, Prefill::dense);
  EXPECT_LT(plan.items[3].bytes, text_tokens * SparseSizes::of_token);
  try {
    plan_of(config, Prefill::sparse, text_tokens, ample);
    FAIL() << "not refused";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("256 query heads"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace topkv
