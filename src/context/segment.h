// A segment: consecutive tokens of a sequence, with what each layer keeps of them (rows of all KV
// heads, or a recurrent state), and indices over the rows.
//
// A context has a frozen segment, which its sessions share. Each session has another segment of its
// own, which grows. Positions in a segment's rows and indices count from its first token, whose
// position in the sequence is `first`.
//
// Threads: const members are safe from many threads while one thread appends rows (row_store.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "index/common/head_index.h"
#include "index/common/row_tail.h"
#include "src/context/prefill_query_sample.h"
#include "src/device/compute_device.h"
#include "src/store/layer_states.h"
#include "src/store/token_index.h"
#include "topkv/key_index.h"

namespace topkv {

/// RetrievalOptions::tail of a session without a tail.
inline constexpr std::string_view no_tail = "none";

/// An index in one layer: [kv_heads]. It is empty unless AttentionShape::has_index(layer).
struct LayerIndex {
  std::vector<std::shared_ptr<HeadIndex>> heads;
  std::vector<std::unique_ptr<RowTail>> tails;  ///< null if the index has no tail
};

/// An index over the rows of a segment, in all layers. The rows outlive it.
struct SegmentIndex {
  /// Makes an index without keys.
  SegmentIndex(const IndexSpec& spec, const AttentionShape& shape);

  /// Returns the index that a layer's queries search. For a layer that attends the rows of another
  /// layer, it is the index of that layer.
  const LayerIndex& layer(std::int64_t layer) const {
    const auto own = static_cast<std::size_t>(layer);
    return layers[row_layer.empty() ? own : static_cast<std::size_t>(row_layer[own])];
  }
  /// Returns the number of keys inserted so far, over all heads. Safe from any thread.
  std::int64_t inserted() const;
  /// Returns the number of keys, over all heads, of an index over `tokens` tokens.
  std::int64_t keys(std::int64_t tokens) const;
  /// Returns the bytes of the tails, and of the indices too if `heads` is true.
  std::int64_t memory(bool heads) const;

  IndexSpec spec;
  std::vector<LayerIndex> layers;       ///< what each layer has of its own
  std::vector<std::int64_t> row_layer;  ///< AttentionShape::row_layer
  bool shared = false;  ///< the heads belong to another SegmentIndex, too, which counts their bytes

  // The copy of the last device that asked for one (index_on_device.h).
  mutable std::mutex mutex;
  mutable std::shared_ptr<ComputeDevice> device;
  mutable std::shared_ptr<const DeviceIndex> on_device;
};

/// What the layers keep, and the indices over their rows. A value: copies share all of it. Whoever
/// appends tokens keeps a pointer to the states.
struct Segment {
  std::int64_t first = 0;  ///< position of its first token in the sequence
  std::shared_ptr<const LayerStates> states;
  std::vector<std::shared_ptr<const SegmentIndex>> indices = {};
  std::shared_ptr<const PrefillQuerySample> queries =
      {};                                              ///< queries of its prefill; null: unknown
  std::shared_ptr<const TokenIndex> token_index = {};  ///< of its tokens; null: unknown
  /// For rows that Session::own_rows copied: the tokens of the session's context. -1: other rows,
  /// or unknown.
  std::int64_t tokens_before = -1;
  /// The most tokens of the states that count.
  std::int64_t most_tokens = std::numeric_limits<std::int64_t>::max();

  std::int64_t tokens(std::int64_t layer) const {
    return std::min(states->tokens(layer), most_tokens);
  }
  RowsView rows(std::int64_t layer, std::int64_t kv_head) const {
    return states->rows().rows(layer, kv_head).part({0, tokens(layer)});
  }
  /// Returns the rows of all layers, which keep the states alive.
  std::shared_ptr<const RowStore> row_store() const { return {states, &states->rows()}; }
  /// Returns the specs of its indices.
  std::vector<std::string> specs() const;
  /// Returns the index with a spec that has all defaults spelled out. Null: there is no such index.
  const SegmentIndex* find(std::string_view normal) const;
  /// Returns the index with a spec in any spelling. Throws InvalidArgument when there is no such
  /// index.
  const SegmentIndex& index(std::string_view spec) const;
  /// Finds up to k of the best rows for each query. index: one of the segment's indices; null:
  /// exact search of the rows where they lie. given: entries that a device chose in place of the
  /// index; null: the index chooses. Throws as KeyIndex::search does.
  void search(const SegmentIndex* index, std::int64_t layer, std::int64_t kv_head,
              const QueryBlock& queries, std::int64_t k, const CandidateEntries* given,
              SearchResult& result) const;
};

}  // namespace topkv
