// Dual chunk attention of a config.json: what is read, and what is refused; and the positions that
// come of it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "src/model/config/dual_chunk.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

class ConfigChunks : public testing::Test {
 protected:
  ModelConfig load(const Json& chunks, const char* type = "qwen2", const Json& changes = {}) {
    Json config = {{"model_type", type},       {"vocab_size", 100},
                   {"hidden_size", 64},        {"intermediate_size", 128},
                   {"num_hidden_layers", 4},   {"num_attention_heads", 8},
                   {"num_key_value_heads", 2}, {"max_position_embeddings", 1010000},
                   {"head_dim", 16},           {"dual_chunk_attention_config", chunks}};
    if (!changes.is_null()) config.update(changes);
    temp_.write("config.json", config.dump());
    return ModelConfig::load(temp_.path());
  }
  template <class Expected>
  void refused(const Json& chunks, const std::string& part, const char* type = "qwen2",
               const Json& changes = {}) {
    try {
      load(chunks, type, changes);
      ADD_FAILURE() << "no error for " << chunks << changes;
    } catch (const Expected& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("config.json"), std::string::npos) << error.what();
    }
  }
  TempDirectory temp_;
};

// Of Qwen2.5-7B-Instruct-1M.
const Json qwen = {
    {"chunk_size", 262144}, {"local_size", 8192}, {"original_max_position_embeddings", 262144}};

TEST_F(ConfigChunks, AreReadOfEveryFamilyThatTurnsWholeHeads) {
  for (const char* type : {"qwen2", "qwen3", "llama", "mistral"}) {
    const ModelConfig config = load(qwen, type, {{"sliding_window", nullptr}});
    EXPECT_EQ(config.dual_chunk.chunk_size, 262144);
    EXPECT_EQ(config.dual_chunk.local_size, 8192);
    EXPECT_EQ(config.dual_chunk.original_max_position, 262144);
    EXPECT_EQ(config.attention.chunk_len, 253952);
    EXPECT_EQ(config.reach(), 1010000);
    EXPECT_EQ(config.warnings, std::vector<std::string>());
  }
  // Nothing is said with nothing.
  for (const Json& none : {Json(nullptr), Json::object()}) {
    EXPECT_EQ(load(none).attention.chunk_len, 0);
    EXPECT_EQ(load(none).dual_chunk.chunk_size, 0);
  }
}

TEST_F(ConfigChunks, MissingKeysMeanWhatTheyMeanInVllm) {
  const ModelConfig config = load({{"original_max_position_embeddings", 0}});
  EXPECT_EQ(config.dual_chunk.chunk_size, 8192);
  EXPECT_EQ(config.dual_chunk.local_size, 1024);
  EXPECT_EQ(config.dual_chunk.original_max_position, 0);
}

TEST_F(ConfigChunks, WhichKeysAPrefillMaySkipIsLeftAside) {
  Json sparse = qwen;
  sparse["sparse_attention_config"] = {{{"0", {"vertical_and_slash", 1000, 6096, 1}}}};
  sparse["sparse_attention_enabled"] = true;
  sparse["sparse_attention_threshold"] = 32768;
  EXPECT_EQ(load(sparse).warnings, std::vector<std::string>());
  sparse["chunk_magic"] = 3;
  const auto warnings = load(sparse).warnings;
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("dual_chunk_attention_config.chunk_magic is 3"), std::string::npos)
      << warnings[0];
}

TEST_F(ConfigChunks, NumbersThatCannotBeAreRefused) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto chunks = [](const Json& size, const Json& local) {
    return Json{{"chunk_size", size}, {"local_size", local}};
  };
  for (const Json& size : {Json(0), Json(1), Json(-8), Json(most), Json(1e300), Json("8192"),
                           Json(8192.5), Json(nullptr)}) {
    refused<FileError>(chunks(size, 0), "dual_chunk_attention_config.chunk_size is ");
  }
  for (const Json& local : {Json(8192), Json(8193), Json(-1), Json(most), Json(true)})
    refused<FileError>(chunks(8192, local), "dual_chunk_attention_config.local_size is ");
  for (const Json& original : {Json(-1), Json(most), Json("x")}) {
    refused<FileError>({{"original_max_position_embeddings", original}},
                       "dual_chunk_attention_config.original_max_position_embeddings is ");
  }
  refused<FileError>(Json::array({1}), "dual_chunk_attention_config");
  refused<FileError>(Json(8192), "dual_chunk_attention_config");
  EXPECT_EQ(load(chunks(2, 1)).attention.chunk_len, 1);
  EXPECT_EQ(load({{"chunk_size", 512}}).dual_chunk.local_size, 511);
}

