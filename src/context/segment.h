// Consecutive tokens of a sequence: their rows of all layers and KV heads, and indices over them.
//
// A context has a frozen segment, which its sessions share; each of these has one of its own, which
// grows. Positions within a segment's rows and indices are its own: 0 is the token at `first`.
// Threads: const members are safe from many, while one may append rows (row_store.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "index/row_tail.h"
#include "src/context/kept_queries.h"
#include "src/device/compute_device.h"
#include "src/store/row_store.h"
#include "topkv/key_index.h"

namespace topkv {

/// An index in one layer, per KV head; of none where the layer has a sliding window.
struct LayerIndex {
  std::vector<std::shared_ptr<KeyIndex>> heads;
  std::vector<std::unique_ptr<RowTail>> tails;  ///< null where the index has none
};

/// An index over the rows of a segment, which outlive it.
struct SegmentIndex {
  /// Of no keys yet.
  SegmentIndex(const IndexSpec& spec, const AttentionShape& shape);

  const LayerIndex& layer(std::int64_t layer) const {
    return layers[static_cast<std::size_t>(layer)];
  }
  /// Keys inserted so far, over all heads. Safe from any thread.
  std::int64_t inserted() const;
  /// Keys that there are when each head has those of so many tokens.
  std::int64_t keys(std::int64_t tokens) const;
  /// Bytes of the tails and, if wanted, of the heads.
  std::int64_t memory(bool heads) const;

  IndexSpec spec;
  std::vector<LayerIndex> layers;
  bool shared = false;  ///< the heads are another's too, which counts them

  // What the last device that asked has of it (codes_on_device.h, selection_on_device.h).
  mutable std::mutex mutex;
  mutable std::shared_ptr<ComputeDevice> device;
  mutable std::shared_ptr<const DeviceCodes> codes;
  mutable std::shared_ptr<const DeviceSelection> selection;
};

/// A value: copies share rows and indices. Whoever fills the rows keeps a pointer to do so.
struct Segment {
  std::int64_t first = 0;  ///< position of its first token
  std::shared_ptr<const RowStore> store;
  std::vector<std::shared_ptr<const SegmentIndex>> indices = {};
  std::shared_ptr<const KeptQueries> queries = {};  ///< of its prefill; null: none are known
  /// Of a session's own rows that were taken out of it: the tokens of its context. -1: of others,
  /// or not known.
  std::int64_t tokens_before = -1;
  std::int64_t most_tokens = std::numeric_limits<std::int64_t>::max();  ///< of the store's

  std::int64_t tokens(std::int64_t layer) const {
    return std::min(store->size(layer), most_tokens);
  }
  RowsView rows(std::int64_t layer, std::int64_t kv_head) const {
    return store->rows(layer, kv_head).part({0, tokens(layer)});
  }
  /// Of its indices.
  std::vector<std::string> specs() const;
  /// The index with this spec, in normal form; null: none.
  const SegmentIndex* find(std::string_view normal) const;
  /// However it is spelled. Throws InvalidArgument when there is none.
  const SegmentIndex& index(std::string_view spec) const;
  /// Finds up to k of the best rows for each query: with one of its indices or, null, where they
  /// lie, exactly. given: entries that a device chose in the index's place; null: none. Throws as
  /// KeyIndex::search does.
  void search(const SegmentIndex* index, std::int64_t layer, std::int64_t kv_head,
              const QueryBlock& queries, std::int64_t k, const GivenEntries* given,
              SearchResult& result) const;
};

}  // namespace topkv
