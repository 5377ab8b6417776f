// What a session attends in each layer, and what a device finds for it.
#pragma once

#include <cstdint>
#include <memory>

#include "src/attention/block_attention.h"
#include "src/device/device_index.h"
#include "src/device/row_copy.h"
#include "src/store/row_store.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

/// The most tokens of one step. A longer step is cut into parts of this size.
inline constexpr std::int64_t most_step_tokens = 256;

/// The parts of a session that a device needs to know: what it attends in each layer, and what the
/// device finds for it.
struct SessionShape {
  AttentionShape attention;
  KvDType rows = {};  ///< how rows are stored
  /// Rows of the context, of which a device keeps window and sinks for all sessions over it. Null:
  /// a plan, which only knows the number of tokens.
  std::shared_ptr<const RowStore> context = {};
  std::int64_t context_tokens = 0;
  std::int64_t window = 1024;
  std::int64_t sinks = 4;
  std::int64_t dense_layers = 0;
  std::int64_t max_tokens = most_step_tokens;  ///< the most tokens of one step
  /// The device's copy of the context's index, by which the device scans or chooses entries. Null:
  /// the device does neither.
  std::shared_ptr<const DeviceIndex> index = {};
  /// Rows of the context in the device's memory, which it attends in steps that go ahead. Null:
  /// none.
  std::shared_ptr<const RowCopy> row_copy = {};
  std::int64_t most_rows = 0;     ///< the most rows that any scan is asked for, for each query head
  std::int64_t usual_rows = 0;    ///< the rows that a first scan is asked for, for each query head
  std::int64_t most_entries = 0;  ///< the most entries that are chosen for a head
  std::int64_t most_own = 0;      ///< the session's capacity for tokens of its own
  bool tail = false;              ///< the session has a tail: an estimate is added to each step
  /// The session has a rule for how many rows are enough (RetrievalOptions::mass, error). The
  /// caller then reads the partials of the window and of scans, to judge each round.
  bool has_row_rules = false;

  /// Returns whether the device scans codes.
  bool scans() const { return index && index->has_codes(); }
  /// Returns whether the device chooses entries by key summaries.
  bool chooses() const { return index && !index->has_codes(); }
  /// Returns whether a layer searches for rows beyond the rows that are attended in any case.
  bool retrieves(std::int64_t layer) const {
    return attention.attends_all(layer) && layer >= dense_layers;
  }
  /// Returns what a token of a layer attends in any case: a sliding window, all rows (dense
  /// layers), or sinks and window. REQUIRES: the layer is attention.
  CausalWindow always_attended(std::int64_t layer) const {
    if (attention.window_of(layer) > 0) return {attention.window_of(layer), 0};
    return retrieves(layer) ? CausalWindow{window, sinks} : CausalWindow{};
  }
};

}  // namespace topkv
