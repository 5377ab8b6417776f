// Experts in GGUF files: stacked, with gate and up in one tensor, or each expert in tensors of its
// own; and those that cannot be. What they compute is in the fixtures of parity_test.cc.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

constexpr std::int64_t experts = 3;
const Sizes sizes{.hidden = 32, .mlp = 64, .vocab = 60, .head = 32};

std::string random_bytes(std::int64_t count, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& x : values) x = normal(random) / std::sqrt(32.0);
  return bytes_of_floats(values);
}

enum class Layout { stacked, gate_up, one_by_one };

/// A Mixtral; the same numbers in each layout.
gguf::File mixtral(Layout layout = Layout::stacked) {
  gguf::File file = gguf::llama(config_of(sizes), random_tensors(sizes));
  file.set(gguf::number("llama.expert_count", experts));
  file.set(gguf::number("llama.expert_used_count", 2));
  std::erase_if(file.tensors, [](const gguf::Tensor& one) {
    return one.name.find(".ffn_") != one.name.npos && one.name.find("norm") == one.name.npos;
  });
  const auto hidden = static_cast<std::uint64_t>(sizes.hidden);
  const auto width = static_cast<std::uint64_t>(sizes.mlp);
  const auto size = static_cast<std::uint64_t>(experts);
  std::mt19937 random(5);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string at = fmt::format("blk.{}.", layer);
    const auto add = [&](const std::string& name, std::vector<std::uint64_t> dims,
                         const std::string& bytes) {
      file.tensors.push_back({at + name + ".weight", std::move(dims), 0, bytes});
    };
    add("ffn_gate_inp", {hidden, size}, random_bytes(experts * sizes.hidden, random));
    std::string gates, ups, downs, both;
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::string gate = random_bytes(sizes.mlp * sizes.hidden, random);
      const std::string up = random_bytes(sizes.mlp * sizes.hidden, random);
      const std::string down = random_bytes(sizes.mlp * sizes.hidden, random);
      gates += gate;
      ups += up;
      downs += down;
      both += gate + up;
      if (layout != Layout::one_by_one) continue;
      add(fmt::format("ffn_gate.{}", e), {hidden, width}, gate);
      add(fmt::format("ffn_up.{}", e), {hidden, width}, up);
      add(fmt::format("ffn_down.{}", e), {width, hidden}, down);
    }
    if (layout == Layout::one_by_one) continue;
    add("ffn_down_exps", {width, hidden, size}, downs);
    if (layout == Layout::gate_up) {
      add("ffn_gate_up_exps", {hidden, 2 * width, size}, both);
    } else {
      add("ffn_gate_exps", {hidden, width, size}, gates);
      add("ffn_up_exps", {hidden, width, size}, ups);
    }
  }
  return file;
}

/// With the keys of another architecture.
gguf::File as_architecture(gguf::File file, const std::string& architecture) {
  for (gguf::Value& value : file.values) {
    if (value.key.starts_with("llama.")) value.key.replace(0, 5, architecture);
  }
  file.set(gguf::words("general.architecture", architecture));
  return file;
}

/// A gpt-oss with the weights of the Mixtral, without biases on the experts.
gguf::File gpt_oss(Layout layout) {
  gguf::File file = as_architecture(mixtral(layout), "gpt-oss");
  file.set(gguf::number("gpt-oss.attention.sliding_window", 8));
  file.set(gguf::words("gpt-oss.rope.scaling.type", "yarn"));
  file.set(gguf::real("gpt-oss.rope.scaling.factor", 4));
  file.set(gguf::number("gpt-oss.rope.scaling.original_context_length", 128));
  for (gguf::Tensor& tensor : file.tensors) {
    if (const std::size_t at = tensor.name.find("ffn_norm"); at != tensor.name.npos)
      tensor.name.replace(at, 8, "post_attention_norm");
  }
  std::mt19937 random(6);
  for (int layer = 0; layer < 2; ++layer) {
    const auto add = [&](const std::string& name, std::uint64_t size) {
      file.tensors.push_back({fmt::format("blk.{}.{}", layer, name),
                              {size},
                              0,
                              random_bytes(static_cast<std::int64_t>(size), random)});
    };
    add("attn_q.bias", 64);
    add("attn_k.bias", 32);
    add("attn_v.bias", 32);
    add("attn_output.bias", 32);
    add("attn_sinks.weight", 2);
    add("ffn_gate_inp.bias", experts);
  }
  return file;
}

