// Keys that an approximate structure stands for worst: an index keeps a list of them, and every
// search scores those of the list exactly beside what the structure proposes.
//
// Rare keys (a needle's, in a text that repeats itself) lie where an index learned nothing: outside
// the axes of codes, far from every centroid, at the end of links that nearer neighbours take from
// them. Without the list searches find nearly all they should on average, and lose just what was
// asked for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "index/common/in_place_keys.h"
#include "src/core/format/archive.h"
#include "src/core/threads/threads.h"
#include "topkv/types.h"

namespace topkv {

class RareKeys {
 public:
  /// Of so many keys one is on the list.
  explicit RareKeys(std::int64_t keys_per_rare) : keys_per_rare_(keys_per_rare) {}

  /// Replaces the list by those of keys 0, 1, … whose residuals are largest, and notes how large
  /// that is. residuals: how badly each is stood for; not NaN.
  void learn(std::span<const float> residuals);

  /// Those of keys first, first + 1, …, all behind the ones that are known, with residuals as
  /// large.
  void add(std::int64_t first, std::span<const float> residuals);

  void clear() { *this = RareKeys(keys_per_rare_); }

  /// Ascending.
  std::span<const std::int64_t> positions() const { return positions_; }
  std::span<const std::int64_t> positions(PositionRange range) const;

  /// For a file, of so many keys.
  void fields(std::int64_t keys, Archive& archive);

  std::int64_t memory() const {
    return static_cast<std::int64_t>(positions_.capacity() * sizeof(positions_[0]));
  }

 private:
  std::int64_t keys_per_rare_;
  std::vector<std::int64_t> positions_;
  float above_ = 0;  // residual
};

/// The residuals of keys in a graph: the squared distance of each from the nearest that it is
/// linked to. Few links lead to a key that is nobody's near neighbour.
class LinkResiduals {
 public:
  /// Of keys first and on; or of all, where so many came that old ones have other neighbours. Nodes
  /// are numbered from 0 as keys are, in an order of their own. key_of(node); links_of(node, visit)
  /// calls visit(key) for each that it is linked to. Both from many threads.
  template <class KeyOf, class LinksOf>
  void find(const KeyView& keys, std::int64_t first, const KeyOf& key_of, const LinksOf& links_of,
            std::vector<float>& residuals) {
    if (keys.count > judged_ + judged_ / 4) {
      judged_ = keys.count;
      first = 0;
    }
    residuals.resize(static_cast<std::size_t>(keys.count - first));
    parallel_for(keys.count, 1024, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t node = begin; node < end; ++node) {
        const std::int64_t key = key_of(node);
        if (key < first) continue;
        float nearest = std::numeric_limits<float>::max();
        links_of(node, [&](std::int64_t linked) {
          nearest = std::min(nearest, squared_distance(keys, key, linked));
        });
        residuals[static_cast<std::size_t>(key - first)] = nearest;
      }
    });
  }

  void clear() { judged_ = 0; }

  /// For a file, of so many keys.
  void fields(std::int64_t keys, Archive& archive) {
    archive.value(judged_);
    archive.check(judged_ >= 0 && judged_ <= keys, "it judged more keys than there are");
  }

 private:
  std::int64_t judged_ = 0;  // keys when the residuals of all were found
};

}  // namespace topkv
