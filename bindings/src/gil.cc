#include "bindings/src/gil.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "topkv/error.h"

namespace topkv::python {
namespace {

namespace py = pybind11;

/// The longest time that the end of the interpreter waits for threads in Python, some of which may
/// wait for something that never comes.
constexpr std::chrono::seconds longest_wait(5);

/// The threads that hold the GIL, or ask for it, on behalf of C++.
class Users {
 public:
  /// Returns whether this thread may ask for the GIL. After the interpreter began to end it may if
  /// it is a user already, or is the thread that ends the interpreter.
  bool enter() {
    const std::lock_guard lock(mutex_);
    if (ended_ && depth == 0 && std::this_thread::get_id() != ended_by_) return false;
    ++depth;
    ++count_;
    return true;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --depth;
    if (--count_ == 0) none_left_.notify_all();
  }
  /// Lets no thread in any more, and waits for the users. REQUIRES: the GIL is not held.
  void end() {
    std::unique_lock lock(mutex_);
    ended_ = true;
    ended_by_ = std::this_thread::get_id();
    none_left_.wait_for(lock, longest_wait, [&] { return count_ == 0; });
  }

 private:
  static thread_local std::int64_t depth;  ///< how often this thread entered

  std::mutex mutex_;
  std::condition_variable none_left_;
  std::int64_t count_ = 0;
  bool ended_ = false;
  std::thread::id ended_by_;
};

thread_local std::int64_t Users::depth = 0;

/// Never destroyed: threads may leave while the process ends.
Users& users() {
  static auto* const all = new Users;
  return *all;
}

}  // namespace

GilReleased::~GilReleased() {
  while (!users().enter()) std::this_thread::sleep_for(std::chrono::hours(1));
  released_.reset();
  users().leave();
}

GilHeld::GilHeld() {
  if (!users().enter()) throw Stopped("stopped: the Python interpreter ends");
  held_.emplace();
}

GilHeld::~GilHeld() {
  held_.reset();
  users().leave();
}

void with_gil_to_the_end(const std::function<void()>& give_back) {
  if (!users().enter()) return;
  {
    const py::gil_scoped_acquire gil;
    give_back();
  }
  users().leave();
}

void bind_gil() {
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    const py::gil_scoped_release released;
    users().end();
  }));
}

}  // namespace topkv::python
