// Ctrl-C: the first one asks running work to stop at its next report, a second one kills.
#pragma once

#include <exception>

namespace topkv::cli {

/// Thrown through a progress callback when the user asked to stop.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

/// Catches SIGINT and SIGTERM once each from here on.
void catch_interrupts();

/// Whether one has arrived.
bool interrupted();

/// Throws Interrupted when one has arrived.
void stop_if_interrupted();

}  // namespace topkv::cli
