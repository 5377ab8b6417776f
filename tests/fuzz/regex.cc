// Regular expressions of pre-tokenizers: a pattern, a byte 0, and the text that it is looked for
// in.
#include "src/text/pattern/regex.h"

#include "src/core/text/utf8.h"
#include "src/text/pattern/regex_syntax.h"
#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(regex)(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  if (topkv::valid_utf8_bytes(input) < input.size()) return 0;  // REQUIRES
  const std::size_t end = std::min(input.find('\0'), size);
  const std::string_view subject = input.substr(std::min(end + 1, size));
  fuzz::accepts([&] {
    const topkv::Regex regex(topkv::pcre2_from_oniguruma(input.substr(0, end)));
    topkv::RegexScratch scratch;
    scratch.allow(10000);
    std::size_t at = 0;
    while (const auto match = regex.find(subject, at, scratch)) {
      fuzz::require(
          at <= match->begin && match->begin <= match->end && match->end <= subject.size(),
          "a match that is not in the text");
      if (match->end == match->begin) break;
      at = match->end;
    }
  });
  fuzz::accepts([&] { topkv::Regex(topkv::pcre2_from_literal(input)); });
  return 0;
}
