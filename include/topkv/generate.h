// Generation: its options, the functions that receive an answer as it grows, and its result. The
// functions that generate are Model::generate, Model::generate_together and GenerationBatch.
//
//     topkv::GenerateOptions options{.max_tokens = 64, .stop = {"\n"}};
//     auto result = model.generate(session, prompt, options, {}, [](std::string_view piece) {
//       std::cout << piece << std::flush;
//       return true;                                         // false stops the answer
//     });
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topkv/progress.h"
#include "topkv/types.h"

namespace topkv {

/// A number that is added to the logit of a token.
struct TokenBias {
  Token token = 0;
  double bias = 0;
};

/// How the next token is chosen from the model's logits. The default is greedy.
///
/// The options apply in the order of transformers: logit_bias, repetition_penalty,
/// frequency_penalty and presence_penalty. Tokens that a grammar forbids then leave. With a
/// temperature of 0 the largest logit wins. Else temperature, top_k, top_p and min_p follow, and a
/// draw. docs/reference/generation.md has the formulas.
struct SamplingOptions {
  double temperature = 0;  ///< 0: greedy, the largest logit after biases and penalties
  std::int64_t top_k = 0;  ///< the number of largest logits that stay; 0: off
  double top_p = 1;  ///< the share of probability that the tokens that stay hold; above 0; 1: off
  std::uint64_t seed = 0;  ///< the seed of the draws
  /// Tokens stay that have at least this share of the likeliest token's probability. From 0 to 1;
  /// 0: off.
  double min_p = 0;
  /// A penalty for tokens that the prompt or the answer has (Keskar et al. 2019, section 4.1).
  /// Their logits are divided by it, or multiplied by it if they are below 0. Above 0; 1: off.
  double repetition_penalty = 1;
  double frequency_penalty = 0;  ///< subtracted once for each time that the answer has a token
  double presence_penalty = 0;   ///< subtracted once if the answer has a token
  /// Finite numbers that are added to the logits of tokens of the vocabulary. If a token is named
  /// twice, both numbers are added.
  std::vector<TokenBias> logit_bias = {};
};

/// A token, and the natural logarithm of its probability.
struct TokenLogprob {
  Token token = 0;
  double logprob = 0;
};

/// Log-probabilities at one position, by the model's own distribution: the softmax of its logits
/// before biases, penalties, temperature and filters.
struct TokenLogprobs {
  TokenLogprob chosen;            ///< the token of the answer or of the prompt
  std::vector<TokenLogprob> top;  ///< the likeliest tokens in order, the smaller id first if equal
};

class DraftModel;
class Grammar;

/// Whether tokens are drafted. A draft is what followed the same tokens earlier, in the context or
/// in the session (prompt lookup). If nothing was found there, it is what a draft model says
/// (GenerateOptions::draft_model), or else the model's own draft layer if it has one
/// (Model::draft_layer_bytes). The model verifies the draft in one step of several tokens, and
/// chooses each token from its own logits as it does without drafts. Greedy answers, and answers
/// drawn with one seed, are the answers without drafts.
enum class Draft : std::uint8_t {
  /// Drafts where a step of several tokens gives, bit for bit, what steps of one token give, and
  /// where drafts have been worth their time. That is on the host, except with the index squeezed,
  /// with a rule (RetrievalOptions::mass, error) and with dual chunk attention.
  automatic,
  none,  ///< drafts nothing
  /// Drafts on a CUDA device, with a rule and with the index squeezed, too. Steps of several tokens
  /// differ there from steps of one token, by rounding or by the rows that they find, so that
  /// answers may differ.
  lookup,
};

/// Returns "auto", "none" or "lookup".
std::string_view name_of(Draft draft);
/// Returns the draft of a name that name_of returns. Throws InvalidArgument for another name; the
/// message has the choices.
Draft parse_draft(std::string_view name);

/// Options of a generation.
struct GenerateOptions {
  std::int64_t max_tokens = 128;  ///< the most tokens of the answer; 0: the prompt is only read
  SamplingOptions sampling = {};
  /// Whether tokens are drafted. Answers that grow together with others are not drafted.
  Draft draft = Draft::automatic;
  /// A smaller model that drafts tokens where the text itself has no draft, in place of the model's
  /// own draft layer. Null: there is none.
  ///
  /// It must have been opened for the model that generates. Draft::automatic drafts nothing on a
  /// CUDA device and with dual chunk attention, and a draft model is refused there.
  std::shared_ptr<const DraftModel> draft_model = {};
  /// Reports while the prompt is read: stage "prompt", in tokens. Model::generate_together counts
  /// the tokens of all prompts together.
  ProgressFn progress = {};
  /// Texts that end the answer, which is cut off before the first of them. UTF-8, none empty.
  ///
  /// A special token has no text, but a stop text may spell it: "<|im_end|>" ends the answer at
  /// that token.
  std::vector<std::string> stop = {};
  /// The grammar that the answer's text conforms to. It must have been made for the model that
  /// generates. Null: any text.
  ///
  /// An answer that ends by max_tokens, by a stop text or by a callback is the beginning of such a
  /// text.
  std::shared_ptr<const Grammar> grammar = {};
  /// Special tokens that appear in the answer's text, spelled as the tokenizer's file spells them.
  /// Other special tokens have no text.
  std::vector<Token> spelled = {};
  /// How many of the likeliest tokens are reported beside each token of the answer, with
  /// log-probabilities: from 0 (the chosen token alone) to 20. -1: no log-probabilities.
  std::int64_t logprobs = -1;
  /// With logprobs: receives the log-probabilities of each token, just before on_token receives the
  /// token.
  std::function<void(const TokenLogprobs&)> on_logprobs = {};
  /// Tokens before the prompt that repetition_penalty counts as the prompt's. Name the tokens of
  /// the context and of the session, which hold rows and do not know their tokens.
  std::vector<Token> before = {};
  /// How many of the likeliest tokens are reported beside each token of the prompt, with
  /// log-probabilities: from 0 (the prompt's token alone) to 20. -1: none are computed. Reports
  /// begin with the second token, because no token of this call is before the first.
  std::int64_t prompt_logprobs = -1;
  /// With prompt_logprobs: receives the log-probabilities of each of these tokens, in order, while
  /// the prompt is read.
  std::function<void(const TokenLogprobs&)> on_prompt_logprobs = {};
};

/// Receives each token of an answer. Returns false to stop the answer.
using TokenFn = std::function<bool(Token)>;
/// Receives the text of an answer as it grows: pieces of whole characters in valid UTF-8. Returns
/// false to stop the answer.
///
/// A piece comes after the token that completes it. Text that may begin a stop text is held back
/// until it is known to be no stop text. The pieces together are the answer's text, up to a stop
/// text. It begins with a space if its first token does. Bytes that are not UTF-8 become U+FFFD.
using TextFn = std::function<bool(std::string_view)>;
/// Receives each token of several sessions' answers, with the number of the session from 0 on.
/// Returns false to stop that session's answer.
using TokenOfFn = std::function<bool(std::size_t session, Token)>;
/// Receives the text of several sessions' answers as they grow, as a TextFn does, with the number
/// of the session from 0 on. Returns false to stop that session's answer.
using TextOfFn = std::function<bool(std::size_t session, std::string_view)>;

/// Why an answer ended.
enum class Finish : std::uint8_t {
  end_token,  ///< the model chose an end token (ModelConfig::eos)
  stop_text,  ///< the text reached one of GenerateOptions::stop
  length,     ///< the answer has max_tokens tokens
  caller,     ///< a callback returned false, or the session was removed from its batch
};

/// Returns "end_token", "stop_text", "length" or "caller".
std::string_view name_of(Finish finish);

/// Times of forward passes by kind of work, in seconds, summed over calls.
struct ForwardTimes {
  double matmul = 0;
  double attention = 0;  ///< attention over all kinds of rows, and storing rows
  double search = 0;     ///< index searches
  double other = 0;      ///< norms, RoPE, activations, embedding
  double indexing = 0;   ///< waiting for indices after a prefill's last token
  /// Returns the time of the forward passes: the sum of all members without indexing.
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

/// The result of a generation.
struct GenerateResult {
  std::vector<Token> tokens;  ///< tokens of the answer, without the end token
  /// The text of the answer up to a stop text: all pieces that a TextFn receives. Empty unless
  /// there is an on_text or a stop text.
  std::string text;
  /// Log-probabilities of each token. Empty without GenerateOptions::logprobs.
  std::vector<TokenLogprobs> logprobs;
  /// Log-probabilities of the end token that ended the answer. Not set without
  /// GenerateOptions::logprobs.
  std::optional<TokenLogprobs> end_logprobs = {};
  /// Log-probabilities of the prompt's tokens, from the second on. Empty without
  /// GenerateOptions::prompt_logprobs.
  std::vector<TokenLogprobs> prompt_logprobs = {};
  Finish finish = Finish::caller;
  /// Tokens that were fed to the model after the prompt, without drafted tokens that were rejected.
  std::int64_t steps = 0;
  std::int64_t drafted = 0;         ///< tokens of drafts
  std::int64_t accepted = 0;        ///< tokens of drafts that the model chose
  std::int64_t model_drafted = 0;   ///< tokens that the draft model or the draft layer drafted
  std::int64_t model_accepted = 0;  ///< accepted tokens that it drafted
  double prompt_seconds = 0;        ///< time of reading the prompt
  double decode_seconds = 0;        ///< time of all steps after it
  ForwardTimes times;               ///< times of the forward passes

  /// Returns the tokens of a step, on average: 1 without drafts, or without steps.
  double tokens_per_step() const {
    return steps > 0 ? static_cast<double>(steps) / static_cast<double>(steps - accepted) : 1;
  }
  /// Returns whether the model itself ended the answer with an end token.
  bool ended() const { return finish == Finish::end_token; }
};

}  // namespace topkv
