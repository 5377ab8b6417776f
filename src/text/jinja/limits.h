// What a template may take: steps, bytes and stack. One Meter for each parse or rendering, known to
// its thread alone.
//
// Failures are thrown as TemplateFailure, which is no std::exception on purpose: the engine catches
// those, and wraps each in a text of many lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/text/jinja/render.h"

namespace topkv {

// Of the template. The longest that checkpoints ship have some 30 KB and 500 statements.
inline constexpr std::size_t max_template_bytes = 256 * 1024;
inline constexpr std::int64_t max_template_statements = 5000;
inline constexpr std::int64_t max_block_tokens = 5000;  ///< between two brackets of Jinja's
inline constexpr std::int64_t max_brackets = 200;       ///< inside one another
inline constexpr std::int64_t max_range = 100'000;      ///< jinja2's sandbox has the same
inline constexpr std::size_t max_nesting = 64;          ///< of lists and objects
inline constexpr std::size_t max_scope_bytes = 64 * 1024 * 1024;  ///< of scopes in one another

[[noreturn]] void fail(std::string message);

/// The number of the line, from 1, in which a place of the source lies.
std::int64_t line_of(std::size_t position, std::string_view source);

class Meter {
 public:
  /// messages, input_bytes: what the caller gave; long conversations may take more.
  /// stack_bytes: of this thread's stack, from here on.
  Meter(std::size_t messages, std::size_t input_bytes, std::size_t stack_bytes);
  ~Meter();
  Meter(const Meter&) = delete;  // the thread knows its address
  Meter& operator=(const Meter&) = delete;

  static Meter& current();

  /// Counts work and looks at the stack. Throws TemplateFailure.
  void step(std::int64_t count = 1);
  /// Counts bytes that are made (none is ever given back), and the work of making them.
  /// To be called before they are made, where they may be many.
  void take(std::size_t bytes);
  /// Counts the work of reading or copying so many bytes.
  void read(std::size_t bytes);
  /// Counts bytes of scopes that are in one another, until they are released.
  void hold(std::size_t bytes);
  void release(std::size_t bytes) { held_ -= bytes; }

 private:
  std::int64_t steps_;
  std::int64_t bytes_;
  std::size_t held_ = 0;
  const char* stack_end_;
};

/// Runs work on a thread with so much stack, and waits; what it throws is thrown again.
/// Throws OutOfMemory when there is none.
template <class Work>
void on_stack(std::size_t bytes, Work work);

void run_on_stack(std::size_t bytes, void (*work)(void*), void* argument);

template <class Work>
void on_stack(std::size_t bytes, Work work) {
  run_on_stack(
      bytes, [](void* argument) { (*static_cast<Work*>(argument))(); }, &work);
}

}  // namespace topkv
