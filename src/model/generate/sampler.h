// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "topkv/model.h"

namespace topkv {

/// Biases and penalties, then greedy, or temperature with top-k, top-p (nucleus; Holtzman et al.
/// 2020) and min-p (Nguyen et al. 2024) filters, in that order, as transformers applies them. Same
/// seed, tokens and logits, same choices.
class Sampler {
 public:
  /// A token that may be drawn, and its weight: its probability, but for a common factor.
  struct Candidate {
    double weight;
    Token token;
  };

  /// Throws InvalidArgument on options outside of what SamplingOptions allows.
  explicit Sampler(const SamplingOptions& options);

  /// Whether it needs logits: else the largest is chosen.
  bool needs_logits() const {
    return options_.temperature != 0 || penalises() || !options_.logit_bias.empty();
  }
  /// Has penalties count these as the prompt's. REQUIRES: within the vocabulary.
  void read(std::span<const Token> prompt, std::int64_t vocabulary);
  /// REQUIRES: the vocabulary's, if something was read; all tokens of logit_bias are in it.
  /// allowed: bit t % 32 of word t / 32 says whether token t may be chosen, some may; empty: all
  /// may.
  Token sample(std::span<const float> logits, std::span<const std::int32_t> allowed = {});
  /// What sample would draw from, the likeliest first; greedy: one. Until the next call.
  std::span<const Candidate> candidates(std::span<const float> logits,
                                        std::span<const std::int32_t> allowed = {});
  /// Has penalties count a token as the answer's. REQUIRES: something was read.
  void answer(Token token);

 private:
  bool penalises() const {
    return options_.repetition_penalty != 1 || options_.frequency_penalty != 0 ||
           options_.presence_penalty != 0;
  }
  /// With biases and penalties.
  std::span<const float> adjusted(std::span<const float> logits);
  void see(Token token);

  SamplingOptions options_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;
  // With penalties.
  std::vector<Token> seen_;             // each once
  std::vector<std::int32_t> answered_;  // [vocabulary]: times in the answer; -1: not seen
  std::vector<float> adjusted_;         // also with biases
};

}  // namespace topkv
