// Biases of the keys of models (src/model/network/key_bias.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/core/math/row_format.h"
#include "tests/support/temp_directory.h"
#include "topkv/model.h"

namespace topkv {
namespace {

/// A copy of a fixture whose keys have biases of about 100 in every channel.
void copy_with_large_key_biases(const std::string& name, const std::filesystem::path& to) {
  const std::filesystem::path from =
      std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity" / name;
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  std::ifstream in(from / "model.safetensors", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto json = nlohmann::json::parse(bytes.substr(8, header));
  int biases = 0;
  for (const auto& [tensor, entry] : json.items()) {
    if (!tensor.ends_with("k_proj.bias")) continue;
    ++biases;
    ASSERT_EQ(entry.at("dtype"), "BF16");
    const std::size_t begin = entry.at("data_offsets").at(0);
    const std::size_t end = entry.at("data_offsets").at(1);
    for (std::size_t i = begin; i < end; i += 2) {
      // 64 to 127, with either sign.
      const auto bits =
          static_cast<std::uint16_t>(0x4280U + i * 37 % 128 + (i % 3 == 0 ? 0x8000U : 0U));
      std::memcpy(&bytes[8 + header + i], &bits, sizeof bits);
    }
  }
  ASSERT_GT(biases, 0);
  std::ofstream(to / "model.safetensors", std::ios::binary) << bytes;
}

// Halves and pairs of heads, all of a head and a part, scaled cosines, chunks: where the bias were
// turned another way than RoPE turns it, 8 bits would be off by a half at such biases.
TEST(KeyBias, IsTakenOffTheKeysOfEveryFamilyThatHasIt) {
  for (const char* name : {"qwen2-head96", "qwen2-yarn", "qwen2-chunks", "qwen2-window", "glm",
                           "glm4", "gpt-oss", "llama-bias-head64"}) {
    SCOPED_TRACE(name);
    const TempDirectory folder;
    copy_with_large_key_biases(name, folder.path() / name);
    std::vector<std::string> warnings;
    const Model model = Model::load(folder.path() / name, {},
                                    [&](const std::string& line) { warnings.push_back(line); });
    std::vector<Token> tokens;
    for (Token t = 0; t < 60; ++t) tokens.push_back(1 + t * 7 % 40);
    const auto exact = model.prefill(tokens, {.kv_dtype = DType::f32});
    const auto rounded = model.prefill(tokens, {.kv_dtype = {DType::q8, DType::f32}});
    const AttentionShape& shape = model.config().attention;
    double worst = 0;
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      const KeyView a = exact->rows(0, h).keys;
      const KeyView b = rounded->rows(0, h).keys;
      std::vector<float> x(static_cast<std::size_t>(shape.head_dim)), y(x.size());
      for (std::int64_t t = 0; t < a.count; ++t) {
        decode(a, t, x.data());
        decode(b, t, y.data());
        for (std::size_t i = 0; i < x.size(); ++i)
          worst = std::max(worst, std::abs(double{x[i]} - double{y[i]}));
      }
    }
    EXPECT_LT(worst, 0.05);
    EXPECT_EQ(
        std::ranges::count_if(
            warnings, [](const std::string& line) { return line.find("biases") != line.npos; }),
        0);
  }
}

TEST(KeyBias, BehindANormItIsWarnedOfOnce) {
  std::vector<std::string> warnings;
  const Model model = Model::load(
      std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity/qwen3-moe-window", {},
      [&](const std::string& line) { warnings.push_back(line); });
  const std::vector<Token> tokens = {1, 2, 3, 4};
  const auto told = [&] {
    return std::ranges::count_if(
        warnings, [](const std::string& line) { return line.find("biases") != line.npos; });
  };
  model.prefill(tokens, {.kv_dtype = {DType::q8, DType::q4}});
  EXPECT_EQ(told(), 0);
  model.prefill(tokens, {.kv_dtype = DType::q4});
  model.prefill(tokens, {.kv_dtype = DType::q4});
  EXPECT_EQ(told(), 1);
}

}  // namespace
}  // namespace topkv
