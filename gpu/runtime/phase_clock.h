// Where the time of a forward pass goes on the device: events between the phases, read when they
// are done.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "gpu/runtime/handles.h"
#include "src/device/phase_clock.h"

namespace topkv::gpu {

class CudaPhaseClock final : public PhaseClock {
 public:
  /// Times what is given to the stream, which outlives this.
  explicit CudaPhaseClock(cudaStream_t stream) : stream_(stream) {}

  void begin(Phase phase) override;
  void end() override;
  PhaseSeconds seconds() override;

 private:
  /// From here on it is this phase; none: not counted.
  struct Mark {
    Event event;
    std::optional<Phase> phase;
  };

  void mark(std::optional<Phase> phase);
  /// Adds up the phases whose ends the device has reached.
  void collect();

  cudaStream_t stream_;
  std::deque<Mark> marks_;  // in the order of the stream; the last one's phase has not ended
  std::vector<Event> unused_;
  PhaseSeconds seconds_{};
};

}  // namespace topkv::gpu
