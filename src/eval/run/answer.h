// How a session is asked, and what its answer cost.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "topkv/model.h"

namespace topkv {

struct AskOptions {
  GenerateOptions generate = {};
  /// The answer ends with its line; a line break before the first word does not end it.
  bool one_line = false;
  /// All but the question's last token are fed one at a time, as decoding would.
  bool steps = false;
  /// Called with each token of the answer, after which false stops.
  TokenFn on_token = {};
};

struct Answer {
  std::string text;
  GenerateResult result;
  /// Rows attended beyond window and sinks, per token, layer and query head, on average over the
  /// session's life; 0 where every layer is dense.
  double rows_per_head = 0;
  /// The session's step_times() when the first token of the answer was there: later times are of
  /// steps that decode one token. Empty for an answer without tokens.
  std::vector<StepTimes> before_decoding;
};

/// Feeds the question to the session and generates. Throws what Model::generate does.
Answer ask(const Model& model, Session& session, std::span<const Token> question,
           const AskOptions& options);

}  // namespace topkv
