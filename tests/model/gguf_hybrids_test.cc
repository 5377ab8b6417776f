// Qwen's hybrids in GGUF files: what their metadata says, the layouts that llama.cpp's converter
// has had for their tensors, and what is refused. What they compute is in the fixtures of
// parity_test.cc.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/gguf_reader.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

constexpr std::uint32_t f32_type = 0;
constexpr std::uint64_t key_heads = 2, of_key = 2, dim = 16, hidden = 32;  // of the fixtures

gguf::File fixture_file(const std::string& name) {
  return gguf::Reader(std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity" / name /
                      "model.gguf")
      .read();
}

void remove(gguf::File& file, std::string_view name) {
  std::erase_if(file.tensors, [&](const gguf::Tensor& one) { return one.name == name; });
}

/// The bytes of the rows of a matrix, without what aligns the next tensor.
std::vector<std::string> rows_of(const gguf::Tensor& tensor, std::size_t row_bytes) {
  std::vector<std::string> rows;
  for (std::uint64_t r = 0; r < tensor.dims[1]; ++r)
    rows.push_back(tensor.bytes.substr(r * row_bytes, row_bytes));
  return rows;
}

std::string joined(const std::vector<std::string>& rows) {
  std::string all;
  for (const std::string& row : rows) all += row;
  return all;
}

class GgufHybrids : public testing::Test {
 protected:
  std::filesystem::path write(const gguf::File& file) const {
    return temp_.write("model.gguf", file.content());
  }
  ModelConfig config(const gguf::File& file) const { return ModelConfig::load(write(file)); }
  std::vector<float> logits(const gguf::File& file) const {
    return Model::load(write(file)).logits(some_tokens(20, 97));
  }

  /// of: the fixture. Both what loads the file and what plans it refuse it.
  template <class E>
  void expect_refused(const std::string& of, const std::function<void(gguf::File&)>& change,
                      const std::vector<std::string_view>& parts) const {
    SCOPED_TRACE(parts.front());
    gguf::File file = fixture_file(of);
    change(file);
    const std::filesystem::path path = write(file);
    expect_error<E>([&] { Model::load(path); }, path.string() + ": ", parts);
    expect_error<E>([&] { Model::plan(path, {}, {}, {}); }, path.string() + ": ", parts);
  }

  TempDirectory temp_;
};

TEST_F(GgufHybrids, MetadataGivesSizesAndLayers) {
  const ModelConfig dense = config(fixture_file("gguf-qwen35"));
  EXPECT_EQ(dense.model_type, "qwen3_5");
  EXPECT_EQ(dense.attention.layers, 4);  // and a block that drafts
  EXPECT_EQ(dense.delta.key_heads, 2);
  EXPECT_EQ(dense.delta.value_heads, 4);
  EXPECT_EQ(dense.delta.key_dim, 16);
  EXPECT_EQ(dense.delta.value_dim, 16);
  EXPECT_EQ(dense.delta.kernel, 4);
  EXPECT_TRUE(dense.delta.tiled);
  EXPECT_TRUE(dense.output_gate);
  EXPECT_EQ(dense.rotary_dim, 16);
  const std::int64_t state = dense.delta.state_size();
  EXPECT_EQ(dense.attention.state_size, (std::vector<std::int64_t>{state, state, state, 0}));
  EXPECT_TRUE(dense.warnings.empty()) << dense.warnings.front();

  const ModelConfig mixture = config(fixture_file("gguf-qwen35moe"));
  EXPECT_EQ(mixture.model_type, "qwen3_5_moe");
  EXPECT_TRUE(mixture.delta.tiled);
  EXPECT_EQ(mixture.attention.state_size, (std::vector<std::int64_t>{state, 0, state}));
  EXPECT_EQ(mixture.mixture.experts, 6);
  EXPECT_EQ(mixture.mixture.shared_intermediate_size, 64);
  EXPECT_TRUE(mixture.warnings.empty()) << mixture.warnings.front();

  gguf::File file = fixture_file("gguf-qwen3next");
  const ModelConfig next = config(file);
  EXPECT_EQ(next.model_type, "qwen3_next");
  EXPECT_FALSE(next.delta.tiled);
  EXPECT_EQ(next.mixture.shared_intermediate_size, 32);
  EXPECT_TRUE(next.warnings.empty()) << next.warnings.front();
  file.erase("qwen3next.full_attention_interval");  // 4
  file.erase("qwen3next.feed_forward_length");
  EXPECT_EQ(config(file).attention.state_size, next.attention.state_size);
}

