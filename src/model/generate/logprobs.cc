#include "src/model/generate/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/core/threads/threads.h"

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

void append_logprobs(std::span<const float> logits, std::span<const Token> chosen,
                     std::int64_t count, std::vector<TokenLogprobs>& into) {
  if (chosen.empty()) return;
  const std::size_t vocabulary = logits.size() / chosen.size();
  const std::size_t first = into.size();
  into.resize(first + chosen.size());
  parallel_for(std::ssize(chosen), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      into[first + i] = logprobs_of(logits.subspan(i * vocabulary, vocabulary), chosen[i], count);
  });
}

}  // namespace topkv
