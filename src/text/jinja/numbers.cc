#include "src/text/jinja/numbers.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "src/text/jinja/limits.h"

namespace topkv {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

/// Below the base, or none.
std::optional<int> digit(char c, std::int64_t base) {
  const char small = lower(c);
  const int value = small >= '0' && small <= '9'   ? small - '0'
                    : small >= 'a' && small <= 'z' ? small - 'a' + 10
                                                   : 36;
  if (value >= base) return {};
  return value;
}

/// Without underscores, each of which stands between two digits; none where one does not.
std::optional<std::string> without_underscores(std::string_view text, std::int64_t base) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const bool between = i > 0 && i + 1 < text.size() && digit(text[i - 1], base).has_value() &&
                         digit(text[i + 1], base).has_value();
    if (!between) return {};
  }
  return out;
}

/// Takes a sign away and tells whether it is a minus.
bool take_sign(std::string_view& text) {
  const bool minus = text.starts_with('-');
  if (minus || text.starts_with('+')) text.remove_prefix(1);
  return minus;
}

/// 0x and the like, where the base is theirs; an underscore may follow.
void take_prefix(std::string_view& text, std::int64_t base) {
  const char letter = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';
  if (text.size() < 3 || text[0] != '0' || lower(text[1]) != letter) return;
  text.remove_prefix(text[2] == '_' ? 3 : 2);
}

std::optional<std::int64_t> parsed_whole(std::string_view text, std::int64_t base) {
  const bool minus = take_sign(text);
  take_prefix(text, base);
  const std::optional<std::string> digits = without_underscores(text, base);
  if (!digits || digits->empty()) return {};
  std::uint64_t number = 0;
  bool beyond = false;
  for (const char c : *digits) {
    const std::optional<int> next = digit(c, base);
    if (!next) return {};
    const auto one = static_cast<std::uint64_t>(*next);
    const auto by = static_cast<std::uint64_t>(base);
    constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
    beyond = beyond || number > (most - one) / by;
    if (!beyond) number = number * by + one;
  }
  if (beyond) fail("it makes a number of a text that is beyond 64 bits");
  const auto size = static_cast<std::int64_t>(number);
  return minus ? -size : size;
}

std::optional<double> parsed_fraction(std::string_view text) {
  const bool minus = take_sign(text);
  std::string word;
  for (const char c : text) word += lower(c);
  double size = 0;
  if (word == "inf" || word == "infinity") {
    size = std::numeric_limits<double>::infinity();
  } else if (word == "nan") {
    size = std::numeric_limits<double>::quiet_NaN();
  } else {
    const std::optional<std::string> digits = without_underscores(word, 10);
    const bool number = digits && digits->find_first_not_of("0123456789.e+-") == std::string::npos;
    if (!number || digits->empty() || digits->front() == '-') return {};
    const char* const end = digits->data() + digits->size();
    const auto [at, error] = std::from_chars(digits->data(), end, size);
    if (error == std::errc::result_out_of_range) fail("it has a number that is too large or small");
    if (error != std::errc() || at != end) return {};
  }
  return minus ? -size : size;
}

/// float(value); none for what is no number.
std::optional<double> as_fraction(const Value& value) {
  if (value->is_undefined()) fail("it makes a number of " + kind_of(value));
  if (is_text(value)) {
    if (!all_ascii(text_in(value))) fail("it makes a number of text beyond ASCII");
    return parsed_fraction(text_in(value));
  }
  if (jinja::is_val<jinja::value_float>(value)) return value->as_float();
  if (is_number(value)) return static_cast<double>(value->as_int());
  return {};
}

}  // namespace

Value whole_number(const Value& value, std::int64_t base, const Value& otherwise) {
  if (base < 2 || base > 36) fail("it has the filter int with a base that is not 2 to 36");
  const auto made = [](std::int64_t number) { return jinja::mk_val<jinja::value_int>(number); };
  if (is_number(value) && !jinja::is_val<jinja::value_float>(value)) return made(value->as_int());
  if (is_text(value)) {
    if (const auto whole = parsed_whole(text_in(value), base)) return made(*whole);
  }
  const std::optional<double> number = as_fraction(value);
  if (!number || !std::isfinite(*number)) return otherwise;
  constexpr double most = 9.2e18;
  if (std::fabs(*number) > most) fail("it makes a whole number that is beyond 64 bits");
  return made(static_cast<std::int64_t>(*number));
}

Value fraction(const Value& value, const Value& otherwise) {
  const std::optional<double> number = as_fraction(value);
  if (!number) return otherwise;
  return fraction_value(*number);
}

}  // namespace topkv
