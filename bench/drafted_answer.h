// What drafts from a text gain for an answer that is known, by what steps cost: no model runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/model/generate/draft_length.h"
#include "src/session/past_tokens.h"
#include "src/store/token_index.h"

namespace bench {

/// An answer with drafts: its steps, and what they cost in steps of one token.
struct DraftedAnswer {
  std::int64_t tokens = 0;  ///< that were fed and chosen
  std::int64_t steps = 0;
  double cost = 0;
  double tokens_a_step() const { return static_cast<double>(tokens) / static_cast<double>(steps); }
  /// How often as fast it is as without drafts.
  double gain() const { return static_cast<double>(tokens) / cost; }
};

/// Drafts an answer as generation does. text: the context's tokens. prompt: the session's before
/// the answer. cost(n): of a step of n tokens, where a step of one costs 1. known_share: of
/// DraftLength's constructor.
template <class Cost>
DraftedAnswer draft_answer(std::span<const topkv::Token> text, std::span<const topkv::Token> prompt,
                           std::span<const topkv::Token> answer, const Cost& cost,
                           double known_share = 0) {
  constexpr std::int64_t most_drafted = 15;
  topkv::PastTokens past(std::make_shared<const topkv::TokenIndex>(text), std::ssize(text));
  past.set(0, prompt);
  topkv::DraftLength length(true, false, 0, known_share);
  DraftedAnswer out;
  for (std::int64_t at = 0; at + 1 < std::ssize(answer);) {
    const auto left = answer.subspan(static_cast<std::size_t>(at));
    const std::int64_t own = past.own();
    past.set(own, left.first(1));
    topkv::TokenDraft draft;
    past.draft(std::min(most_drafted, std::ssize(left) - 2), draft);
    std::vector<topkv::DraftLength::Evidence> evidence;
    for (std::int64_t i = 0; i < std::ssize(draft.tokens); ++i)
      evidence.push_back(topkv::DraftLength::of_match(draft.matched + i));
    const std::int64_t fed = length.choose(evidence, false);
    const std::int64_t agree =
        std::ranges::mismatch(draft.tokens, left.subspan(1)).in1 - draft.tokens.begin();
    const std::int64_t judged = std::max<std::int64_t>(1, fed);
    if (!evidence.empty()) {
      length.count(std::span(evidence).first(static_cast<std::size_t>(judged)),
                   std::min(judged, agree));
    }
    length.time(1 + fed, cost(1 + fed));
    const std::int64_t gone = 1 + std::min(fed, agree);
    past.set(own, left.first(static_cast<std::size_t>(gone)));
    at += gone;
    out.tokens += gone;
    out.cost += cost(1 + fed);
    ++out.steps;
  }
  return out;
}

}  // namespace bench
