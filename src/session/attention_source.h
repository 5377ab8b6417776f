// The parts of a decode step's attention. Attention over a union of disjoint sets of rows is the
// merge of the partials over each set (topkv/attention.h), so a step is a list of sources, each
// with a set of its own.
#pragma once

#include <span>

#include "src/session/step.h"

namespace topkv {

/// One set of rows of a session, and the way in which its steps attend them.
///
/// Threads: one thread at a time. After a step that throws, the next start begins anew.
class AttentionSource {
 public:
  virtual ~AttentionSource() = default;

  /// Begins the work that needs no queries on the host, while q, k and v are on their way. The
  /// caller holds the device's lock. steps: steps of several sessions over one context, each of
  /// which has a source like this one; a source may begin for all of them together. It is called
  /// for each session's source, with the same steps.
  virtual void start(std::span<Step> /*steps*/) {}

  /// Returns the number of the step's tokens that are worked on at a time, because of memory.
  virtual std::int64_t tokens_at_once(const Step& step) const { return step.queries.tokens; }

  /// Merges the attention over these rows into the step's partial, for all tokens of the step. Its
  /// queries are on the host, and the rows of its tokens have joined the session's own. The partial
  /// of a WindowSource stays on the device; a step that goes ahead calls it earlier.
  virtual void contribute(Step& step) = 0;
};

}  // namespace topkv
