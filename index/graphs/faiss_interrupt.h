// Ends FAISS's long calls: FAISS asks a callback, one for the whole process, whether to go on.
#pragma once

#include <stop_token>

namespace topkv {

/// While one lives, FAISS's work on this thread ends with an exception soon after a stop was
/// requested. FAISS on other threads, the application's own among them, is not touched; a callback
/// that the application has set is asked too.
class FaissInterrupt {
 public:
  explicit FaissInterrupt(const std::stop_token& stop);
  ~FaissInterrupt();
  FaissInterrupt(const FaissInterrupt&) = delete;  // belongs to one scope

 private:
  const std::stop_token* before_;
};

}  // namespace topkv
