// A clock for the phases of a forward pass. It runs on the device's own time line, so that work
// that a call only begins counts for the phase that it belongs to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "src/core/threads/stopwatch.h"

namespace topkv {

enum class Phase : std::uint8_t { matmul, attention, other };
inline constexpr std::size_t phase_count = 3;

/// Seconds of each phase.
using PhaseSeconds = std::array<double, phase_count>;

class PhaseClock {
 public:
  virtual ~PhaseClock() = default;
  /// Ends the phase before and begins this one. A phase that is running already goes on.
  virtual void begin(Phase phase) = 0;
  /// Ends the phase before. Time until the next begin does not count.
  virtual void end() = 0;
  /// Returns the seconds of all phases that have ended. Waits for the device.
  virtual PhaseSeconds seconds() = 0;
};

/// The clock of a device whose calls return when their work is done.
class HostPhaseClock final : public PhaseClock {
 public:
  void begin(Phase phase) override {
    if (phase_ == phase) return;
    end();
    phase_ = phase;
    watch_ = Stopwatch();
  }
  void end() override {
    if (phase_) seconds_[static_cast<std::size_t>(*phase_)] += watch_.seconds();
    phase_.reset();
  }
  PhaseSeconds seconds() override { return seconds_; }

 private:
  std::optional<Phase> phase_;
  Stopwatch watch_;
  PhaseSeconds seconds_{};
};

}  // namespace topkv
