// How many tokens to draft: as many as are worth their time.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace topkv {

/// Learns, from the steps of one answer, how often drafted tokens are accepted and what steps and
/// drafts cost. Proposes the length of the next draft by the tokens that it gains in the time that
/// it takes.
///
/// A token's chance depends on what speaks for it: how many tokens before it match (a draft after
/// two words may be wrong, one in the middle of a quotation hardly is), or how likely a draft model
/// finds it.
class DraftLength {
 public:
  // The share of a step's time that each further token takes: until steps have been timed, and
  // where they are not.
  static constexpr double first_share = 0.5;
  static constexpr double untimed_share = 0.1;
  /// With a larger share, an answer would draft nothing, and never measure it again.
  static constexpr double most_known_share = 0.75;
  /// Above 0: all drafts have so many tokens, if there are as many. Tests set it, so that no test
  /// depends on time.
  static inline std::int64_t forced = 0;

  /// What speaks for a drafted token. Tokens of one evidence have one chance.
  using Evidence = std::uint8_t;
  /// So many tokens before it match.
  static Evidence of_match(std::int64_t matched);
  /// A draft model gives it this probability.
  static Evidence of_probability(double probability);

  /// timed: costs are learnt from times, which must not decide what is chosen.
  /// takes_back: a step of which some tokens are rejected is made again without them.
  /// guess_cost: the time in which a draft model drafts a token, in steps of one token, if nothing
  /// is timed.
  /// known_share: what share() returned after an earlier answer of the same model; 0: unknown.
  DraftLength(bool timed, bool takes_back, double guess_cost, double known_share = 0);

  /// Returns how many tokens of a draft to feed, from the first on; 0: none. tokens: the evidence
  /// for each. guessed: a draft model has taken its time for them.
  std::int64_t choose(std::span<const Evidence> tokens, bool guessed) const;
  /// Returns whether a draft model is to draft a first token. Asked once a step.
  ///
  /// If that is not worth its time, it is tried from time to time all the same: what it is worth
  /// may change with the text.
  bool guesses();
  /// Returns whether a draft model is to draft one more token behind these.
  bool guesses_on(std::span<const Evidence> tokens) const;
  /// A draft was verified, or its first token was compared with the one that was chosen.
  void count(std::span<const Evidence> tokens, std::int64_t accepted);
  /// A step of some tokens took so long.
  void time(std::int64_t tokens, double seconds);
  /// A draft model took so long for one token.
  void time_guess(double seconds);
  /// Returns the share of a step's time that each further token takes, as far as it is known; 0: no
  /// step of several tokens was timed.
  double share() const { return shares_ > 0 ? share_ : 0; }

 private:
  static constexpr std::size_t matches = 4;        // lengths: 3, 4 to 6, 7 to 12, more
  static constexpr std::size_t probabilities = 4;  // up to 0.4, 0.7, 0.9, 1

  /// Returns the chance that a token is accepted if those before it are.
  double chance(Evidence evidence) const { return accepted_[evidence] / judged_[evidence]; }
  /// Returns the chance of a draft model's token that is not known yet.
  double guess_chance() const;
  /// Returns the time of a step of some tokens, in steps of one.
  double cost(std::int64_t tokens) const;
  /// Returns the time of a guess, in steps of one; 0: unknown.
  double guess_cost() const { return timed_ && one_ > 0 ? guess_ / one_ : guess_; }

  bool timed_;
  bool takes_back_;
  double share_;
  double shares_ = 0;          // that were timed, of earlier answers too
  double one_ = 0;             // seconds of a step of one token; 0: unknown
  double ones_ = 0;            // steps of one token
  double guess_;               // seconds of a guess, if timed; else steps of one token. 0: unknown
  double guesses_ = 0;         // that were timed
  std::int64_t idle_ = 0;      // steps since a draft model was last tried
  std::int64_t next_try_ = 1;  // the number of idle steps after which it is tried
  // Tokens that were judged and accepted, by their evidence; old ones count less.
  std::array<double, matches + probabilities> judged_ = {4, 4, 4, 4, 4, 4, 4, 4};
  std::array<double, matches + probabilities> accepted_ = {1.2, 1.8, 2.8, 3.5, 1.2, 2.2, 3, 3.6};
};

}  // namespace topkv
