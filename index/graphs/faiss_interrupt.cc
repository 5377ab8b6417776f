#include "index/graphs/faiss_interrupt.h"

#include <faiss/impl/AuxIndexStructures.h>

#include <memory>
#include <mutex>
#include <utility>

namespace topkv {
namespace {

/// Of the work that this thread gave to FAISS, if it may be ended.
thread_local const std::stop_token* current = nullptr;

class Callback final : public faiss::InterruptCallback {
 public:
  explicit Callback(std::unique_ptr<faiss::InterruptCallback> before)
      : before_(std::move(before)) {}

  bool want_interrupt() override {
    return (current != nullptr && current->stop_requested()) ||
           (before_ && before_->want_interrupt());
  }

 private:
  std::unique_ptr<faiss::InterruptCallback> before_;
};

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    const std::lock_guard lock(faiss::InterruptCallback::lock);
    auto& instance = faiss::InterruptCallback::instance;
    instance = std::make_unique<Callback>(std::move(instance));
  });
}

}  // namespace

FaissInterrupt::FaissInterrupt(const std::stop_token& stop) : before_(current) {
  install();
  current = &stop;
}

FaissInterrupt::~FaissInterrupt() { current = before_; }

}  // namespace topkv
