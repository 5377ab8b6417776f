// An answer on its way to standard output, as text or as events in JSON, a line each.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "src/serve/answer/answer_parts.h"
#include "topkv/generate.h"

namespace topkv::cli {

using Json = nlohmann::ordered_json;

/// Prints one event. Bytes that are no UTF-8 become U+FFFD.
void print_event(const Json& event);

class AnswerStream {
 public:
  enum class Shown : std::uint8_t {
    at_once,
    at_end,     ///< while another answer is being written
    as_events,  ///< of tokens and of text (docs/reference/generation.md)
  };

  /// number: of the answer among those of the command, from 0 on; for events.
  AnswerStream(Shown shown, std::int64_t number) : shown_(shown), number_(number) {}

  /// The answer's text has parts: its content is shown as others are, its thinking on standard
  /// error, unless hush. To be called before the first text.
  void divide(serve::AnswerParts parts, bool hush);

  /// What GenerateOptions::on_logprobs, a TokenFn and a TextFn are told. False where the user has
  /// asked to stop.
  void take(const TokenLogprobs& logprobs) { logprobs_ = logprobs; }
  bool take(Token token);
  bool take(std::string_view piece);
  /// The answer has ended: a line end behind text.
  void finish();

  /// All of the answer so far, but for what a divided answer may yet take back.
  const std::string& content() const { return content_; }
  /// Its thinking, where it is divided.
  const std::string& reasoning() const { return reasoning_; }

 private:
  Json event(const char* kind) const;
  void show(std::string_view content);
  void show(const serve::AnswerDelta& delta);

  Shown shown_;
  std::int64_t number_;
  /// Of the next token, where they are told.
  TokenLogprobs logprobs_ = {.chosen = {.token = -1}, .top = {}};
  std::string held_;
  std::optional<serve::AnswerParts> parts_;
  bool hush_ = false;
  bool thinks_ = false;  // thinking is shown, and its line has not ended
  std::string content_, reasoning_;
};

/// [{"token": …, "logprob": …}, …] of the likeliest tokens.
Json json_of(const std::vector<TokenLogprob>& top);

}  // namespace topkv::cli