class GgufExperts : public testing::Test {
 protected:
  std::filesystem::path write(const gguf::File& file) const {
    return temp_.write("experts.gguf", file.content());
  }

  template <class E>
  void expect_refused(const gguf::File& file, const std::vector<std::string_view>& parts) const {
    const std::filesystem::path path = write(file);
    const std::string begins = path.string() + ": ";
    expect_error<E>([&] { Model::load(path); }, begins, parts);
    expect_error<E>([&] { Model::plan(path, {}, {}, {}); }, begins, parts);
  }

  TempDirectory temp_;
};

TEST_F(GgufExperts, AreTheSameInEachLayout) {
  const Model stacked = Model::load(write(mixtral()));
  EXPECT_EQ(stacked.config().model_type, "mixtral");
  EXPECT_EQ(stacked.config().mixture.experts, experts);
  EXPECT_EQ(stacked.config().mixture.per_token, 2);
  EXPECT_EQ(stacked.config().mixture.intermediate_size, sizes.mlp);
  EXPECT_TRUE(stacked.config().warnings.empty()) << stacked.config().warnings.front();
  const auto tokens = some_tokens(20, sizes.vocab);
  const auto logits = logits_both_ways(stacked, tokens);
  for (const Layout layout : {Layout::gate_up, Layout::one_by_one}) {
    const Model model = Model::load(write(mixtral(layout)));
    EXPECT_EQ(logits_both_ways(model, tokens), logits);
  }
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
    const LoadOptions options{.weights = format};
    const auto rounded = Model::load(write(mixtral()), {}, {}, options).logits(tokens);
    for (const Layout layout : {Layout::gate_up, Layout::one_by_one}) {
      EXPECT_EQ(Model::load(write(mixtral(layout)), {}, {}, options).logits(tokens), rounded);
    }
  }
  // Each expert is its own: another order of them is another model.
  gguf::File turned = mixtral();
  std::string& bytes = turned.tensor("blk.1.ffn_up_exps.weight").bytes;
  bytes = bytes.substr(bytes.size() / 3) + bytes.substr(0, bytes.size() / 3);
  EXPECT_NE(logits_both_ways(Model::load(write(turned)), tokens), logits);
}

TEST_F(GgufExperts, TwoLayoutsOfTheSameWeightsAreRefused) {
  const auto both = [&](Layout more, const char* name, const std::vector<std::string_view>& says) {
    gguf::File file = mixtral();
    file.tensors.push_back(mixtral(more).tensor(name));
    expect_refused<FileError>(file, says);
  };
  both(Layout::gate_up, "blk.1.ffn_gate_up_exps.weight",
       {"blk.1.ffn_gate_up_exps.weight and blk.1.ffn_gate_exps.weight", "expected one"});
  both(Layout::one_by_one, "blk.0.ffn_gate.0.weight",
       {"blk.0.ffn_gate_exps.weight and blk.0.ffn_gate.0.weight", "expected one"});
}

