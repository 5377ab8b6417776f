// Indices that grow while a device prefills: the host's idle cores insert keys as they arrive.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "index/row_tail.h"
#include "src/store/row_store.h"
#include "topkv/context.h"
#include "topkv/key_index.h"
#include "topkv/progress.h"

namespace topkv {

/// An index over a whole context: one per (layer, KV head), null where a layer has a sliding
/// window.
struct GrownIndex {
  IndexSpec spec;
  std::vector<std::shared_ptr<KeyIndex>> heads;  // [layers, kv_heads]
  std::vector<std::unique_ptr<RowTail>> tails;   // likewise; null where the index has none
  bool shared = false;                           // the heads are another's too, which counts them

  /// Keys inserted so far, over all heads. Safe from any thread.
  std::int64_t inserted() const;
  std::int64_t memory() const;
  /// Beyond what the heads hold.
  std::int64_t tail_memory() const;
  /// Keys that there are when each head has those of so many tokens.
  std::int64_t keys(std::int64_t tokens) const;
};

/// Empty indices of this spec for a context of this shape.
GrownIndex make_indices(const IndexSpec& spec, const AttentionShape& shape);

/// Runs build, which inserts the keys of so many tokens into `indices`, beside this thread, which
/// reports. An exception of progress stops it and is rethrown.
void build_watched(const std::function<void(const std::stop_token&)>& build,
                   const GrownIndex& indices, std::int64_t tokens, const ProgressFn& progress);

/// Owns a thread from its construction to freeze (or destruction), if any spec can grow. The
/// builder outlives it, and meanwhile has room for all its tokens and keeps those it has.
class IndexGrowth {
 public:
  /// Specs whose index cannot grow are left out. Throws InvalidArgument on a spec not understood.
  IndexGrowth(const std::vector<std::string>& specs, ContextBuilder& builder);
  ~IndexGrowth();
  IndexGrowth(const IndexGrowth&) = delete;  // owns a thread
  IndexGrowth& operator=(const IndexGrowth&) = delete;

  /// builder.freeze() with the indices: inserts what is left, and reports how far that is. Rethrows
  /// what went wrong, and what progress throws, which ends the work.
  std::shared_ptr<const Context> freeze(const ProgressFn& progress);

 private:
  void run();
  void insert_all();
  /// Inserts keys that have arrived, of heads with at least so many new ones; false: there are
  /// none.
  bool insert(std::int64_t at_least);
  void wait_for_rest(const ProgressFn& progress);

  ContextBuilder& builder_;
  const std::shared_ptr<const RowStore> store_;
  const AttentionShape& shape_;
  std::vector<GrownIndex> indices_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool finishing_ = false;  // all rows have arrived
  bool ended_ = false;      // the thread has nothing more to do
  std::stop_source stop_;   // nobody wants the indices any more
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace topkv
