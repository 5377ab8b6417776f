// Keys that stay where they are, in lists of a few tens that lie near each other: k-means in two
// levels. All keys are parted first, by what a sample teaches, then the keys of each part are put
// in lists. So a key is compared with the centroids of some 2 sqrt(lists) parts and, four times,
// with those of its part's lists, where k-means on one level would compare it with that of every
// list, in every round.
//
// Threads: const members are safe from many.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "index/common/row_summaries.h"
#include "src/core/format/archive.h"
#include "src/core/memory/huge_vector.h"
#include "topkv/view.h"

namespace topkv {

class ClusteredKeys {
 public:
  /// Puts all keys, at least one, in lists of about so many.
  /// residuals: becomes the squared distance of each from its list's centroid.
  /// check: is called now and then, from many threads, and may throw. done: likewise, when so many
  /// more keys are in lists.
  void learn(const KeyView& keys, std::int64_t keys_per_list, std::vector<float>& residuals,
             const std::function<void()>& check, const std::function<void(std::int64_t)>& done);

  /// Puts the keys from `first` on in lists that there are, with their residuals.
  void add(const KeyView& keys, std::int64_t first, std::vector<float>& residuals,
           const std::function<void()>& check, const std::function<void(std::int64_t)>& done);

  std::int64_t count() const { return std::ssize(half_squares_); }
  /// One of each list, float32.
  KeyView centroids() const;
  /// The keys of a list, ascending.
  std::span<const std::int64_t> of(std::int64_t list) const { return members_.rows_of(list); }

  std::int64_t memory() const;

  /// For a file, of these keys.
  void fields(const KeyView& keys, Archive& archive);

 private:
  void keep_used_parts(std::span<std::int32_t> part);
  std::int64_t cut_large_parts(std::span<std::int32_t> part);

  struct Parts {
    std::vector<float> centroids;     // [parts, dim]
    std::vector<float> half_squares;  // [parts]
    std::vector<std::int32_t> first;  // [parts + 1]: its lists
  };

  std::int64_t dim_ = 0;
  Parts parts_;
  HugeVector<float> centroids_;      // [lists, dim]
  std::vector<float> half_squares_;  // [lists] half their squared norms
  std::vector<std::int32_t> list_;   // per key
  GroupedRows members_;              // of the lists
};

}  // namespace topkv
