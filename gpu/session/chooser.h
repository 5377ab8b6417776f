// The choice of candidates for the steps of a session on a CUDA device.
#pragma once

#include <cstdint>

#include "gpu/session/step.h"
#include "gpu/session/window.h"
#include "src/device/entry_chooser.h"

namespace topkv::gpu {

/// Chooses entries by the key summaries of SessionShape::index.
class CudaChooser final : public EntryChooser {
 public:
  CudaChooser(CudaStep& step, CudaWindow& window) : step_(step), window_(window) {}

  void choose(std::int64_t layer, PositionRange allowed, std::int64_t k) override;
  CandidateEntries chosen() override;

 private:
  CudaStep& step_;
  CudaWindow& window_;
  CandidateEntries chosen_;  // of this step, when StepWorkspace::choice_made
};

}  // namespace topkv::gpu
