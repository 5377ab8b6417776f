// The files of wonderwords/ as they are, a word to a line: wonderwords_text.cc.in with their texts
// in it.
#pragma once

#include <string_view>

namespace topkv {

extern const std::string_view wonder_adjectives_text;
extern const std::string_view wonder_nouns_text;
extern const std::string_view wonder_verbs_text;

}  // namespace topkv
