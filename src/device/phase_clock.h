// Where the time of a forward pass goes: a clock on the device's own time line, so that work which
// is only begun when a call returns is still counted where it belongs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "src/core/stopwatch.h"

namespace topkv {

enum class Phase : std::uint8_t { matmul, attention, other };
inline constexpr std::size_t phase_count = 3;

/// Seconds of each phase.
using PhaseSeconds = std::array<double, phase_count>;

class PhaseClock {
 public:
  virtual ~PhaseClock() = default;
  /// The phase before ends here and this one begins; the same phase goes on.
  virtual void begin(Phase phase) = 0;
  /// The phase before ends; time until the next begin is not counted.
  virtual void end() = 0;
  /// Seconds of all phases that have ended. Waits for the device.
  virtual PhaseSeconds seconds() = 0;
};

/// For a device whose calls return when the work is done.
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
