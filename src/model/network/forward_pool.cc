#include "src/model/network/forward_pool.h"

#include <utility>

namespace topkv {

ForwardPool::ForwardPool(const ModelConfig& config, const Weights& weights,
                         std::shared_ptr<ComputeDevice> device, std::int64_t chunk)
    : config_(config), weights_(weights), device_(std::move(device)), chunk_(chunk) {}

std::unique_ptr<Forward> ForwardPool::borrow() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Forward> forward = std::move(idle_.back());
      idle_.pop_back();
      return forward;
    }
  }
  auto made = std::make_unique<Forward>(config_, weights_, device_, chunk_);
  const std::lock_guard lock(mutex_);
  idle_.reserve(made_ + 1);  // giving it back must not fail
  ++made_;
  return made;
}

void ForwardPool::keep(std::unique_ptr<Forward> forward) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(forward));
}

}  // namespace topkv
