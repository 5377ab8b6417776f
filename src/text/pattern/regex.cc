#include "src/text/pattern/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/format/json_file.h"
#include "topkv/error.h"

namespace topkv {
namespace {

template <auto free_function>
struct Free {
  template <class T>
  void operator()(T* pointer) const {
    free_function(pointer);
  }
};

template <class T, auto free_function>
using Handle = std::unique_ptr<T, Free<free_function>>;

// JIT code keeps its backtracking points on a stack of its own, which grows as needed.
constexpr std::size_t first_stack_bytes = 32 * 1024;
constexpr std::size_t last_stack_bytes = 64 * 1024 * 1024;
constexpr std::uint32_t heap_limit_kib = 64 * 1024;  // the interpreter's backtracking points

// What is tried without a count: this many bytes ahead, with this many points of backtracking for
// each place in them. Patterns of tokenizers need neither more, but for long words and white space.
// The time that takes is linear in the text: no place is tried twice, what a place takes does not
// depend on the text (each part of a pattern, of which PCRE2 compiles 64 KB, once between two
// points of backtracking, over these bytes and those that it looks back at).
constexpr std::size_t near_bytes = 128;
constexpr std::uint32_t near_matches = 64;

// Going back so many characters is one step; patterns of tokenizers look back at one.
constexpr std::uint32_t max_lookbehind = 16;

// Enough for anything within a short text.
constexpr std::size_t first_allowance = 10'000'000;

std::string reason_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// The end of the bytes to look at first: between two characters.
std::size_t near_end(std::string_view subject, std::size_t from) {
  if (subject.size() - from <= near_bytes) return subject.size();
  std::size_t end = from + near_bytes;
  while ((static_cast<unsigned char>(subject[end]) & 0xC0U) == 0x80) --end;
  return end;
}

template <class T>
T* allocated(T* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

}  // namespace

struct RegexScratch::Impl {
  std::size_t allowance = first_allowance;
  std::size_t last = 0;  // where the step before was
  Handle<pcre2_match_data, pcre2_match_data_free> data{
      allocated(pcre2_match_data_create(1, nullptr))};
  Handle<pcre2_match_context, pcre2_match_context_free> context{
      allocated(pcre2_match_context_create(nullptr))};
  Handle<pcre2_jit_stack, pcre2_jit_stack_free> stack{
      pcre2_jit_stack_create(first_stack_bytes, last_stack_bytes, nullptr)};

  Impl() {
    pcre2_set_heap_limit(context.get(), heap_limit_kib);
    pcre2_set_callout(context.get(), &Impl::count, this);
    // Null where PCRE2 was built without JIT; nothing asks for the stack then.
    if (stack != nullptr) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  /// Called before each part of a pattern that is compiled to be counted.
  static int count(pcre2_callout_block* block, void* data) {
    auto& self = *static_cast<Impl*>(data);
    const std::size_t at = block->current_position;
    const std::size_t steps = 1 + (at > self.last ? at - self.last : 0);
    self.last = at;
    if (steps > self.allowance) return PCRE2_ERROR_MATCHLIMIT;
    self.allowance -= steps;
    return 0;
  }
};

RegexScratch::RegexScratch() : impl_(std::make_unique<Impl>()) {}
RegexScratch::~RegexScratch() = default;
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;
RegexScratch& RegexScratch::operator=(RegexScratch&&) noexcept = default;

void RegexScratch::allow(std::size_t steps) { impl_->allowance += steps; }

namespace {

using Code = Handle<pcre2_code, pcre2_code_free>;

Code compile(const std::string& pattern, std::uint32_t more_options) {
  int error = 0;
  std::size_t offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | more_options, &error,
                          &offset, nullptr));
  if (code == nullptr) {
    throw FileError(
        fmt::format("the regular expression, for PCRE2 {}, does not compile: {}; expected one "
                    "that does",
                    shown(pattern), reason_of(error)));
  }
  std::uint32_t lookbehind = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MAXLOOKBEHIND, &lookbehind);
  if (lookbehind > max_lookbehind) {
    throw Unsupported(
        fmt::format("the regular expression, for PCRE2 {}, looks back at {} characters; topkv runs "
                    "those that look back at {} at most",
                    shown(pattern), lookbehind, max_lookbehind));
  }
  // A pattern that JIT does not take is interpreted: the same matches, slower.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return code;
}

}  // namespace

struct Regex::Impl {
  std::string pattern;
  Code near;     // for the next few bytes
  Code counted;  // calls out before each of its parts, from every place where it could begin
};

Regex::Regex(const std::string& pcre2_pattern)
    : impl_(std::make_unique<Impl>(
          Impl{pcre2_pattern, compile(pcre2_pattern, 0),
               compile(pcre2_pattern, PCRE2_AUTO_CALLOUT | PCRE2_NO_START_OPTIMIZE)})) {}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::optional<Regex::Match> Regex::find(std::string_view subject, std::size_t from,
                                        RegexScratch& scratch) const {
  RegexScratch::Impl& work = *scratch.impl_;
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(work.data.get());
  const auto match = [&](const Code& code, std::size_t end, std::uint32_t options) {
    // Without the check of the UTF-8, which would go over the whole subject for every match.
    return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()), end, from,
                       PCRE2_NO_UTF_CHECK | options, work.data.get(), work.context.get());
  };
  pcre2_set_match_limit(work.context.get(), near_matches);
  while (true) {
    const std::size_t end = near_end(subject, from);
    const bool all = end == subject.size();
    const int result = match(impl_->near, end, all ? 0 : PCRE2_PARTIAL_HARD);
    // A match up to the end of what was shown might be another one with more behind it.
    if (result >= 0 && (all || bounds[1] < end)) return Match{bounds[0], bounds[1]};
    if (result == PCRE2_ERROR_NOMATCH) {
      if (all) return {};
      from = end;  // no place before it, whatever follows
      continue;
    }
    if (result == PCRE2_ERROR_PARTIAL) from = bounds[0];  // likewise
    break;
  }
  work.last = from;
  pcre2_set_match_limit(work.context.get(), UINT32_MAX);  // the steps are counted otherwise
  const int result = match(impl_->counted, subject.size(), 0);
  if (result == PCRE2_ERROR_NOMATCH) return {};
  if (result < 0) {
    throw FileError(
        fmt::format("matching the regular expression, for PCRE2 {}, failed at byte {} "
                    "of {}: {}",
                    shown(impl_->pattern), from, subject.size(), reason_of(result)));
  }
  return Match{bounds[0], bounds[1]};
}

}  // namespace topkv
