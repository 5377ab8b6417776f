#include "gpu/session/chooser.h"

#include "gpu/entries/cuda_summaries.h"
#include "gpu/runtime/faults.h"
#include "src/core/io/faults.h"

namespace topkv::gpu {

/// Resident rows are attended beside it.
void CudaChooser::choose(std::int64_t layer, PositionRange allowed, std::int64_t k) {
  reach_fault("session.choose");
  const StepLayout& layout = step_.layout();
  step_.workspace->begun.record(step_.compute);
  window_.begin_beside();
  inject_choice_delay(step_.compute);
  const auto& summaries = static_cast<const CudaSummaries&>(*step_.shape.index);
  chosen_ = summaries.choose(
      layer, step_.given.q, allowed, k,
      {step_.host<int>(layout.host_entries), step_.host<float>(layout.host_log_sums)},
      step_.compute);
  step_.workspace->choice_made.record(step_.compute);
}

CandidateEntries CudaChooser::chosen() {
  reach_fault("session.chosen");
  if (!Faults::drop_choice_waits.load(std::memory_order_relaxed))
    step_.workspace->choice_made.synchronize();
  return chosen_;
}

}  // namespace topkv::gpu
