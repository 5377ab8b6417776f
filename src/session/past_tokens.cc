#include "src/session/past_tokens.h"

#include <algorithm>
#include <array>
#include <utility>

namespace topkv {

PastTokens::PastTokens(std::shared_ptr<const TokenIndex> of_context, std::int64_t context_tokens)
    : context_(std::move(of_context)), context_tokens_(context_tokens) {
  // Rows that begin in the context are found, too.
  if (context_ == nullptr || context_->size() != context_tokens) {
    context_.reset();
    return;
  }
  begin_ = std::min(TokenIndex::row - 1, context_tokens);
  for (std::int64_t i = context_tokens - begin_; i < context_tokens; ++i)
    index_.append((*context_)[i]);
}

void PastTokens::set(std::int64_t at, std::span<const Token> tokens) {
  truncate(at);
  while (own() < at) index_.append(-1);
  for (const Token token : tokens) index_.append(token);
}

void PastTokens::truncate(std::int64_t own) {
  index_.truncate(std::min(index_.size(), begin_ + own));
}

Token PastTokens::token(std::int64_t at) const {
  if (at >= -begin_) return index_[at + begin_];
  return context_ == nullptr ? -1 : (*context_)[context_->size() + at];
}

Token PastTokens::token_before(std::int64_t position, bool own, std::int64_t back) const {
  const std::int64_t at = position - back;
  if (!own) return at < 0 ? -1 : (*context_)[at];
  if (at >= begin_) return index_[at];
  const std::int64_t of_context = context_ == nullptr ? -1 : context_->size() + at - begin_;
  return of_context < 0 ? -1 : (*context_)[of_context];
}

std::int64_t PastTokens::match(std::int64_t position, bool own) const {
  std::int64_t matched = 0;
  for (; matched < most_matched; ++matched) {
    const Token token = token_before(index_.size() - 1, true, matched);
    if (token < 0 || token != token_before(position, own, matched)) break;
  }
  return matched;
}

void PastTokens::look(const TokenIndex& index, bool own, Place& best) const {
  std::array<Token, TokenIndex::row> row{};
  for (std::int64_t i = 0; i < TokenIndex::row; ++i)
    row[static_cast<std::size_t>(TokenIndex::row - 1 - i)] =
        token_before(index_.size() - 1, true, i);
  if (std::ranges::any_of(row, [](Token token) { return token < 0; })) return;
  std::int64_t position = index.latest(row);
  for (std::int64_t i = 0; i < most_places && position >= 0 && best.matched < most_matched;
       ++i, position = index.earlier(position)) {
    if (position == index.size() - 1 && (own || this->own() == 0)) continue;  // the end itself
    const std::int64_t matched = match(position, own);
    if (matched >= TokenIndex::row && matched > best.matched)
      best = {.position = position, .matched = matched, .own = own};
  }
}

void PastTokens::draft(std::int64_t most, TokenDraft& out) const {
  out.tokens.clear();
  out.matched = 0;
  if (most <= 0 || index_.size() == 0) return;
  Place best;
  look(index_, true, best);
  if (context_ != nullptr) look(*context_, false, best);
  if (best.matched == 0) return;
  out.matched = best.matched;
  for (std::int64_t at = best.position + 1; std::ssize(out.tokens) < most; ++at) {
    if (!best.own && at >= context_->size()) {  // goes on in the session's own
      best.own = true;
      at = at - context_->size() + begin_;
    }
    const std::int64_t beyond = best.own ? at - index_.size() : -1;
    const Token token = beyond >= 0 ? out.tokens[static_cast<std::size_t>(beyond)]
                        : best.own  ? index_[at]
                                    : (*context_)[at];
    if (token < 0) break;
    out.tokens.push_back(token);
  }
}

}  // namespace topkv
