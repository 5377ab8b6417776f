// Working memory that a search borrows from its thread and gives back, so that searching does not
// allocate once warm.
//
// It is a stack and not one object per thread: a thread that waits inside a parallel loop may be
// given another search to run, whose working memory must be another. As many objects are kept as
// searches were ever nested on the thread.
#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace topkv {

template <class T>
class Scratch {
 public:
  Scratch() {
    if (!idle().empty()) {
      object_ = std::move(idle().back());
      idle().pop_back();
    } else {
      object_ = std::make_unique<T>();
    }
  }
  ~Scratch() { idle().push_back(std::move(object_)); }
  Scratch(const Scratch&) = delete;  // belongs to one scope
  Scratch& operator=(const Scratch&) = delete;

  T& operator*() const { return *object_; }
  T* operator->() const { return object_.get(); }

 private:
  static std::vector<std::unique_ptr<T>>& idle() {
    thread_local std::vector<std::unique_ptr<T>> objects;
    return objects;
  }

  std::unique_ptr<T> object_;
};

}  // namespace topkv