TEST_F(ConfigChunks, OtherPositionsBesideThemAreRefused) {
  const Json yarn = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  refused<Unsupported>(qwen, "without a scaling of RoPE", "qwen2", {{"rope_scaling", yarn}});
  refused<Unsupported>(qwen, "without sliding windows", "mistral", {{"sliding_window", 4096}});
  refused<Unsupported>(qwen, "without a part of each head that RoPE does not rotate", "glm");
  refused<Unsupported>(qwen, "without layers that have no RoPE", "smollm3");
}

TEST(ChunkPositions, AreThoseOfThePaperAsVllmHasThem) {
  const DualChunk qwen_1m{.chunk_size = 262144, .local_size = 8192};
  const ChunkPositions of(qwen_1m);
  EXPECT_EQ(of.within(253951), 253951);
  EXPECT_EQ(of.within(253952), 0);
  EXPECT_EQ(of.within(999999), 999999 - 3 * 253952);
  EXPECT_EQ(of.next(253952), 253952);
  EXPECT_EQ(of.next(253952 + 8191), 262143);
  EXPECT_EQ(of.next(253952 + 8192), 262144);
  EXPECT_EQ(of.next(253952 + 200000), 262144);
  EXPECT_EQ(of.far(), 262144);
  // No query is further away than a model was trained for, and near ones are where they are.
  const DualChunk small{.chunk_size = 24, .local_size = 8};
  const ChunkPositions few(small);
  for (std::int64_t p = 16; p < 100; ++p) {
    for (std::int64_t x = p / 16 * 16 - 16; x < p / 16 * 16; ++x) {
      EXPECT_GT(few.next(p) - few.within(x), 0);
      EXPECT_LE(few.next(p) - few.within(x), 24);
      if (p - x <= 8) {
        EXPECT_EQ(few.next(p) - few.within(x), p - x) << p << ", " << x;
      }
    }
  }
  EXPECT_EQ(ChunkPositions(DualChunk{.chunk_size = 24, .local_size = 14}).far(), 19);
}

TEST(ChunkPositions, SayWhereTheNextChunkIsAsFarAsAllOthers) {
  for (const auto& [size, local] : {std::pair{24, 8}, {24, 14}, {24, 0}, {2, 1}}) {
    const DualChunk chunks{.chunk_size = size, .local_size = local};
    const ChunkPositions of(chunks);
    for (std::int64_t first = 0; first < 70; ++first) {
      for (std::int64_t tokens = 1; tokens < 40; ++tokens) {
        bool all = true;
        for (std::int64_t p = first; p < first + tokens; ++p) all = all && of.next(p) == of.far();
        EXPECT_EQ(of.next_is_far(first, tokens), all)
            << size << " " << local << ": " << tokens << " from " << first;
      }
    }
  }
}

TEST(ChunkPositions, ScoresGrowFromTheOriginalLengthOn) {
  const DualChunk chunks{.chunk_size = 24, .local_size = 8, .original_max_position = 100};
  const ChunkPositions of(chunks);
  EXPECT_EQ(of.temperature(1), 1);
  EXPECT_EQ(of.temperature(100), 1);
  EXPECT_DOUBLE_EQ(of.temperature(400), 1 + 0.1 * std::log(4.0));
  EXPECT_EQ(ChunkPositions(DualChunk{.chunk_size = 24}).temperature(1 << 30), 1);
}

}  // namespace
}  // namespace topkv
