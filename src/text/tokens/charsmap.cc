#include "src/text/tokens/charsmap.h"

#include <array>
#include <utility>

#include "src/core/text/utf8.h"
#include "src/text/unicode/graphemes.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// Fields of a unit.
bool has_value(std::uint32_t unit) { return ((unit >> 8U) & 1U) != 0; }
std::uint32_t value_of(std::uint32_t unit) { return unit & 0x7FFFFFFFU; }
std::uint32_t label_of(std::uint32_t unit) { return unit & 0x800000FFU; }
std::size_t offset_of(std::uint32_t unit) {
  return std::size_t{unit >> 10U} << ((unit & (1U << 9U)) >> 6U);
}

constexpr std::size_t max_units = std::size_t{1} << 20U;  // SentencePiece's own has some 60,000

[[noreturn]] void refuse(const char* what) {
  throw FileError(std::string("precompiled_charsmap ") + what);
}

constexpr std::array<int, 256> base64_values() {
  std::array<int, 256> values{};
  values.fill(-1);
  constexpr std::string_view alphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < alphabet.size(); ++i) {
    values[static_cast<unsigned char>(alphabet[i])] = static_cast<int>(i);
  }
  return values;
}

std::string from_base64(std::string_view text) {
  static constexpr std::array<int, 256> values = base64_values();
  if (text.size() % 4 != 0) refuse("is no base64");
  std::size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::string out;
  out.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const int value = values[static_cast<unsigned char>(c)];
    if (value < 0) refuse("is no base64");
    bits = bits << 6U | static_cast<std::uint32_t>(value);
    held += 6;
    if (held >= 8) {
      held -= 8;
      out.push_back(static_cast<char>((bits >> static_cast<unsigned>(held)) & 0xFFU));
    }
  }
  if ((bits & ((1U << static_cast<unsigned>(held)) - 1)) != 0) refuse("is no base64");
  return out;
}

std::uint32_t little_endian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    value |= std::uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return value;
}

}  // namespace

Charsmap Charsmap::parse(std::string_view base64) {
  const std::string bytes = from_base64(base64);
  std::string_view rest = bytes;
  if (rest.size() < 4) refuse("has less than 4 bytes");
  const std::size_t count = little_endian(rest) / 4;
  rest.remove_prefix(4);
  if (count == 0) refuse("has an empty trie");
  if (count > max_units) refuse("has a trie of more than 2^22 bytes");
  if (rest.size() / 4 < count) refuse("is shorter than its trie");
  Charsmap result;
  result.units_.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    result.units_.push_back(little_endian(rest.substr(4 * i)));
  result.texts_ = rest.substr(4 * count);
  if (valid_utf8_bytes(result.texts_) < result.texts_.size())
    refuse("has texts that are not UTF-8");
  result.check();
  return result;
}

/// Walks the trie once, so that looking up need not check. Each byte leads from a unit to one of
/// the 256 around it.
void Charsmap::check() const {
  std::vector<bool> seen(units_.size(), false);
  std::vector<std::size_t> open = {0};
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    const std::size_t base = node ^ offset_of(units_[node]);
    if ((base | 0xFFU) >= units_.size()) refuse("points outside of its trie");
    if (node != 0 && has_value(units_[node])) {
      const std::size_t at = value_of(units_[base]);
      if (at > texts_.size()) refuse("points outside of its texts");
      const bool within =
          at < texts_.size() && (static_cast<unsigned char>(texts_[at]) & 0xC0U) == 0x80;
      if (within) refuse("points into a character of its texts");
    }
    for (std::uint32_t byte = 1; byte < 256; ++byte) {
      const std::size_t next = base ^ byte;
      if (label_of(units_[next]) != byte || seen[next]) continue;
      seen[next] = true;
      open.push_back(next);
    }
  }
}

/// What the shortest of the text's beginnings that is in the trie maps to.
std::optional<std::string_view> Charsmap::find(std::string_view text) const {
  std::size_t node = offset_of(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) return {};
    node ^= byte;
    const std::uint32_t unit = units_[node];
    if (label_of(unit) != byte) return {};
    node ^= offset_of(unit);
    if (!has_value(unit)) continue;
    const std::string_view found = std::string_view(texts_).substr(value_of(units_[node]));
    return found.substr(0, found.find('\0'));
  }
  return {};
}

void Charsmap::apply(std::string_view text, const ByteAllowance& allowance,
                     std::string& out) const {
  constexpr std::size_t longest_whole = 5;
  const auto append = [&](std::string_view more) {
    allowance.check(out.size() + more.size());  // one text of a file may be as long as the file
    out += more;
  };
  while (!text.empty()) {
    std::string_view grapheme = text.substr(0, first_grapheme_bytes(text));
    text.remove_prefix(grapheme.size());
    if (grapheme.size() <= longest_whole) {
      if (const auto found = find(grapheme)) {
        append(*found);
        continue;
      }
    }
    while (!grapheme.empty()) {
      const std::string_view c = grapheme.substr(0, first_utf8_char(grapheme).bytes);
      append(find(c).value_or(c));
      grapheme.remove_prefix(c.size());
    }
  }
}

}  // namespace topkv
