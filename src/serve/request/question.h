// What the scheduler is asked: a prompt, over a context, and how it is answered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/serve/request/served_context.h"
#include "topkv/generate.h"

namespace topkv::serve {

struct Question {
  std::shared_ptr<const ServedContext> context;
  std::vector<Token> prompt;  ///< behind it
  GenerateOptions options;    ///< answer i has the seed plus i; without callbacks
  std::size_t choices = 1;
  /// The text that each answer begins with. With GenerateOptions::prompt_logprobs the answer's
  /// log-probabilities begin with the prompt's: all of its tokens are fed for them.
  std::string echo = {};
  /// First tokens of the prompt that its log-probabilities leave out: they end the context's text.
  std::int64_t unscored = 0;
  /// An answer's log-probabilities end with the end token's, when one ended it.
  bool score_end = false;
};

}  // namespace topkv::serve