TEST_F(GgufHybrids, BlocksThatDraftAreLeftOut) {
  gguf::File file = fixture_file("gguf-qwen35");
  const auto expected = logits(file);
  const auto plan = Model::plan(temp_.path() / "model.gguf", {}, {}, {});
  gguf::File damaged = file;
  for (gguf::Tensor& one : damaged.tensors) {
    if (one.name.starts_with("blk.4.")) std::ranges::fill(one.bytes, '\xff');  // NaN
  }
  damaged.tensors.push_back({"blk.4.of_another_kind.weight", {1}, f32_type, std::string(4, '\0')});
  EXPECT_EQ(logits(damaged), expected);

  gguf::File without = file;
  std::erase_if(without.tensors,
                [](const gguf::Tensor& one) { return one.name.starts_with("blk.4."); });
  without.set(gguf::number("qwen35.block_count", 4));
  without.erase("qwen35.nextn_predict_layers");
  EXPECT_EQ(logits(without), expected);
  EXPECT_EQ(Model::plan(write(without), {}, {}, {}).weights_bytes, plan.weights_bytes);
}

TEST_F(GgufHybrids, LayersMayBeListed) {
  gguf::File file = fixture_file("gguf-qwen35");
  const auto expected = logits(file);
  file.set(gguf::number("qwen35.full_attention_interval", 2));
  file.set(gguf::flags("qwen35.attention.recurrent_layers", {true, true, true, false, false}));
  EXPECT_EQ(logits(file), expected);
}

TEST_F(GgufHybrids, QAndItsGateMayLieWithKAndV) {
  gguf::File file = fixture_file("gguf-qwen35");
  const auto expected = logits(file);
  constexpr std::size_t row_bytes = 34;  // of 32 inputs in q8_0
  gguf::Tensor all = file.tensor("blk.3.attn_q.weight");
  std::string bytes;
  all.dims[1] = 0;
  for (const char* name : {"blk.3.attn_q.weight", "blk.3.attn_k.weight", "blk.3.attn_v.weight"}) {
    const gguf::Tensor& one = file.tensor(name);
    all.dims[1] += one.dims[1];
    bytes += joined(rows_of(one, row_bytes));
    remove(file, name);
  }
  all.name = "blk.3.attn_qkv.weight";
  all.bytes = bytes;
  file.tensors.push_back(all);
  EXPECT_EQ(logits(file), expected);
}

TEST_F(GgufHybrids, OldFilesOfQwen3NextHaveOneTensorForQKVAndZ) {
  gguf::File file = fixture_file("gguf-qwen3next");
  const auto expected = logits(file);
  constexpr std::size_t row_bytes = 24;  // of 32 inputs in q5_1
  for (const std::string at : {"blk.0.", "blk.1.", "blk.2."}) {
    const auto qkv = rows_of(file.tensor(at + "attn_qkv.weight"), row_bytes);
    const auto z = rows_of(file.tensor(at + "attn_gate.weight"), row_bytes);
    std::string bytes;
    const auto add = [&](const std::vector<std::string>& rows, std::uint64_t first,
                         std::uint64_t count) {
      for (std::uint64_t r = first; r < first + count; ++r) bytes += rows[r];
    };
    for (std::uint64_t h = 0; h < key_heads; ++h) {
      add(qkv, h * dim, dim);
      add(qkv, (key_heads + h) * dim, dim);
      add(qkv, (2 * key_heads + h * of_key) * dim, of_key * dim);
      add(z, h * of_key * dim, of_key * dim);
    }
    gguf::Tensor fused = file.tensor(at + "attn_qkv.weight");
    fused.name = at + "ssm_in.weight";
    fused.dims[1] += z.size();
    fused.bytes = bytes;
    remove(file, at + "attn_qkv.weight");
    remove(file, at + "attn_gate.weight");
    file.tensors.push_back(fused);
  }
  EXPECT_EQ(logits(file), expected);
  file.tensors.push_back(fixture_file("gguf-qwen3next").tensor("blk.0.attn_qkv.weight"));
  const auto path = write(file);
  expect_error<FileError>([&] { Model::load(path); }, path.string() + ": ",
                          {"blk.0.attn_qkv.weight and blk.0.ssm_in.weight"});
}

