// ggml's blocks against what the gguf package reads from them (tools/make_gguf_blocks.py).
#include "src/model/weights/gguf_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

/// What a code of four bits stands for (OCP Microscaling Formats 1.0), twice.
float of_fp4(int code) {
  constexpr float twice[] = {0, 1, 2, 3, 4, 6, 8, 12};
  return code < 8 ? twice[code] : -twice[code - 8];
}

std::vector<float> values_of(const GgufFile::Tensor& tensor) {
  const BlockFormat& format = *find_block_format(*tensor.type);
  const std::int64_t inputs = tensor.type->inputs;
  std::vector<float> values;
  for (std::int64_t b = 0; b < tensor.shape.back() / inputs; ++b) {
    std::vector<std::int8_t> codes(static_cast<std::size_t>(inputs));
    std::vector<float> scales(static_cast<std::size_t>(inputs / format.group));
    std::vector<float> offsets(scales.size());
    format.read(tensor.bytes.data() + b * tensor.type->bytes, codes.data(), scales.data(),
                offsets.data());
    for (std::int64_t i = 0; i < inputs; ++i) {
      const auto g = static_cast<std::size_t>(i / format.group);
      const int code = codes[static_cast<std::size_t>(i)];
      EXPECT_TRUE(format.packing != Packing::int4 || (code >= -8 && code <= 7)) << code;
      EXPECT_TRUE(format.packing != Packing::fp4 || (code >= 0 && code <= 15)) << code;
      const float number = format.packing == Packing::fp4 ? of_fp4(code) : static_cast<float>(code);
      values.push_back(scales[g] * number + (format.has_offsets ? offsets[g] : 0));
    }
  }
  return values;
}

TEST(GgufBlocks, AreTheValuesThatTheFormatsOwnPackageReads) {
  const std::filesystem::path path =
      std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/gguf_blocks.gguf";
  const GgufFile file = GgufFile::open(path);
  int types = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name.ends_with(".values")) continue;
    SCOPED_TRACE(name);
    ++types;
    EXPECT_EQ(tensor.type->name, name);
    const BlockFormat* format = find_block_format(*tensor.type);
    ASSERT_NE(format, nullptr);
    const GgufFile::Tensor& expected = file.tensors().find(name + ".values")->second;
    const std::vector<float> values = values_of(tensor);
    ASSERT_EQ(values.size() * sizeof(float), expected.bytes.size());
    std::vector<float> want(values.size());
    std::memcpy(want.data(), expected.bytes.data(), expected.bytes.size());
    const float largest =
        std::abs(*std::ranges::max_element(want, {}, [](float x) { return std::abs(x); }));
    EXPECT_GT(largest, 0);
    // An offset is rounded once; all other values are kept.
    const float tolerance = format->has_offsets ? 2e-7F * largest : 0;
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(values[i], want[i], tolerance) << i;
  }
  EXPECT_EQ(types, 23);
}

// NVFP4 has a scale for each matrix beside the blocks, in a tensor of its own.
TEST(GgufBlocks, AMatrixMayHaveAScaleOfItsOwn) {
  const TempDirectory temp;
  const Sizes sizes{.hidden = 64, .mlp = 64, .vocab = 60, .head = 32};
  const auto model = [&](float block_scale, const std::vector<float>& scale, std::uint32_t type) {
    gguf::File file = gguf::llama(config_of(sizes), random_tensors(sizes));
    gguf::Tensor& up = file.tensor("blk.1.ffn_up.weight");
    up.type = type;
    if (type == 8) {  // q8_0
      up.bytes.clear();
      for (int block = 0; block < 64 * 2; ++block) {
        const auto half = static_cast<_Float16>(block_scale);
        up.bytes += gguf::bytes(half);
        for (int i = 0; i < 32; ++i)
          up.bytes += static_cast<char>((block * 37 + i * 11) % 200 - 100);
      }
    }
    if (!scale.empty()) {
      std::string bytes;
      for (const float x : scale) bytes += gguf::bytes(x);
      file.tensors.push_back({"blk.1.ffn_up.scale", {scale.size()}, 0, bytes});
      file.tensors.push_back({"blk.1.ffn_up.input_scale", {1}, 0, gguf::bytes(3.0F)});
    }
    return temp.write("scaled.gguf", file.content());
  };
  const auto tokens = some_tokens(12, 60);
  const auto logits = Model::load(model(0.5F, {}, 8)).logits(tokens);
  EXPECT_EQ(Model::load(model(2, {0.25F}, 8)).logits(tokens), logits);
  EXPECT_NE(Model::load(model(2, {0.5F}, 8)).logits(tokens), logits);
  const auto expect = [&](const std::filesystem::path& path, auto error,
                          const std::vector<std::string_view>& says) {
    expect_error<decltype(error)>([&] { Model::load(path); }, path.string() + ": ", says);
  };
  expect(model(2, {0.5F, 1}, 8), FileError(""), {"ffn_up.scale has shape [2]", "[1]"});
  expect(model(2, {INFINITY}, 8), FileError(""), {"ffn_up.scale has inf"});
  expect(model(2, {1e38F}, 8), FileError(""), {"ffn_up.weight has scale or offset", "1e30"});
  expect(model(2, {0.5F}, 0), Unsupported(""), {"ffn_up.weight is of type f32", "0.5"});
}

}  // namespace
}  // namespace topkv
