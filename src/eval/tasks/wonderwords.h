// The word lists of the Python package wonderwords 3.0.1 (MIT, wonderwords/LICENSE), of which RULER
// makes the keys of its needles and its lists of words. A few have a space, a hyphen, a capital or
// an apostrophe in them. The files of wonderwords/ are the package's but for spaces at ends of
// lines and two words that stood twice.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "src/eval/tasks/word_lists.h"

namespace topkv {

/// The lists' name and version, which answers depend on.
inline constexpr std::string_view wonder_lists = "wonderwords 3.0.1";

std::span<const std::string_view> wonder_adjectives();
std::span<const std::string_view> wonder_nouns();
/// Adjectives, nouns and verbs, in alphabetical order, each once.
std::span<const std::string_view> wonder_words();

/// "adjective-noun", of some six million.
std::string random_wonder_key(Random& random);

}  // namespace topkv
