// Indices that grow while a device prefills: the host's idle cores insert keys as they arrive in
// host memory.
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

/// Grows indices beside a builder, on a thread of its own. The thread lives from construction to
/// freeze or destruction; without a spec that can grow there is no thread.
///
/// REQUIRES: the builder outlives it. Meanwhile the builder has room for all its tokens, and does
/// not give any back.
class IndexGrowth {
 public:
  /// Starts the thread. Specs whose index cannot grow are ignored. Throws InvalidArgument for an
  /// invalid spec.
  IndexGrowth(const std::vector<std::string>& specs, ContextBuilder& builder);
  ~IndexGrowth();
  IndexGrowth(const IndexGrowth&) = delete;  // owns a thread
  IndexGrowth& operator=(const IndexGrowth&) = delete;

  /// Freezes the builder, inserts the keys that are left, and returns the context with the indices.
  /// Reports progress meanwhile. Rethrows a failure of the thread. An exception that progress
  /// throws ends the work and is rethrown.
  std::shared_ptr<const Context> freeze(const ProgressFn& progress);

 private:
  void run();
  void insert_all();
  /// Inserts keys that have arrived, in heads with at least `at_least` new keys. Returns false if
  /// no head has them.
  bool insert(std::int64_t at_least);
  void wait_for_rest(const ProgressFn& progress);

  ContextBuilder& builder_;
  const std::shared_ptr<const LayerStates> states_;
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
