#include "src/text/unicode/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <new>
#include <vector>

#include "src/core/text/utf8.h"
#include "src/text/unicode/unicode_additions.h"

namespace topkv {
namespace {

// The `tokenizers` library normalizes by Unicode 9. What came later neither composes nor moves
// there; of that, these are the characters of Unicode 10 to 14 that otherwise would. U+11A7, a
// vowel, is here because utf8proc 2.8 takes it for a final consonant and loses it.
constexpr UnicodeRange inert_marks[] = {
    {0x7fd, 0x7fd, {}},     {0x898, 0x89f, {}},     {0x8ca, 0x8d3, {}},     {0x9fe, 0x9fe, {}},
    {0xc3c, 0xc3c, {}},     {0xd3b, 0xd3c, {}},     {0xeba, 0xeba, {}},     {0x11a7, 0x11a7, {}},
    {0x1715, 0x1715, {}},   {0x1abf, 0x1ace, {}},   {0x1df6, 0x1dfa, {}},   {0xa82c, 0xa82c, {}},
    {0x10d24, 0x10d27, {}}, {0x10eab, 0x10eac, {}}, {0x10f46, 0x10f50, {}}, {0x10f82, 0x10f85, {}},
    {0x11070, 0x11070, {}}, {0x1133b, 0x1133b, {}}, {0x1145e, 0x1145e, {}}, {0x11839, 0x1183a, {}},
    {0x11930, 0x11938, {}}, {0x1193d, 0x1193e, {}}, {0x11943, 0x11943, {}}, {0x119e0, 0x119e0, {}},
    {0x11a34, 0x11a34, {}}, {0x11a47, 0x11a47, {}}, {0x11a99, 0x11a99, {}}, {0x11d42, 0x11d42, {}},
    {0x11d44, 0x11d45, {}}, {0x11d97, 0x11d97, {}}, {0x16ff0, 0x16ff1, {}}, {0x1e130, 0x1e136, {}},
    {0x1e2ae, 0x1e2ae, {}}, {0x1e2ec, 0x1e2ef, {}}};

/// A character that stays as it is and parts what is normalized before and behind it. Some that
/// do so anyway are among them.
bool is_inert(char32_t c) {
  static const std::vector<UnicodeRange> inert = [] {
    std::vector<UnicodeRange> all(std::begin(inert_marks), std::end(inert_marks));
    all.insert(all.end(), unicode_additions().begin(), unicode_additions().end());
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.last < b.last; });
    return all;
  }();
  const auto range = std::lower_bound(inert.begin(), inert.end(), c,
                                      [](const auto& a, char32_t value) { return a.last < value; });
  return range != inert.end() && c >= range->first;
}

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

// Characters below U+0300 are what NFC makes of them, and begin with a byte up to 0xCB.
bool may_change(char c) { return static_cast<unsigned char>(c) >= 0xCC; }

bool is_mark(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class != 0; }

/// utf8proc_map with UTF8PROC_STABLE and UTF8PROC_COMPOSE, in its steps: it puts the marks behind a
/// character into order by swapping neighbours, which takes forever over a million of them.
void append_known(std::string_view text, std::string& out) {
  if (text.empty()) return;
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char next = first_utf8_char(text);
    std::array<utf8proc_int32_t, 32> parts;  // no character has as many
    int boundary = 0;
    const auto count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(next.code_point), parts.data(), parts.size(),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE),  // NOLINT: flags
        &boundary);
    points.insert(points.end(), parts.begin(), parts.begin() + count);
    text.remove_prefix(next.bytes);
  }
  for (auto at = points.begin(); at != points.end();) {
    const auto marks = std::find_if(at, points.end(), is_mark);
    at = std::find_if_not(marks, points.end(), is_mark);
    std::stable_sort(marks, at, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return utf8proc_get_property(a)->combining_class < utf8proc_get_property(b)->combining_class;
    });
  }
  const auto composed = utf8proc_normalize_utf32(
      points.data(), static_cast<utf8proc_ssize_t>(points.size()),
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));  // NOLINT: flags
  if (composed < 0) throw std::bad_alloc();  // well-formed text fails for lack of memory alone
  points.resize(static_cast<std::size_t>(composed));
  for (const utf8proc_int32_t c : points) append_utf8(static_cast<char32_t>(c), out);
}

void append_nfc(std::string_view text, std::string& out) {
  std::size_t known = 0;  // begin of the characters that are not inert
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = first_utf8_char(text.substr(at));
    if (is_inert(next.code_point)) {
      append_known(text.substr(known, at - known), out);
      out.append(text.substr(at, next.bytes));
      known = at + next.bytes;
    }
    at += next.bytes;
  }
  append_known(text.substr(known), out);
}

}  // namespace

std::string_view apply_nfc(std::string_view text, std::string& buffer) {
  if (std::none_of(text.begin(), text.end(), may_change)) return text;
  buffer.clear();
  // An ASCII character never composes with what stands before it, so text may be cut there: a run
  // of other characters is normalized together with the one ASCII character in front of it.
  std::size_t copied = 0;
  const auto* const end = text.end();
  for (const auto* at = text.begin(); at != end;) {
    const auto* const run = std::find_if_not(at, end, is_ascii);
    at = std::find_if(run, end, is_ascii);
    if (std::none_of(run, at, may_change)) continue;
    const auto begin = static_cast<std::size_t>(run - text.begin());
    const std::size_t first = begin > copied ? begin - 1 : begin;
    buffer.append(text.substr(copied, first - copied));
    copied = static_cast<std::size_t>(at - text.begin());
    append_nfc(text.substr(first, copied - first), buffer);
  }
  buffer.append(text.substr(copied));
  return buffer;
}

}  // namespace topkv
