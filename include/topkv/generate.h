// What generation is asked for, tells as it goes, and gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topkv/progress.h"
#include "topkv/types.h"

namespace topkv {

/// A number that is added to a token's logit.
struct TokenBias {
  Token token = 0;
  double bias = 0;
};

/// How the next token is chosen from the model's logits. In this order, as transformers does
/// (docs/reference/generation.md has the formulas): logit_bias, repetition_penalty, frequency_penalty and
/// presence_penalty; then, unless greedy, temperature, top_k, top_p, min_p and a draw.
struct SamplingOptions {
  double temperature = 0;  ///< 0: greedy, the largest logit after biases and penalties
  std::int64_t top_k = 0;  ///< 0: off
  double top_p = 1;        ///< above 0; 1: off
  std::uint64_t seed = 0;
  double min_p = 0;  ///< of the likeliest token's probability, from 0 to 1; 0: off
  /// Logits of tokens that the prompt or the answer has are divided by it, or multiplied where
  /// they are below 0 (Keskar et al. 2019, section 4.1). Above 0; 1: off.
  double repetition_penalty = 1;
  double frequency_penalty = 0;  ///< subtracted for each time that the answer has a token
  double presence_penalty = 0;   ///< subtracted once, where the answer has it
  /// Finite numbers for tokens of the vocabulary; of a token that is named twice both are added.
  std::vector<TokenBias> logit_bias = {};
};

/// A token and the natural logarithm of its probability.
struct TokenLogprob {
  Token token = 0;
  double logprob = 0;
};

/// By the model's own distribution: the softmax of its logits as they are, before biases,
/// penalties, temperature and filters.
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  ///< the likeliest, in order; of equals the smaller id first
};

struct GenerateOptions {
  std::int64_t max_tokens = 128;
  SamplingOptions sampling = {};
  /// While the prompt is read: stage "prompt", in tokens (of all prompts together).
  ProgressFn progress = {};
  /// An answer ends before the first of these texts in it. UTF-8, none empty. A special token has
  /// no text, but in a stop text it may be spelled: "<|im_end|>" ends the answer at that token.
  std::vector<std::string> stop = {};
  /// Special tokens that the answer's text has as the tokenizer's file spells them. Other special
  /// tokens have no text.
  std::vector<Token> spelled = {};
  /// So many of the likeliest tokens are given for each of the answer, with logarithms of their
  /// probabilities: 0 (the chosen token's alone) to 20. -1: none are.
  std::int64_t logprobs = -1;
  /// With logprobs: told those of each token just before on_token is.
  std::function<void(const TokenLogprobs&)> on_logprobs = {};
  /// Tokens before the prompt that repetition_penalty is to count as the prompt's: what context
  /// and session hold, which have rows and no tokens.
  std::vector<Token> before = {};
  /// Log-probabilities of the prompt's own tokens from the second on: how many of the likeliest
  /// tokens are given beside each, from 0 (the prompt's token alone) to 20. -1: none are computed.
  /// The first token has none, for no token of this call is before it.
  std::int64_t prompt_logprobs = -1;
  /// With prompt_logprobs: called once for each of these tokens, in order, while the prompt is
  /// read.
  std::function<void(const TokenLogprobs&)> on_prompt_logprobs = {};
};

/// Called with each generated token; return false to stop.
using TokenFn = std::function<bool(Token)>;
/// Called with the text of an answer as it grows, whole characters of valid UTF-8, after the token
/// that completes them; what may begin a stop text is held back until it is known to be none. The
/// pieces are the answer's text up to a stop text; that begins with a space where its first token
/// does, and bytes that are no UTF-8 are U+FFFD. Return false to stop.
using TextFn = std::function<bool(std::string_view)>;
/// Likewise, with the number of the session that it is of; false stops that one.
using TokenOfFn = std::function<bool(std::size_t session, Token)>;
using TextOfFn = std::function<bool(std::size_t session, std::string_view)>;

/// Why an answer ended.
enum class Finish : std::uint8_t {
  end_token,  ///< the model gave an end token
  stop_text,  ///< one of GenerateOptions::stop came
  length,     ///< max_tokens
  caller,     ///< a callback said so, or it was taken out of its batch
};

/// "end_token", "stop_text", "length" or "caller".
std::string_view name_of(Finish finish);

/// Where the time of a forward pass went, in seconds summed over calls.
struct ForwardTimes {
  double matmul = 0;
  double attention = 0;  ///< dense, window and retrieved rows, and storing rows
  double search = 0;     ///< index searches
  double other = 0;      ///< norms, RoPE, activations, embedding
  double indexing = 0;   ///< after a prefill's last token, waiting for its indices
  /// Of the forward pass: without indexing.
  double total() const { return matmul + attention + search + other; }
  ForwardTimes& operator+=(const ForwardTimes& more) { return add(more, 1); }
  ForwardTimes operator-(const ForwardTimes& less) const {
    return ForwardTimes(*this).add(less, -1);
  }

 private:
  ForwardTimes& add(const ForwardTimes& more, double sign) {
    matmul += sign * more.matmul;
    attention += sign * more.attention;
    search += sign * more.search;
    indexing += sign * more.indexing;
    other += sign * more.other;
    return *this;
  }
};

struct GenerateResult {
  std::vector<Token> tokens;  ///< generated, without the end token
  /// The text that they are, up to a stop text, as a TextFn is told it. Only with on_text or stop.
  std::string text;
  std::vector<TokenLogprobs> logprobs;  ///< of each token; only with GenerateOptions::logprobs
  /// Of the end token that the answer ended with; only with GenerateOptions::logprobs.
  std::optional<TokenLogprobs> end_logprobs = {};
  /// Of the prompt's tokens from the second on; only with GenerateOptions::prompt_logprobs.
  std::vector<TokenLogprobs> prompt_logprobs = {};
  Finish finish = Finish::caller;
  std::int64_t steps = 0;  ///< tokens fed after the prompt: what decode_seconds were spent on
  double prompt_seconds = 0;
  double decode_seconds = 0;
  ForwardTimes times;

  bool ended() const { return finish == Finish::end_token; }
};

}  // namespace topkv