TEST_F(GgufHybrids, TheGateOfTheSharedExpertMayBeAVector) {
  gguf::File file = fixture_file("gguf-qwen35moe");
  const auto expected = logits(file);
  for (const std::string at : {"blk.0.", "blk.1.", "blk.2."}) {
    gguf::Tensor& gate = file.tensor(at + "ffn_gate_inp_shexp.weight");
    ASSERT_EQ(gate.dims, (std::vector<std::uint64_t>{hidden, 1}));
    gate.dims = {hidden};
  }
  EXPECT_EQ(logits(file), expected);
}

TEST_F(GgufHybrids, MetadataThatCannotBeIsRefused) {
  const auto number = [](const char* key, std::uint32_t value) {
    return [=](gguf::File& file) { file.set(gguf::number(key, value)); };
  };
  const auto expect = [&](const std::function<void(gguf::File&)>& change,
                          const std::vector<std::string_view>& parts) {
    expect_refused<FileError>("gguf-qwen35", change, parts);
  };
  expect(number("qwen35.ssm.group_count", 0), {"ssm.group_count is 0", "from 1 to 4096"});
  expect(number("qwen35.ssm.group_count", 3), {"time_step_rank is 4", "a multiple of the 3 heads"});
  expect(number("qwen35.ssm.inner_size", 63), {"inner_size is 63", "a multiple of the 4 heads"});
  expect(number("qwen35.ssm.state_size", 257), {"state_size is 257", "from 1 to 256"});
  expect(number("qwen35.ssm.conv_kernel", 1), {"conv_kernel is 1", "from 2 to 64"});
  expect(number("qwen35.nextn_predict_layers", 5), {"nextn_predict_layers is 5", "from 0 to 4"});
  expect(number("qwen35.full_attention_interval", 5),
         {"interval is 5", "the number of layers (4)"});
  expect([](gguf::File& file) { file.erase("qwen35.ssm.state_size"); }, {"state_size is missing"});
  const char* listed = "qwen35.attention.recurrent_layers";
  expect(
      [&](gguf::File& file) {
        file.set(gguf::flags(listed, {true, false}));
      },
      {"recurrent_layers", "each of the 5 blocks"});
  expect(
      [&](gguf::File& file) {
        file.set(gguf::flags(listed, {true, true, true, true, false}));
      },
      {"recurrent_layers", "one layer of full attention"});
  const char* sections = "qwen35.rope.dimension_sections";
  for (const std::vector<std::int32_t>& wrong : std::vector<std::vector<std::int32_t>>{
           {3, 3}, {0, 0, 0, 0}, {3, -3, 2, 0}, {3, 3, 1, 1}, {8, 0, 0, 0}, {1, 1, 1, 1, 1}}) {
    expect([&](gguf::File& file) { file.set(gguf::integers(sections, wrong)); },
           {"dimension_sections", "each of the 8 pairs"});
  }
  gguf::File file = fixture_file("gguf-qwen35");
  const auto expected = logits(file);
  file.set(gguf::integers(sections, {11, 11, 10, 0}));  // for more pairs than there are
  EXPECT_EQ(logits(file), expected);
  file.set(gguf::number("qwen35.ssm.dt_b_c_rms", 1));
  ASSERT_EQ(config(file).warnings.size(), 1U);
  EXPECT_NE(config(file).warnings[0].find("dt_b_c_rms is 1"), std::string::npos);
}

