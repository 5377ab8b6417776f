// The tokens that a session has read, and drafts of those that follow: what followed the same
// tokens before (prompt lookup; Saxena 2023, Yang et al. 2023, "Inference with Reference").
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/store/token_index.h"
#include "topkv/types.h"

namespace topkv {

/// A draft: tokens that may follow.
struct TokenDraft {
  std::vector<Token> tokens;
  /// The tokens at the end of the text that also stand before the place that the draft is of. Ones
  /// beyond most_matched are not counted.
  std::int64_t matched = 0;
};

/// The tokens of a context and of one of its sessions. Tokens are known if whoever made the context
/// named them, and whoever fed the session.
///
/// Threads: one thread at a time; the context's index is shared.
class PastTokens {
 public:
  static constexpr std::int64_t most_matched = 32;

  /// of_context: null if the context's tokens are unknown.
  PastTokens(std::shared_ptr<const TokenIndex> of_context, std::int64_t context_tokens);

  /// Returns the session's own tokens that are here, known or not.
  std::int64_t own() const { return index_.size() - begin_; }
  /// Own token number `at` and those after it are these. Unnamed ones before them are unknown.
  void set(std::int64_t at, std::span<const Token> tokens);
  /// Forgets own tokens from number `own` on. It may have fewer.
  void truncate(std::int64_t own);

  /// Returns the number of the text's first token: minus the number of the context's tokens.
  std::int64_t begin() const { return -context_tokens_; }
  /// Returns own token number `at`, or a token of the context, whose numbers are below 0. Unknown:
  /// below 0. REQUIRES: begin() <= at < own().
  Token token(std::int64_t at) const;

  /// Drafts up to `most` tokens that follow the last token: those after the longest match of the
  /// text's end, of these the latest. A draft that reaches the end of the text goes on with its own
  /// first tokens. Looks at most_places places of the session, then of the context.
  void draft(std::int64_t most, TokenDraft& out) const;

 private:
  static constexpr std::int64_t most_places = 64;

  /// A place that matches: the position of its last token, of the context or of index_.
  struct Place {
    std::int64_t position = -1;
    std::int64_t matched = 0;
    bool own = false;
  };

  /// Returns the token `back` tokens before a position; unknown: below 0. own: the position is of
  /// index_.
  Token token_before(std::int64_t position, bool own, std::int64_t back) const;
  /// Returns the number of tokens before two positions, theirs included, that are equal.
  std::int64_t match(std::int64_t position, bool own) const;
  void look(const TokenIndex& index, bool own, Place& best) const;

  std::shared_ptr<const TokenIndex> context_;
  std::int64_t context_tokens_;
  std::int64_t begin_ = 0;  // tokens in index_ before the session's own: the context's last
  TokenIndex index_;
};

}  // namespace topkv
