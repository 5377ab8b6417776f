// Log-probabilities of a prompt's own tokens, from the logits of a few positions at a time.
#include <algorithm>

#include "src/core/math/convert.h"
#include "src/model/generate/decode_loop.h"
#include "src/model/generate/logprobs.h"

namespace topkv {

void ActiveAnswer::tell_prompt_logprobs(std::size_t first) const {
  if (!options.on_prompt_logprobs) return;
  for (std::size_t i = first; i < result.prompt_logprobs.size(); ++i)
    options.on_prompt_logprobs(result.prompt_logprobs[i]);
}

void DecodeLoop::score_prompt(ActiveAnswer& one, std::size_t count) {
  const auto vocabulary = static_cast<std::size_t>(model_.config.vocab_size);
  const std::span<const Token> following =
      std::span<const Token>(one.prompt).subspan(one.read + 1);  // those that are predicted
  const std::size_t predicted = std::min(count, following.size());
  constexpr auto most = static_cast<std::size_t>(logits_at_a_time);
  for (std::size_t first = 0; first < predicted; first += most) {
    const std::size_t rows = std::min(most, predicted - first);
    pass_->logits(static_cast<std::int64_t>(first), static_cast<std::int64_t>(rows),
                  logits_.data());
    const std::span<const float> logits = std::span(logits_).first(rows * vocabulary);
    if (first_not_finite(logits.data(), std::ssize(logits)) >= 0) fail_not_finite();
    append_logprobs(logits, following.subspan(first, rows), one.options.prompt_logprobs,
                    one.result.prompt_logprobs);
  }
}

}  // namespace topkv
