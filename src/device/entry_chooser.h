// A choice of candidates by a device, from an index's key summaries.
#pragma once

#include <cstdint>

#include "index/common/key_summaries.h"
#include "topkv/types.h"

namespace topkv {

/// Chooses entries of an index (pages, clusters, rows) for one session, by the key summaries of
/// SessionShape::index.
///
/// Threads: one thread at a time. The caller holds the device's lock in choose.
class EntryChooser {
 public:
  virtual ~EntryChooser() = default;

  /// In a step of one token that has begun: begins to choose entries for the heads of all KV heads.
  /// The entries are to hold k rows of the context within `allowed`, which is not empty
  /// (entry_choice).
  virtual void choose(std::int64_t layer, PositionRange allowed, std::int64_t k) = 0;
  /// Waits for the choice, and returns it: [kv_heads] parts. Valid until the step is finished.
  virtual CandidateEntries chosen() = 0;
};

}  // namespace topkv