TEST_F(GgufExperts, BiasesAreTheSameInEachLayout) {
  const auto width = static_cast<std::uint64_t>(sizes.mlp);
  const auto with_biases = [&](Layout layout) {
    gguf::File file = gpt_oss(layout);
    std::mt19937 random(8);
    for (int layer = 0; layer < 2; ++layer) {
      const auto add = [&](const char* name, std::uint64_t size, const std::string& bytes) {
        file.tensors.push_back({fmt::format("blk.{}.{}.bias", layer, name),
                                {size, static_cast<std::uint64_t>(experts)},
                                0,
                                bytes});
      };
      std::string gates, ups, both;
      for (std::int64_t e = 0; e < experts; ++e) {
        const std::string gate = random_bytes(sizes.mlp, random);
        const std::string up = random_bytes(sizes.mlp, random);
        gates += gate;
        ups += up;
        both += gate + up;
      }
      add("ffn_down_exps", 32, random_bytes(experts * 32, random));
      if (layout == Layout::gate_up) {
        add("ffn_gate_up_exps", 2 * width, both);
      } else {
        add("ffn_gate_exps", width, gates);
        add("ffn_up_exps", width, ups);
      }
    }
    return file;
  };
  const Model stacked = Model::load(write(with_biases(Layout::stacked)));
  EXPECT_EQ(stacked.config().model_type, "gpt_oss");
  EXPECT_FALSE(stacked.config().rope_scaling.truncate);
  EXPECT_EQ(stacked.config().attention.sliding_window, (std::vector<std::int64_t>{8, 0}));
  const auto tokens = some_tokens(20, sizes.vocab);
  const auto logits = logits_both_ways(stacked, tokens);
  EXPECT_EQ(logits_both_ways(Model::load(write(with_biases(Layout::gate_up))), tokens), logits);

  gguf::File missing = with_biases(Layout::stacked);
  std::erase_if(missing.tensors,
                [](const gguf::Tensor& t) { return t.name == "blk.1.ffn_up_exps.bias"; });
  expect_refused<FileError>(missing, {"has no tensor blk.1.ffn_up_exps.bias", "[3, 64]"});
  gguf::File wrong = with_biases(Layout::gate_up);
  std::swap(wrong.tensor("blk.0.ffn_gate_up_exps.bias").dims[0],
            wrong.tensor("blk.0.ffn_gate_up_exps.bias").dims[1]);
  expect_refused<FileError>(wrong, {"ffn_gate_up_exps.bias has shape [128, 3]", "[3, 128]"});
  gguf::File sinks = with_biases(Layout::stacked);
  std::erase_if(sinks.tensors,
                [](const gguf::Tensor& t) { return t.name == "blk.0.attn_sinks.weight"; });
  expect_refused<FileError>(sinks, {"has no tensor blk.0.attn_sinks.weight", "[2]"});
}

TEST_F(GgufExperts, WhatTheMetadataSaysOfRoutersIsRead) {
  gguf::File file = as_architecture(mixtral(), "qwen3moe");
  for (int layer = 0; layer < 2; ++layer) {
    for (const char* norm : {"q", "k"}) {
      file.tensors.push_back({fmt::format("blk.{}.attn_{}_norm.weight", layer, norm),
                              {32},
                              0,
                              bytes_of_floats(std::vector<double>(32, 1))});
    }
  }
  expect_refused<FileError>(file, {"qwen3moe.expert_feed_forward_length is missing"});
  file.set(
      gguf::number("qwen3moe.expert_feed_forward_length", static_cast<std::uint32_t>(sizes.mlp)));
  const ModelConfig config = Model::load(write(file)).config();
  EXPECT_EQ(config.model_type, "qwen3_moe");
  EXPECT_FALSE(config.mixture.softmax_over_all);
  file.set(gguf::flag("qwen3moe.expert_weights_norm", false));
  EXPECT_TRUE(ModelConfig::load(write(file)).mixture.softmax_over_all);
  file.set(gguf::number("qwen3moe.expert_gating_func", 3));  // a softmax over the chosen
  EXPECT_FALSE(ModelConfig::load(write(file)).mixture.softmax_over_all);
  file.set(gguf::real("qwen3moe.expert_weights_scale", 0));  // none
  EXPECT_TRUE(ModelConfig::load(write(file)).warnings.empty());

  file.set(gguf::number("qwen3moe.expert_gating_func", 2));
  expect_refused<Unsupported>(file, {"expert_gating_func is 2", "softmax"});
  file.set(gguf::number("qwen3moe.expert_gating_func", 1));
  file.set(gguf::real("qwen3moe.expert_weights_scale", 2.5F));
  expect_refused<Unsupported>(file, {"expert_weights_scale is 2.5"});
}

