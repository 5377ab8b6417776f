// Things that their users own together, so that who comes next finds what is there.
#pragma once

#include <memory>
#include <vector>

namespace topkv::gpu {

/// Does not own them: each goes with its last user. Threads: one at a time, while users may go.
template <class T>
class SharedList {
 public:
  /// One that suits(it), or else make(), a shared_ptr, which may throw.
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
