// What drafts tokens behind the end of a session's text: a draft model, or the model's own layer.
#pragma once

#include <cstdint>
#include <vector>

#include "src/model/network/forward.h"
#include "src/session/draft_reading.h"
#include "src/session/past_tokens.h"

namespace topkv {

/// The end of a session's text, as a network has read it that drafts. A failure of a member leaves
/// it unusable.
class Drafter : public DraftReading {
 public:
  /// A token that may be next, and its probability.
  struct Guess {
    Token token = 0;
    double probability = 0;
  };

  /// Reads the text up to its last token. Returns false, and nothing can be drafted, if it cannot
  /// read that. pass: of the network that drafts.
  virtual bool read(const PastTokens& text, Forward& pass) = 0;
  /// Reads a token that was guessed.
  virtual void read(Token token, Forward& pass) = 0;
  /// Returns the likeliest token after the last one that was read, the smaller id if equal. Throws
  /// InvalidArgument where logits are not finite.
  virtual Guess guess(Forward& pass) = 0;
};

/// Returns the likeliest token after token number `at` of the last run, the smaller id if equal.
/// logits: [vocab_size], to work in. Throws InvalidArgument where logits are not finite.
Drafter::Guess likeliest_after(std::int64_t at, Forward& pass, std::vector<float>& logits);

}  // namespace topkv
