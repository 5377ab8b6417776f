// Indices that grow while a device prefills: the host's idle cores insert keys as they arrive.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/device/device_attention.h"
#include "src/store/row_store.h"
#include "topkv/key_index.h"

namespace topkv {

/// An index over a whole context: one per (layer, KV head), null where a layer has a sliding
/// window.
struct GrownIndex {
  std::string spec;
  std::vector<std::unique_ptr<KeyIndex>> heads;  // [layers, kv_heads]
};

/// Empty indices of this spec for a context of this shape. Throws InvalidArgument on a spec that is
/// not understood.
GrownIndex make_indices(const std::string& spec, const AttentionShape& shape);

/// Owns a thread from its construction to finish (or destruction), if any spec can grow. Store and
/// prefill outlive it.
class IndexGrowth {
 public:
  /// Specs whose index cannot grow are left out. Throws InvalidArgument on a spec not understood.
  IndexGrowth(const std::vector<std::string>& specs, const RowStore& store,
              const AttentionShape& shape, const DevicePrefill& prefill);
  ~IndexGrowth();
  IndexGrowth(const IndexGrowth&) = delete;  // owns a thread
  IndexGrowth& operator=(const IndexGrowth&) = delete;

  /// All rows have arrived: inserts what is left, and gives the indices. Rethrows what went wrong.
  std::vector<GrownIndex> finish();

 private:
  void run();
  /// Inserts keys that have arrived, of heads with at least so many new ones; false: there are
  /// none.
  bool insert(std::int64_t at_least);
  void stop();

  const RowStore& store_;
  const AttentionShape& shape_;
  const DevicePrefill& prefill_;
  std::vector<GrownIndex> indices_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool finishing_ = false;
  bool abandoned_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace topkv
