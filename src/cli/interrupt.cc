#include "src/cli/interrupt.h"

#include <csignal>

namespace topkv::cli {
namespace {

volatile std::sig_atomic_t arrived = 0;

void on_signal(int) { arrived = 1; }

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  // The handler is removed when it runs, so that a second Ctrl-C ends a program that hangs.
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return arrived != 0; }

void stop_if_interrupted() {
  if (interrupted()) throw Interrupted();
}

}  // namespace topkv::cli
