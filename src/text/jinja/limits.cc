#include "src/text/jinja/limits.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "topkv/error.h"

namespace topkv {
namespace {

// A step is a word or a sign that is evaluated, a scope that is searched for a name, or 256 bytes
// that are read or copied: a third of a microsecond or less. Templates in use take some two hundred
// for each message, and make each text a dozen times; but some look at all that came before each
// message, which are 8000 steps for each of a thousand.
constexpr std::int64_t base_steps = 4'000'000;
constexpr std::int64_t steps_per_message = 8192;
constexpr std::int64_t steps_per_input_byte = 4;
constexpr std::int64_t base_bytes = std::int64_t{128} << 20U;
constexpr std::int64_t bytes_per_input_byte = 64;
constexpr std::int64_t bytes_per_step = 256;

constexpr const char* too_deep = "it calls itself, or is nested, too deeply";

thread_local Meter* meter = nullptr;

}  // namespace

std::int64_t line_of(std::size_t position, std::string_view source) {
  const std::string_view before = source.substr(0, position);
  return std::count(before.begin(), before.end(), '\n') + 1;
}

void fail(std::string message) { throw TemplateFailure{std::move(message)}; }

Meter::Meter(std::size_t messages, std::size_t input_bytes, std::size_t stack_bytes)
    : steps_(base_steps + steps_per_message * static_cast<std::int64_t>(messages) +
             steps_per_input_byte * static_cast<std::int64_t>(input_bytes)),
      bytes_(base_bytes + bytes_per_input_byte * static_cast<std::int64_t>(input_bytes)),
      stack_end_(static_cast<const char*>(__builtin_frame_address(0)) - stack_bytes) {
  meter = this;
}

Meter::~Meter() { meter = nullptr; }

Meter& Meter::current() { return *meter; }

void Meter::step(std::int64_t count) {
  steps_ -= count;
  if (steps_ < 0) fail("it takes too many steps; expected a loop that ends");
  if (static_cast<const char*>(__builtin_frame_address(0)) < stack_end_) {
    fail(too_deep);
  }
}

void Meter::take(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(bytes_)) {
    fail(fmt::format("it makes too much text; expected less than {} MiB and {} times the messages",
                     base_bytes >> 20U, bytes_per_input_byte));
  }
  bytes_ -= static_cast<std::int64_t>(bytes);
  read(bytes);
}

void Meter::read(std::size_t bytes) { step(static_cast<std::int64_t>(bytes) / bytes_per_step); }

void Meter::hold(std::size_t bytes) {
  held_ += bytes;
  if (held_ <= max_scope_bytes) return;
  held_ -= bytes;
  fail(too_deep);
}

void run_on_stack(std::size_t bytes, void (*work)(void*), void* argument) {
  struct Call {
    void (*work)(void*);
    void* argument;
    std::exception_ptr thrown;
  } call{work, argument, nullptr};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_t thread = {};
  int refused = pthread_attr_setstacksize(&attributes, bytes);
  if (refused == 0) {
    refused = pthread_create(
        &thread, &attributes,
        [](void* given) -> void* {
          auto& here = *static_cast<Call*>(given);
          try {
            here.work(here.argument);
          } catch (...) {
            here.thrown = std::current_exception();
          }
          return nullptr;
        },
        &call);
  }
  pthread_attr_destroy(&attributes);
  if (refused != 0) {
    throw OutOfMemory("a thread to render the chat template", static_cast<std::int64_t>(bytes), 0,
                      "allow more address space or threads (ulimit -v, ulimit -u)");
  }
  pthread_join(thread, nullptr);
  if (call.thrown) std::rethrow_exception(call.thrown);
}

}  // namespace topkv
