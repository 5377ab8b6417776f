#include "src/eval/tasks/needle_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace topkv {
namespace {

// RULER's word for what is hidden, in the singular. A passkey's or custom needle's distractors are
// numbers.
std::string_view type_of(NeedleStyle style) {
  if (style == NeedleStyle::word) return "word";
  return style == NeedleStyle::uuid ? "uuid" : "number";
}

std::string plural_of(std::string_view type, bool one) {
  return fmt::format("{}{}", type, one ? "" : "s");
}

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

}  // namespace

NeedleTask::NeedleTask(NeedleStyle style, CustomNeedle custom)
    : style_(style), custom_(std::move(custom)) {}

std::string NeedleTask::intro() const {
  switch (style_) {
    case NeedleStyle::custom:
      return {};
    case NeedleStyle::passkey:
      return "There is an important info hidden inside a lot of irrelevant text. Find it and "
             "memorize them. I will quiz you about the important information there.";
    default:
      break;
  }
  return ruler_intro(type_of(style_), true);
}

bool NeedleTask::one_per_context() const {
  return style_ == NeedleStyle::passkey || style_ == NeedleStyle::custom;
}

std::int64_t NeedleTask::default_predict() const { return style_ == NeedleStyle::uuid ? 64 : 32; }

std::string NeedleTask::random_value(Random& random) const {
  switch (style_) {
    case NeedleStyle::number:
      return random_number(random);
    case NeedleStyle::word:
      return random_adjective_noun(random);
    case NeedleStyle::uuid:
      return random_uuid(random);
    case NeedleStyle::passkey:
      return fmt::format("{}", random.between(10000, 99999));
    case NeedleStyle::custom:
      break;
  }
  return custom_.answer;
}

Needle NeedleTask::make(double depth, std::string key, std::string value) const {
  Needle needle{depth, std::move(key), std::move(value), {}, {}};
  switch (style_) {
    case NeedleStyle::custom:
      needle.sentence = custom_.text;
      needle.question = custom_.question;
      return needle;
    case NeedleStyle::passkey:
      needle.sentence =
          fmt::format("The pass key is {0}. Remember it. {0} is the pass key.", needle.value);
      needle.question = "What is the pass key? The pass key is";
      return needle;
    default:
      break;
  }
  const std::string_view type = type_of(style_);
  needle.sentence = ruler_needle(type, needle.key, needle.value);
  needle.question = ruler_question(type, needle.key, true);
  return needle;
}

std::vector<Needle> NeedleTask::needles(const std::vector<double>& depths,
                                        std::uint64_t seed) const {
  Random random(seed);
  std::vector<Needle> made;
  const auto taken = [&](std::string_view word) {
    return std::any_of(made.begin(), made.end(), [&](const Needle& needle) {
      return needle.key == word || needle.value == word;
    });
  };
  const auto fresh = [&](const auto& draw) {
    std::string word = draw();
    while (taken(word)) word = draw();
    return word;
  };
  for (const double depth : depths) {
    if (one_per_context()) {
      made.push_back(make(depth, {}, random_value(random)));
      continue;
    }
    std::string key = fresh([&] { return random_adjective_noun(random); });
    std::string value = fresh([&] { return random_value(random); });
    made.push_back(make(depth, std::move(key), std::move(value)));
  }
  return made;
}

std::string NeedleTask::distractor(Random& random, const std::vector<Needle>& needles) const {
  const NeedleTask plain(one_per_context() ? NeedleStyle::number : style_, {});
  const auto taken = [&](const std::string& text) {
    return std::any_of(needles.begin(), needles.end(), [&](const Needle& needle) {
      return needle.key == text || (!needle.value.empty() && answer_has(text, needle.value));
    });
  };
  std::string key;
  std::string value;
  do {
    key = random_adjective_noun(random);
    value = plain.random_value(random);
  } while (taken(key) || taken(value));
  return ruler_needle(type_of(plain.style()), key, value);
}

std::string ruler_intro(std::string_view type, bool one) {
  return fmt::format(
      "{} special magic {} {} hidden within the following text. Make sure to memorize it. I will "
      "quiz you about the {} afterwards.",
      one ? "A" : "Some", plural_of(type, one), one ? "is" : "are", plural_of(type, one));
}

std::string ruler_needle(std::string_view type, std::string_view key, std::string_view value) {
  return fmt::format("One of the special magic {}s for {} is: {}.", type, key, value);
}

std::string ruler_question(std::string_view type, std::string_view keys, bool one) {
  const std::string types = plural_of(type, one);
  return fmt::format(
      "What {0} the special magic {1} for {2} mentioned in the provided text? The special magic "
      "{1} for {2} mentioned in the provided text {3}",
      one ? "is" : "are all", types, keys, one ? "is" : "are");
}

std::string random_number(Random& random) {
  return fmt::format("{}", random.between(1000000, 9999999));
}

std::string random_uuid(Random& random) {
  const std::uint64_t high = (random.bits() & ~0xf000ULL) | 0x4000ULL;
  const std::uint64_t low = (random.bits() & ~(0xc0ULL << 56)) | (0x80ULL << 56);
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, (high >> 16) & 0xffff,
                     high & 0xffff, low >> 48, low & 0xffffffffffff);
}

bool answer_has(std::string_view answer, std::string_view value) {
  const auto found = std::search(answer.begin(), answer.end(), value.begin(), value.end(),
                                 [](char a, char b) { return lower(a) == lower(b); });
  return found != answer.end() || value.empty();
}

std::uint64_t mix_seed(std::uint64_t seed, std::uint64_t salt) {
  std::uint64_t z = seed + 0x9e3779b97f4a7c15ULL * (salt + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace topkv