TEST_F(GgufExperts, NumbersThatCannotBeAreNamed) {
  const auto expect = [&](const gguf::Value& value, const std::vector<std::string_view>& says) {
    SCOPED_TRACE(value.key);
    gguf::File file = mixtral();
    file.set(value);
    expect_refused<FileError>(file, says);
  };
  expect(gguf::number("llama.expert_count", 4),
         {"ffn_gate_inp.weight has shape [3, 32]", "[4, 32]"});
  expect(gguf::number("llama.expert_count", 2000), {"expert_count is 2000", "1 to 1024"});
  expect(gguf::number("llama.expert_used_count", 4), {"expert_used_count is 4", "1 to 3"});
  expect(gguf::number("llama.expert_used_count", 0), {"expert_used_count is 0"});
  expect(gguf::words("llama.expert_count", "eight"), {"expert_count is \"eight\""});
  gguf::File missing = mixtral();
  missing.erase("llama.expert_used_count");
  expect_refused<FileError>(missing, {"expert_used_count is missing"});
  // Dense models have no experts, and mixtures have some.
  gguf::File dense = mixtral();
  dense.set(gguf::number("llama.expert_count", 0));
  expect_refused<Unsupported>(dense, {"ffn_", "which topkv does not read"});
  expect_refused<Unsupported>(as_architecture(mixtral(), "qwen2"),
                              {"qwen2.expert_count is 3", "dense models of qwen2"});
  gguf::File none = as_architecture(mixtral(), "qwen3moe");
  none.set(gguf::number("qwen3moe.expert_count", 0));
  expect_refused<FileError>(none, {"qwen3moe.expert_count is 0", "1 or more"});
}

TEST_F(GgufExperts, TensorsThatDoNotFitAreNamed) {
  const auto expect = [&](Layout layout, const char* name, auto error,
                          const std::function<void(gguf::Tensor&)>& change,
                          const std::vector<std::string_view>& says) {
    SCOPED_TRACE(name);
    gguf::File file = mixtral(layout);
    change(file.tensor(name));
    expect_refused<decltype(error)>(file, says);
  };
  const FileError broken("");
  const Unsupported unknown("");
  expect(Layout::stacked, "blk.1.ffn_up_exps.weight", broken,
         [](auto& t) { std::swap(t.dims[0], t.dims[1]); },
         {"ffn_up_exps.weight has shape [3, 32, 64]", "[3, 64, 32]"});
  expect(Layout::stacked, "blk.0.ffn_down_exps.weight", broken, [](auto& t) { t.dims[2] = 2; },
         {"ffn_down_exps.weight has shape [2, 32, 64]", "[3, 32, 64]"});
  expect(Layout::gate_up, "blk.0.ffn_gate_up_exps.weight", broken, [](auto& t) { t.dims[1] /= 2; },
         {"ffn_gate_up_exps.weight has shape", "[3, 128, 32]"});
  expect(Layout::one_by_one, "blk.1.ffn_up.2.weight", broken, [](auto& t) { t.dims[1] /= 2; },
         {"ffn_up.2.weight has shape [32, 32]"});
  expect(Layout::one_by_one, "blk.1.ffn_up.2.weight", unknown,
         [](auto& t) { t.name = "blk.1.ffn_up.3.weight"; }, {"ffn_up.3.weight", "does not read"});
  expect(Layout::stacked, "blk.1.ffn_gate_inp.weight", broken, [](auto& t) { t.dims[1] = 2; },
         {"ffn_gate_inp.weight has shape [2, 32]", "[3, 32]"});
  gguf::File missing = mixtral();
  std::erase_if(missing.tensors,
                [](const gguf::Tensor& t) { return t.name == "blk.1.ffn_down_exps.weight"; });
  expect_refused<FileError>(missing, {"has no tensor blk.1.ffn_down_exps.weight"});
  gguf::File shared = mixtral();
  shared.tensors.push_back({"blk.0.ffn_up_shexp.weight", {32, 48}, 0, std::string(32 * 48 * 4, 0)});
  expect_refused<Unsupported>(shared, {"ffn_up_shexp.weight", "which topkv does not read"});
  // Of each expert's values the place is said.
  gguf::File infinite = mixtral();
  gguf::Tensor& tensor = infinite.tensor("blk.0.ffn_up_exps.weight");
  tensor.type = 39;  // mxfp4
  tensor.bytes.assign(static_cast<std::size_t>(experts * sizes.mlp * 17), '\x7f');
  tensor.bytes[static_cast<std::size_t>((2 * sizes.mlp + 5) * 17)] = '\xff';
  const std::filesystem::path path = write(infinite);
  expect_error<FileError>([&] { Model::load(path); }, path.string() + ": ",
                          {"expert 2 of tensor blk.0.ffn_up_exps.weight", "at [5, 0]"});
}

}  // namespace
}  // namespace topkv
