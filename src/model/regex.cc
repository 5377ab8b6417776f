#include "src/model/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>
#include <utility>

#include "src/model/json_file.h"
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

/// Steps for one match: enough for a pattern that goes over the subject a few times, far too few
/// for one that tries all ways to cut it up.
std::uint32_t match_limit(std::size_t subject_bytes) {
  return static_cast<std::uint32_t>(
      std::min<std::size_t>(1'000'000 + 8 * subject_bytes, 0xFFFFFFFFU));
}

std::string reason_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

template <class T>
T* allocated(T* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

}  // namespace

struct RegexScratch::Impl {
  Handle<pcre2_match_data, pcre2_match_data_free> data{
      allocated(pcre2_match_data_create(1, nullptr))};
  Handle<pcre2_match_context, pcre2_match_context_free> context{
      allocated(pcre2_match_context_create(nullptr))};
  Handle<pcre2_jit_stack, pcre2_jit_stack_free> stack{
      pcre2_jit_stack_create(first_stack_bytes, last_stack_bytes, nullptr)};

  Impl() {
    pcre2_set_heap_limit(context.get(), heap_limit_kib);
    // Null where PCRE2 was built without JIT; nothing asks for the stack then.
    if (stack != nullptr) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

RegexScratch::RegexScratch() : impl_(std::make_unique<Impl>()) {}
RegexScratch::~RegexScratch() = default;
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;
RegexScratch& RegexScratch::operator=(RegexScratch&&) noexcept = default;

struct Regex::Impl {
  std::string pattern;
  Handle<pcre2_code, pcre2_code_free> code;
};

Regex::Regex(const std::string& pcre2_pattern) : impl_(std::make_unique<Impl>()) {
  impl_->pattern = pcre2_pattern;
  int error = 0;
  std::size_t offset = 0;
  impl_->code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre2_pattern.data()), pcre2_pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  if (impl_->code == nullptr) {
    throw FileError(fmt::format("the regular expression, for PCRE2 {}, does not compile: {}",
                                shown(pcre2_pattern), reason_of(error)));
  }
  // A pattern that JIT does not take is interpreted: the same matches, slower.
  pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::optional<Regex::Match> Regex::find(std::string_view subject, std::size_t from,
                                        RegexScratch& scratch) const {
  RegexScratch::Impl& work = *scratch.impl_;
  pcre2_set_match_limit(work.context.get(), match_limit(subject.size()));
  // Without the check of the UTF-8, which would go over the whole subject for every match.
  const int result =
      pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(),
                  from, PCRE2_NO_UTF_CHECK, work.data.get(), work.context.get());
  if (result == PCRE2_ERROR_NOMATCH) return {};
  if (result < 0) {
    throw FileError(
        fmt::format("matching the regular expression, for PCRE2 {}, failed at byte {} "
                    "of {}: {}",
                    shown(impl_->pattern), from, subject.size(), reason_of(result)));
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(work.data.get());
  return Match{bounds[0], bounds[1]};
}

}  // namespace topkv
