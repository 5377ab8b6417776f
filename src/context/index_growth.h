// Indices that grow while a device prefills: the host's idle cores insert keys as they arrive.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "src/context/segment.h"
#include "topkv/context.h"
#include "topkv/progress.h"

namespace topkv {

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
  std::vector<std::shared_ptr<SegmentIndex>> indices_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool finishing_ = false;  // all rows have arrived
  bool ended_ = false;      // the thread has nothing more to do
  std::stop_source stop_;   // nobody wants the indices any more
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace topkv
