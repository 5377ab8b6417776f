// Draws without replacement, the same on every machine for the same seed.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "src/eval/tasks/word_lists.h"

namespace topkv {

/// `count` different numbers below `range`, in random order (Floyd's algorithm, then shuffled): its
/// memory grows with count alone. REQUIRES: 0 <= count <= range.
std::vector<std::int64_t> draw(Random& random, std::int64_t range, std::int64_t count);

template <class T>
void shuffle(Random& random, std::vector<T>& items) {  // Fisher-Yates
  for (std::size_t i = items.size(); i > 1; --i) {
    const auto other = static_cast<std::size_t>(random.between(0, static_cast<int64_t>(i) - 1));
    std::swap(items[i - 1], items[other]);
  }
}

/// `count` different words, in random order: of wonder_words() while there are so many, else
/// "adjective-noun". A longer list of either kind begins with the words of a shorter one, so that
/// it takes more tokens. Throws InvalidArgument for more than there are.
std::vector<std::string> draw_words(Random& random, std::int64_t count);

}  // namespace topkv
