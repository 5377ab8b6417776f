// The keys that an index reads where they lie: the views handed to add, joined to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "topkv/key_index.h"

namespace topkv {

/// The key at a position as float32 [dim]. Throws InvalidArgument when a value is not finite.
void widen_key(const KeyView& keys, std::int64_t position, float* out);

/// The mean of all keys as widen(position, out) gives them, [keys.dim]. REQUIRES: some keys.
template <class Widen>
std::vector<float> mean_of_keys(const KeyView& keys, const Widen& widen) {
  std::vector<double> sums(static_cast<std::size_t>(keys.dim));
  std::vector<float> key(sums.size());
  for (std::int64_t i = 0; i < keys.count; ++i) {
    widen(i, key.data());
    for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += key[j];
  }
  std::vector<float> mean;
  mean.reserve(sums.size());
  for (const double sum : sums)
    mean.push_back(static_cast<float>(sum / static_cast<double>(keys.count)));
  return mean;
}

/// Of two keys; infinite beyond float32.
float squared_distance(const KeyView& keys, std::int64_t a, std::int64_t b);

/// Throws InvalidArgument where queries are not whole questions of whole groups whose heads have
/// one range; index is its name in the message.
void check_groups(std::string_view index, const QueryBlock& queries);

class InPlaceKeys {
 public:
  /// Throws InvalidArgument when the view is malformed, differs in dim, dtype or stride from the
  /// first, or does not begin where the last one ended. An empty view is ignored.
  void append(const KeyView& keys);

  const KeyView& view() const { return view_; }
  std::int64_t size() const { return view_.count; }

  /// Checks what every search must be given, finite queries among it; index is its name in the
  /// message. Throws InvalidArgument.
  void check_search(std::string_view index, bool built, const QueryBlock& queries,
                    std::int64_t k) const;

  /// The part of a range that the keys cover.
  PositionRange clamp(PositionRange range) const;

 private:
  KeyView view_{};
};

}  // namespace topkv
