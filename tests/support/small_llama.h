// A small Llama with an output layer of its own, as a checkpoint with random weights, and models
// that ought to be the same.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/support/tensor_file.h"
#include "topkv/model.h"

namespace topkv {

inline std::string bytes_of_floats(const std::vector<double>& values) {
  std::string bytes;
  for (const double value : values) {
    const auto narrow = static_cast<float>(value);
    bytes.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
  }
  return bytes;
}

struct Sizes {
  std::int64_t hidden = 96;
  std::int64_t mlp = 320;
  std::int64_t vocab = 101;
  std::int64_t head = 80;  // of 2 query heads and a KV head
};

/// A checkpoint with random weights in float32.
inline FileTensors random_tensors(const Sizes& of) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  FileTensors tensors;
  const auto matrix = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    std::vector<double> values(static_cast<std::size_t>(out * in));
    for (double& x : values) x = normal(random) / std::sqrt(static_cast<double>(in));
    tensors[name] = {"F32", {out, in}, bytes_of_floats(values)};
  };
  const auto ones = [&](const std::string& name) {
    tensors[name] = {
        "F32", {of.hidden}, bytes_of_floats(std::vector<double>(static_cast<std::size_t>(of.hidden), 1))};
  };
  matrix("model.embed_tokens.weight", of.vocab, of.hidden);
  for (const std::string at : {"model.layers.0.", "model.layers.1."}) {
    ones(at + "input_layernorm.weight");
    ones(at + "post_attention_layernorm.weight");
    matrix(at + "self_attn.q_proj.weight", 2 * of.head, of.hidden);
    matrix(at + "self_attn.k_proj.weight", of.head, of.hidden);
    matrix(at + "self_attn.v_proj.weight", of.head, of.hidden);
    matrix(at + "self_attn.o_proj.weight", of.hidden, 2 * of.head);
    matrix(at + "mlp.gate_proj.weight", of.mlp, of.hidden);
    matrix(at + "mlp.up_proj.weight", of.mlp, of.hidden);
    matrix(at + "mlp.down_proj.weight", of.hidden, of.mlp);
  }
  ones("model.norm.weight");
  matrix("lm_head.weight", of.vocab, of.hidden);
  return tensors;
}

inline nlohmann::json config_of(const Sizes& of) {
  return {{"model_type", "llama"},
          {"hidden_size", of.hidden},
          {"intermediate_size", of.mlp},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"head_dim", of.head},
          {"vocab_size", of.vocab},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"max_position_embeddings", 512},
          {"tie_word_embeddings", false}};
}

inline std::vector<Token> some_tokens(std::int64_t count, std::int64_t vocab) {
  std::vector<Token> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<Token>((5 + i * i * 31 + i * 7) % vocab));
  return tokens;
}

/// Both sides compute in float32 with weights that are equal but for a rounding each, in another
/// order: as far apart as the runner may be from transformers (parity_test.cc).
inline void expect_same(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(double{want[i]}));
    worst = std::max(worst, std::abs(double{got[i]} - want[i]));
  }
  EXPECT_GT(largest, 0);
  EXPECT_LE(worst, 2e-5 * largest);
}

/// Logits of all tokens, read together; then again of the last three, read one by one through a
/// session that attends everything.
inline std::vector<float> logits_both_ways(const Model& model, const std::vector<Token>& tokens) {
  std::vector<float> logits = model.logits(tokens);
  const auto context = model.prefill(std::vector<Token>(tokens.begin(), tokens.end() - 3),
                                     {.kv_dtype = DType::f32});
  Session session(context, {.k = TopK::same(4096)});
  for (std::size_t i = tokens.size() - 3; i < tokens.size(); ++i) {
    const auto one = model.logits(session, std::vector<Token>{tokens[i]});
    logits.insert(logits.end(), one.begin(), one.end());
  }
  return logits;
}

}  // namespace topkv
