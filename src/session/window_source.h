// The rows that a step attends in any case.
#pragma once

#include <vector>

#include "src/session/attention_source.h"

namespace topkv {

/// Sinks and window, or every row of a dense layer, or a sliding window: on the compute device,
/// exactly (SessionShape::always_attended).
class WindowSource final : public AttentionSource {
 public:
  explicit WindowSource(SessionCore& session) : session_(session) {}

  /// The caller holds the device's lock. The device keeps this partial until the step's end.
  void contribute(Step& step) override;

 private:
  SessionCore& session_;
  std::vector<RowSpan> spans_;  // per KV head
};

}  // namespace topkv
