// Working memory that a search borrows from its thread and gives back, so that searching does not
// allocate once warm.
//
// It is a stack and not one object per thread: a thread that waits inside a parallel loop may be
// given another search to run, whose working memory must be another. As many objects are kept as
// searches were ever nested on the thread.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace topkv {

template <class T>
class Scratch {
 public:
  Scratch() {
    Kept& kept = of_thread();
    if (!kept.idle.empty()) {
      object_ = std::move(kept.idle.back());
      kept.idle.pop_back();
    } else {
      kept.idle.reserve(kept.made + 1);  // giving back must not fail
      object_ = std::make_unique<T>();
      ++kept.made;
    }
  }
  ~Scratch() { of_thread().idle.push_back(std::move(object_)); }
  Scratch(const Scratch&) = delete;  // belongs to one scope
  Scratch& operator=(const Scratch&) = delete;

  T& operator*() const { return *object_; }
  T* operator->() const { return object_.get(); }

 private:
  struct Kept {
    std::vector<std::unique_ptr<T>> idle;
    std::size_t made = 0;  // idle ones and those that are lent
  };
  static Kept& of_thread() {
    thread_local Kept kept;
    return kept;
  }

  std::unique_ptr<T> object_;
};

}  // namespace topkv
