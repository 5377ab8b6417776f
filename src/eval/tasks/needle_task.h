// What is hidden and what is asked: the needles, their questions and how answers are scored.
//
// number, word and uuid follow RULER's needle tasks to the letter (Hsieh et al. 2024, "RULER:
// What's the Real Context Size of Your Long-Context Language Models?"; NVIDIA/RULER,
// scripts/data/synthetic/niah.py): when one value is asked its template is rewritten to the
// singular, while the needle keeps the plural ("One of the special magic numbers for …"). passkey
// is the task of Mohtashami & Jaggi 2023 ("Landmark Attention").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/eval/tasks/word_lists.h"

namespace topkv {

enum class NeedleStyle : std::uint8_t { number, word, uuid, passkey, custom };

/// One fact. depth is where it is wanted, in percent of the context.
struct Needle {
  double depth = 0;
  std::string key;       ///< what it is about; empty for styles with one needle per context
  std::string value;     ///< the answer expected
  std::string sentence;  ///< goes into the context
  std::string question;  ///< the session's prompt, up to where the answer begins
};

/// A user's own needle.
struct CustomNeedle {
  std::string text;
  std::string question;
  std::string answer;
};

class NeedleTask {
 public:
  /// custom is read only for NeedleStyle::custom.
  NeedleTask(NeedleStyle style, CustomNeedle custom);

  NeedleStyle style() const { return style_; }
  /// What the context begins with; empty for custom needles.
  std::string intro() const;
  /// Whether several needles in one context could not be told apart by their questions.
  bool one_per_context() const;
  /// Tokens to generate when the user did not say.
  std::int64_t default_predict() const;

  /// One needle per depth, keys and values distinct; the same for the same seed.
  std::vector<Needle> needles(const std::vector<double>& depths, std::uint64_t seed) const;
  /// A RULER needle of another key and value than any of `needles`.
  std::string distractor(Random& random, const std::vector<Needle>& needles) const;

 private:
  std::string random_value(Random& random) const;
  Needle make(double depth, std::string key, std::string value) const;

  NeedleStyle style_;
  CustomNeedle custom_;
};

// RULER's words. type: what is hidden, in the singular ("number"); one: a single value is asked
// for, in the singular.

std::string ruler_intro(std::string_view type, bool one);
std::string ruler_needle(std::string_view type, std::string_view key, std::string_view value);
/// With the beginning of the answer. keys: one, or several as a list in English.
std::string ruler_question(std::string_view type, std::string_view keys, bool one);

/// Seven digits, as RULER's.
std::string random_number(Random& random);
/// Version 4 of RFC 9562.
std::string random_uuid(Random& random);

/// RULER's string_match_all for one reference: the value occurs in the answer, in any case.
bool answer_has(std::string_view answer, std::string_view value);

/// One seed out of several numbers (SplitMix64's finaliser over them in turn).
std::uint64_t mix_seed(std::uint64_t seed, std::uint64_t salt);

}  // namespace topkv
