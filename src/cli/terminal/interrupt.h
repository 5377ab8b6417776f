// Ctrl-C: the first one asks running work to stop at its next report, a second one ends the
// program at once.
//
// The signal handler never runs on a thread that computes: oneDNN's AVX-512 matrix product uses the
// stack pointer for other purposes, and a handler that interrupts it overwrites the heap (seen with
// oneDNN 2.6). So the calling thread and those that it starts block the signals, and a thread that
// does nothing else takes them.
#pragma once

#include <exception>

namespace topkv::cli {

/// Thrown through a progress callback when the user asked to stop.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

/// Takes SIGINT and SIGTERM from here on. REQUIRES: no thread that computes has been started. A
/// signal that the program was started with ignored (as shells do with SIGINT behind &) stays so.
void catch_interrupts();

/// Whether one has arrived.
bool interrupted();

/// Throws Interrupted when one has arrived.
void stop_if_interrupted();

/// Forgets a Ctrl-C that has ended what it was to end. A request to end the program (SIGTERM)
/// stays.
void forget_interrupt();

/// While it lives, one signal ends the program at once: it waits for a person.
class WaitsForPerson {
 public:
  WaitsForPerson();
  ~WaitsForPerson();
  WaitsForPerson(const WaitsForPerson&) = delete;  // a scope
  WaitsForPerson& operator=(const WaitsForPerson&) = delete;
};

/// The exit status of an interrupted program, as shells have it: 128 + the signal's number.
int interrupted_status();

}  // namespace topkv::cli
