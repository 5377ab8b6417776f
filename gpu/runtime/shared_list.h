// Objects that their users share. A new user finds an existing object.
#pragma once

#include <memory>
#include <vector>

namespace topkv::gpu {

/// Holds weak pointers: an object lives as long as its users. Threads: one at a time; users may
/// drop their pointers meanwhile.
template <class T>
class SharedList {
 public:
  /// Returns an existing object for which suits(object) is true, or else make(). make returns a
  /// shared_ptr, and may throw.
  template <class Suits, class Make>
  std::shared_ptr<T> get(const Suits& suits, const Make& make) {
    std::erase_if(all_, [](const std::weak_ptr<T>& one) { return one.expired(); });
    for (const std::weak_ptr<T>& one : all_) {
      if (std::shared_ptr<T> there = one.lock(); there && suits(*there)) return there;
    }
    std::shared_ptr<T> made = make();
    all_.push_back(made);
    return made;
  }

 private:
  std::vector<std::weak_ptr<T>> all_;
};

}  // namespace topkv::gpu
