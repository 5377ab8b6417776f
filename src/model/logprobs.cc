#include "src/model/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace topkv {

TokenLogprobs logprobs_of(std::span<const float> logits, Token chosen, std::int64_t count) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  const double log_sum = largest + std::log(sum);
  const auto of = [&](Token token) -> TokenLogprob {
    return {token, double{logits[static_cast<std::size_t>(token)]} - log_sum};
  };
  TokenLogprobs result{.chosen = of(chosen), .top = {}};
  if (count == 0) return result;
  std::vector<Token> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto top = tokens.begin() + std::min(count, std::ssize(tokens));
  std::partial_sort(tokens.begin(), top, tokens.end(), [&](Token a, Token b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  });
  for (auto token = tokens.begin(); token != top; ++token) result.top.push_back(of(*token));
  return result;
}

}  // namespace topkv
