#include "src/cli/terminal/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

namespace topkv::cli {
namespace {

std::atomic<int> arrived = 0;
std::atomic<bool> waits = false;
static_assert(std::atomic<int>::is_always_lock_free);  // the handler may use it

void on_signal(int signal) {
  if (waits || arrived.exchange(signal) != 0) ::_exit(128 + signal);
}

void handle(int signal) {
  struct sigaction action = {};
  sigaction(signal, nullptr, &action);
  if (action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void catch_interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM}) {
    handle(signal);
    sigaddset(&signals, signal);
  }
  // Inherited by threads started later. Threads that libraries started before (OpenBLAS does, when
  // loaded) may run the handler too: they never run oneDNN.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals] {
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    for (;;) ::pause();
  }).detach();
}

bool interrupted() { return arrived != 0; }

void stop_if_interrupted() {
  if (interrupted()) throw Interrupted();
}

void forget_interrupt() {
  int was = SIGINT;
  arrived.compare_exchange_strong(was, 0);
}

WaitsForPerson::WaitsForPerson() { waits = true; }
WaitsForPerson::~WaitsForPerson() { waits = false; }

int interrupted_status() { return 128 + arrived; }

}  // namespace topkv::cli
