// Key summaries: the data that an index scores in place of keys. An index that can leave the choice
// to a device keeps them. The device chooses *entries* by them (pages of keys, keys, clusters of
// keys), and the index turns entries into rows (RuleBasedIndex::search).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "topkv/types.h"

namespace topkv {

enum class KeySummaryKind : std::uint8_t {
  none,        ///< the index alone can choose
  bounds,      ///< of pages (quest_index.h); each query head chooses for itself
  components,  ///< of keys (sparq_index.h); the heads of a group choose together
  centroids,   ///< of clusters (cluster_index.h); each query head chooses for itself
};

/// The key summaries of one KV head. They point to data of the index, and are valid until a key is
/// added.
struct KeySummaries {
  KeySummaryKind kind = KeySummaryKind::none;
  std::int64_t count = 0;  ///< entries
  std::int64_t dim = 0;    ///< of keys
  std::int64_t page = 1;   ///< keys of an entry, where these are consecutive
  std::int64_t read = 0;   ///< components that scores are made of
  std::int64_t block = 0;  ///< keys whose components lie together
  bool weighed = false;    ///< importances (squeezed_index.h) decide as well, made of `sizes`, by
                           ///< scores in float32
  /// bounds: bf16 [count, 2, dim], of each channel the largest value, then of each the smallest.
  /// components: bf16 [blocks, dim, block]. centroids: float32 [count, dim]. Null: planned for.
  const std::byte* data = nullptr;
  std::vector<float> sizes = {};         ///< where `weighed`: keys of each entry
  std::vector<std::int32_t> spans = {};  ///< centroids: the first and the last key of each
};

/// A choice of so many entries among these.
struct EntryChoice {
  PositionRange among;
  std::int64_t count = 0;
};

/// What is chosen to have k rows of an allowed range. Of pages more than hold k: those at the ends
/// of the range may be short. Of clusters those come first whose first and last keys are not both
/// on one side of the range; nearly all of these hold a row of it at least, unless it is narrow and
/// lies among keys: then some times as many are chosen. And always a few more, for by a centroid
/// that a device has rounded the best may come behind others that score alike.
inline EntryChoice entry_choice(const KeySummaries& of, PositionRange allowed, std::int64_t k) {
  constexpr std::int64_t more_clusters = 16;
  constexpr std::int64_t most_times = 4;
  // Above what there is: k may be any number.
  k = std::min(k, std::max(of.count, allowed.size()));
  EntryChoice choice{{0, of.count}, 0};
  if (of.kind == KeySummaryKind::centroids) {
    // So that there are two rows to each of as many.
    const std::int64_t times = 2 * of.count / std::max<std::int64_t>(1, allowed.size()) + 1;
    choice.count = k * std::min(times, most_times) + more_clusters;
  } else {
    choice.among = {allowed.begin / of.page, (allowed.end + of.page - 1) / of.page};
    choice.count = of.kind == KeySummaryKind::bounds ? k / of.page + 3 : k;
  }
  choice.count = std::min(choice.count, choice.among.size());
  return choice;
}

/// The entries that a device chose for the heads of a token: its candidates.
struct CandidateEntries {
  /// [heads, each], or [1, each] where heads choose together: numbers from `first` on, each once.
  /// Those that the index does not have stand for none.
  std::span<const std::int32_t> entries;
  std::int64_t each = 0;
  std::int64_t first = 0;
  /// Where importances decide, [heads]: ln Σ_j N_j exp(score_j) over all entries, scores scaled as
  /// in attention.
  std::span<const float> log_sums = {};

  std::span<const std::int32_t> of(std::int64_t head) const {
    const auto size = static_cast<std::size_t>(each);
    return entries.subspan(entries.size() == size ? 0 : static_cast<std::size_t>(head) * size,
                           size);
  }
  /// Number i of so many parts, each of as many heads.
  CandidateEntries part(std::int64_t i, std::int64_t parts) const {
    const auto some = [&](auto all) {
      const std::size_t size = all.size() / static_cast<std::size_t>(parts);
      return all.subspan(static_cast<std::size_t>(i) * size, size);
    };
    return {some(entries), each, first, some(log_sums)};
  }
};

}  // namespace topkv