TEST_F(GgufHybrids, TensorsThatCannotBeAreRefused) {
  const auto without = [](const char* name) {
    return [=](gguf::File& file) { remove(file, name); };
  };
  for (const char* name :
       {"blk.0.attn_qkv.weight", "blk.0.attn_gate.weight", "blk.1.ssm_a", "blk.1.ssm_dt.bias",
        "blk.2.ssm_conv1d.weight", "blk.2.ssm_norm.weight", "blk.2.ssm_out.weight",
        "blk.0.ssm_alpha.weight", "blk.0.ssm_beta.weight", "blk.3.attn_q_norm.weight",
        "blk.0.post_attention_norm.weight"}) {
    expect_refused<FileError>("gguf-qwen35", without(name), {"has no tensor " + std::string(name)});
  }
  expect_refused<FileError>("gguf-qwen3next", without("blk.0.ssm_ba.weight"),
                            {"has no tensor blk.0.ssm_ba.weight"});
  expect_refused<FileError>("gguf-qwen35moe", without("blk.0.ffn_up_shexp.weight"),
                            {"has no tensor blk.0.ffn_up_shexp.weight"});
  const auto shaped = [](const char* name, std::uint64_t rows) {
    return [=](gguf::File& file) { file.tensor(name).dims.back() = rows; };
  };
  expect_refused<FileError>("gguf-qwen35", shaped("blk.0.attn_qkv.weight", 127),
                            {"attn_qkv.weight has shape [127, 32]", "[128, 32]"});
  expect_refused<FileError>("gguf-qwen35", shaped("blk.0.ssm_conv1d.weight", 127),
                            {"ssm_conv1d.weight has shape [127, 4]", "[128, 4]"});
  expect_refused<FileError>("gguf-qwen35", shaped("blk.0.ssm_a", 3),
                            {"ssm_a has shape [3]", "[4]"});
  expect_refused<FileError>("gguf-qwen35moe", shaped("blk.0.ffn_gate_inp.weight", 5),
                            {"ffn_gate_inp.weight has shape [5, 32]", "[6, 32]"});

  // What belongs to a layer of another kind, or of another family, would not be read.
  const auto named = [](const char* from, const char* to) {
    return [=](gguf::File& file) {
      gguf::Tensor again = file.tensor(from);
      again.name = to;
      file.tensors.push_back(again);
    };
  };
  for (const auto& [from, to] : std::vector<std::pair<const char*, const char*>>{
           {"blk.3.attn_q.weight", "blk.0.attn_q.weight"},
           {"blk.3.attn_q_norm.weight", "blk.1.attn_q_norm.weight"},
           {"blk.0.ssm_a", "blk.3.ssm_a"},
           {"blk.0.ssm_beta.weight", "blk.0.ssm_ba.weight"},
           {"blk.0.ffn_up.weight", "blk.0.ffn_up_shexp.weight"},
           {"blk.0.ssm_a", "blk.5.ssm_a"}}) {
    expect_refused<Unsupported>("gguf-qwen35", named(from, to),
                                {"has tensor " + std::string(to), "with 4 layers"});
  }
}

TEST_F(GgufHybrids, DecaysThatWouldLetStatesGrowAreRefused) {
  const auto with = [&](float value) {
    gguf::File file = fixture_file("gguf-qwen35");
    std::memcpy(file.tensor("blk.1.ssm_a").bytes.data() + 8, &value, sizeof value);
    return write(file);
  };
  const std::string begins = (temp_.path() / "model.gguf").string() + ": ";
  expect_error<FileError>([&] { Model::load(with(0.5F)); }, begins,
                          {"decay 2 of model.layers.1.linear_attn.A_log is 0.5", "at most 0"});
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    expect_error<FileError>([&] { Model::load(with(wrong)); }, begins, {"tensor blk.1.ssm_a"});
  }
  EXPECT_NO_THROW(Model::load(with(0)));
}

}  // namespace
}  // namespace topkv
