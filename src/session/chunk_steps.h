// Steps by chunks: dual chunk attention (src/attention/chunk_passes.h), whose queries each meet a
// range of the positions.
#pragma once

#include "src/device/compute_device.h"
#include "src/session/step.h"

namespace topkv {

/// The passes of a session's steps by chunks.
class ChunkSteps {
 public:
  explicit ChunkSteps(SessionCore& session) : session_(session) {}

  /// Makes a step of at most SessionShape::max_tokens tokens, some tokens of one chunk at a time.
  /// Each pass is a step of its own over its range. Passes over earlier chunks only read, before
  /// the step's rows join the session's own. The device merges the partials of all passes.
  void run(const Step& step);

 private:
  void run_passes(Step step, const ChunkPasses& passes);

  SessionCore& session_;
  Buffer joined_;  // partials of passes, in the device's memory
};

}  // namespace topkv
