// An answer on its way to standard output, as text or as events in JSON, a line each.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

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
    as_events,  ///< of tokens and of text (docs/generation.md)
  };

  /// number: of the answer among those of the command, from 0 on; for events.
  AnswerStream(Shown shown, std::int64_t number) : shown_(shown), number_(number) {}

  /// What GenerateOptions::on_logprobs, a TokenFn and a TextFn are told. False where the user has
  /// asked to stop.
  void take(const TokenLogprobs& logprobs) { logprobs_ = logprobs; }
  bool take(Token token);
  bool take(std::string_view piece);
  /// The answer has ended: a line end behind text.
  void finish();

 private:
  Json event(const char* kind) const;

  Shown shown_;
  std::int64_t number_;
  /// Of the next token, where they are told.
  TokenLogprobs logprobs_ = {.chosen = {.token = -1}, .top = {}};
  std::string held_;
};

/// [{"token": …, "logprob": …}, …] of the likeliest tokens.
Json json_of(const std::vector<TokenLogprob>& top);

}  // namespace topkv::cli
