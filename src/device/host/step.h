// The current step of one session on the host.
#pragma once

#include "src/attention/block_attention.h"
#include "src/device/session_shape.h"
#include "topkv/attention.h"

namespace topkv {

/// What the parts of a session's host backend share.
struct HostStep {
  explicit HostStep(const SessionShape& session) : shape(session) {}

  const SessionShape shape;
  TokenQueries queries;  ///< of this step
  /// The merged partials so far, [tokens x q_heads]. They are not in AttentionStep::out, which may
  /// be q, and q is read to the end.
  Partial out;
};

}  // namespace topkv
