// Forward passes of one network that are lent and given back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "src/model/network/forward.h"

namespace topkv {

/// Makes forward passes, and keeps those that are given back for the next one who asks. Many
/// threads.
class ForwardPool {
 public:
  /// chunk: the most tokens of a run. All outlive the pool.
  ForwardPool(const ModelConfig& config, const Weights& weights,
              std::shared_ptr<ComputeDevice> device, std::int64_t chunk);

  /// Returns a pass that was given back, or a new one. Throws OutOfMemory.
  std::unique_ptr<Forward> borrow();
  /// Takes a pass back. Does not throw.
  void keep(std::unique_ptr<Forward> forward);

 private:
  const ModelConfig& config_;
  const Weights& weights_;
  std::shared_ptr<ComputeDevice> device_;
  std::int64_t chunk_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Forward>> idle_;
  std::size_t made_ = 0;  // idle ones and those that are lent
};

/// A forward pass of a pool, given back at the end.
class ForwardLease {
 public:
  explicit ForwardLease(ForwardPool& pool) : pool_(pool), forward_(pool.borrow()) {}
  ~ForwardLease() { pool_.keep(std::move(forward_)); }
  ForwardLease(const ForwardLease&) = delete;  // gives back once
  ForwardLease& operator=(const ForwardLease&) = delete;
  Forward& operator*() const { return *forward_; }

 private:
  ForwardPool& pool_;
  std::unique_ptr<Forward> forward_;
};

}  // namespace topkv
