// Answers with drafts and without, and how their sessions go on.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/model/generate/draft_length.h"
#include "topkv/model.h"

namespace test {

using topkv::Draft;
using topkv::DraftLength;
using topkv::GenerateOptions;
using topkv::GenerateResult;
using topkv::Model;
using topkv::Session;
using topkv::TextFn;
using topkv::Token;

/// While one lives, drafts have so many tokens.
class ForcedDrafts {
 public:
  explicit ForcedDrafts(std::int64_t tokens) { DraftLength::forced = tokens; }
  ~ForcedDrafts() { DraftLength::forced = 0; }
  ForcedDrafts(const ForcedDrafts&) = delete;  // belongs to one scope
  ForcedDrafts& operator=(const ForcedDrafts&) = delete;
};

/// Text that repeats itself here and there.
inline std::vector<Token> repeating_text(std::int64_t tokens, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Token> all;
  while (std::ssize(all) < tokens) {
    const std::size_t count = 4 + random() % 12;
    const std::size_t from = all.empty() ? 0 : random() % all.size();
    const bool repeats = !all.empty() && random() % 2 == 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (repeats && from + i < all.size()) all.push_back(Token{all[from + i]});
      if (!repeats) all.push_back(static_cast<Token>(3 + random() % 90));
    }
  }
  all.resize(static_cast<std::size_t>(tokens));
  return all;
}

/// Greedy, or sampled in one of two ways.
inline GenerateOptions varied_options(unsigned seed) {
  GenerateOptions options{.max_tokens = 40 + seed};
  if (seed % 3 == 1) {
    options.sampling = {.temperature = 0.3, .seed = seed, .repetition_penalty = 1.02};
    options.logprobs = 2;
  }
  if (seed % 3 == 2) options.sampling = {.temperature = 0.8, .top_p = 0.9, .seed = seed};
  return options;
}

/// An answer, and how its session goes on.
struct Asked {
  GenerateResult result;
  std::vector<Token> told;
  std::string pieces;
  std::int64_t own = 0;
  std::vector<float> next;
};

inline Asked ask(const Model& model, Session& session, std::span<const Token> prompt,
                 GenerateOptions options, Draft draft, bool text = false) {
  options.draft = draft;
  Asked asked;
  const auto on_text = [&](std::string_view piece) {
    asked.pieces += piece;
    return true;
  };
  asked.result = model.generate(
      session, prompt, options,
      [&](Token token) {
        asked.told.push_back(token);
        return true;
      },
      text ? TextFn(on_text) : TextFn());
  asked.own = session.own_tokens();
  session.snapshot();
  asked.next = model.logits(session, prompt.first(1));
  session.truncate(asked.own);
  return asked;
}

/// want: the answer without drafts.
inline void expect_equal(const Asked& got, const Asked& want) {
  EXPECT_EQ(got.result.tokens, want.result.tokens);
  EXPECT_EQ(got.told, want.told);
  EXPECT_EQ(got.result.text, want.result.text);
  EXPECT_EQ(got.pieces, want.pieces);
  EXPECT_EQ(got.result.finish, want.result.finish);
  EXPECT_EQ(got.result.steps, want.result.steps);
  EXPECT_EQ(want.result.drafted, 0);
  EXPECT_LE(got.result.accepted, got.result.drafted);
  EXPECT_EQ(got.own, want.own);
  EXPECT_TRUE(got.next == want.next) << "the session differs afterwards";
  ASSERT_EQ(got.result.logprobs.size(), want.result.logprobs.size());
  for (std::size_t i = 0; i < got.result.logprobs.size(); ++i)
    EXPECT_EQ(got.result.logprobs[i].chosen.logprob, want.result.logprobs[i].chosen.logprob);
}

}  // namespace test
