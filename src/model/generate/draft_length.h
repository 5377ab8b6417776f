// How many tokens to draft: as many as are worth their time.
#pragma once

#include <array>
#include <cstdint>

namespace topkv {

/// Learns, from the steps of one answer, how often drafted tokens are accepted and what a step of
/// several tokens costs. Proposes the length of the next draft by the tokens that it gains in the
/// time that it takes.
///
/// A token's chance depends on how many tokens before it match: a draft after two words may be
/// wrong, one in the middle of a quotation hardly is.
class DraftLength {
 public:
  // The share of a step's time that each further token takes: until steps have been timed, and
  // where they are not.
  static constexpr double first_share = 0.5;
  static constexpr double untimed_share = 0.1;
  /// Above 0: all drafts have so many tokens, if there are as many. Tests set it, so that no test
  /// depends on time.
  static inline std::int64_t forced = 0;

  /// timed: costs are learnt from times, which must not decide what is chosen.
  /// takes_back: a step of which some tokens are rejected is made again without them.
  DraftLength(bool timed, bool takes_back)
      : timed_(timed), takes_back_(takes_back), share_(timed ? first_share : untimed_share) {}

  /// Returns the tokens to draft, at most `most`, after a match of so many tokens; 0: none.
  std::int64_t choose(std::int64_t matched, std::int64_t most) const;
  /// A draft was verified, or its first token was compared with the one that was chosen.
  void count(std::int64_t matched, std::int64_t drafted, std::int64_t accepted);
  /// A step of some tokens took so long.
  void time(std::int64_t tokens, double seconds);

 private:
  static constexpr std::size_t lengths = 4;  // of matches: 3, 4 to 6, 7 to 12, more

  static std::size_t length_of(std::int64_t matched);
  /// Returns the chance that a token is accepted if those before it are.
  double chance(std::int64_t matched) const;
  /// Returns the time of a step of some tokens, in steps of one.
  double cost(std::int64_t tokens) const;

  bool timed_;
  bool takes_back_;
  double share_;
  double one_ = 0;   // seconds of a step of one token; 0: unknown
  double ones_ = 0;  // steps of one token
  // Tokens that were judged and accepted, by the length of the match; old ones count less.
  std::array<double, lengths> judged_ = {4, 4, 4, 4};
  std::array<double, lengths> accepted_ = {1.2, 1.8, 2.8, 3.5};
};

}  // namespace topkv
