// Whether other threads get a device's lock while a long call goes on (gpu/long_work.h).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "src/core/io/faults.h"
#include "src/device/compute_device.h"

namespace test {

/// One at a time. Seeks it at the first places that a call comes to.
class LockSeeker {
 public:
  explicit LockSeeker(topkv::ComputeDevice& device) {
    pieces = waits = refused = 0;
    device_ = &device;
    topkv::fault_hook = [](const char* place) {
      const std::string_view at = place;
      if (at == "long_work.piece") {
        ++pieces;
      } else if (at == "long_work.wait") {
        ++waits;
      } else {
        return;
      }
      if (seekers_.size() < 20) seek();
    };
  }
  ~LockSeeker() {
    topkv::fault_hook = nullptr;
    for (std::thread& thread : seekers_) thread.join();
    seekers_.clear();
  }
  LockSeeker(const LockSeeker&) = delete;  // belongs to one scope
  LockSeeker& operator=(const LockSeeker&) = delete;

  static inline std::atomic<std::int64_t> pieces{0}, waits{0};
  static inline std::atomic<std::int64_t> refused{0};  // times that another did not get it

 private:
  static void seek() {
    auto taken = std::make_shared<std::promise<void>>();
    std::future<void> is_taken = taken->get_future();
    seekers_.emplace_back([taken] {
      const auto lock = device_->lock();
      taken->set_value();
    });
    refused += is_taken.wait_for(std::chrono::seconds(10)) != std::future_status::ready;
  }

  static inline topkv::ComputeDevice* device_ = nullptr;
  static inline std::vector<std::thread> seekers_;
};

}  // namespace test
