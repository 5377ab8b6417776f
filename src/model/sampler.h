// Choosing the next token from logits.
#pragma once

#include <random>
#include <span>
#include <vector>

#include "topkv/model.h"

namespace topkv {

/// Greedy, or temperature with top-k and top-p (nucleus; Holtzman et al. 2020) filters, in that
/// order, as transformers applies them. Same seed and logits, same tokens.
class Sampler {
 public:
  /// Throws InvalidArgument on a negative temperature or top_k, or top_p outside (0, 1].
  explicit Sampler(const SamplingOptions& options);

  Token sample(std::span<const float> logits);

 private:
  struct Candidate {
    double weight;
    Token token;
  };

  SamplingOptions options_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;
};

}  // namespace topkv
