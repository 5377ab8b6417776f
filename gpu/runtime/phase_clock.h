// Measures the phases of a forward pass on the device. It records events between the phases, and
// reads them when they are done.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "gpu/runtime/handles.h"
#include "src/device/phase_clock.h"

namespace topkv::gpu {

/// Implements PhaseClock for one stream.
class CudaPhaseClock final : public PhaseClock {
 public:
  /// Measures work on the stream, which must outlive it.
  explicit CudaPhaseClock(cudaStream_t stream) : stream_(stream) {}

  void begin(Phase phase) override;
  void end() override;
  PhaseSeconds seconds() override;

 private:
  /// The begin of a phase. No phase: the time until the next mark is not counted.
  struct Mark {
    Event event;
    std::optional<Phase> phase;
  };

  void mark(std::optional<Phase> phase);
  /// Adds the times of phases that the device has finished.
  void collect();

  cudaStream_t stream_;
  std::deque<Mark> marks_;  // in the order of the stream; the phase of the last mark has not ended
  std::vector<Event> unused_;
  PhaseSeconds seconds_{};
};

}  // namespace topkv::gpu
