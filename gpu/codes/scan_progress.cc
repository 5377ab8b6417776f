#include "gpu/codes/scan_progress.h"

#include <exception>

#include "gpu/codes/scan_workspace.h"
#include "src/core/threads/cpu_relax.h"
#include "src/core/threads/stopwatch.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

// A look takes the line from the device, which writes in order: looking all the time holds it up.
constexpr double between_looks = 3e-6;  // seconds

int load(int& place) { return std::atomic_ref(place).load(std::memory_order_acquire); }

}  // namespace

void ScanProgress::release_abandoned_waiters() {
  try {
    if (listed_.done()) over_ = true;
  } catch (...) {
    // The device may be on its way all the same. Who is told that it is not writes where the device
    // reads what the step before left there: not before that has been read, then.
    try {
      listed_.synchronize();
    } catch (const std::exception&) {  // it has stopped
    }
    over_ = true;
    throw;
  }
}

void ScanProgress::wait_for_turn(int& place, int turn, Wait wait) {
  wait_for(
      place, [&](int x) { return x == turn; }, wait, pause);
}

void ScanProgress::drain_list(int* list, std::int64_t most, Wait wait, ArrivingRows& rows) {
  int* const begin = list + 1;
  int* next = begin;
  const auto meet = [&](const int* end) {
    for (; next < end && load(*next) != ScanWorkspace::not_listed; ++next) rows.add(*next);
  };
  const auto listed = [](int x) { return x != ScanWorkspace::not_listed; };
  const std::int64_t count = wait_for(*list, listed, wait, [&] {
    const Stopwatch looked;
    meet(begin + most);
    for (bool more = true; looked.seconds() < between_looks;) {
      if (more) more = rows.score_some();
      if (!more) pause();
    }
  });
  while (next < begin + count) {
    wait_for(*next, listed, wait, pause);
    meet(begin + count);
  }
}

/// What is at the place, once it is(it). Calls while_waiting() between looks.
template <class Is, class Use>
int ScanProgress::wait_for(int& place, const Is& is, Wait wait, const Use& while_waiting) {
  int x = 0;
  const auto come = [&] { return is(x = load(place)); };
  wait_busily(come, while_waiting, [&] {
    if (wait == Wait::poll_driver) release_abandoned_waiters();
    if (over_ && !come()) throw Error("a scan over codes ended without its results");
  });
  return x;
}

}  // namespace topkv::gpu
