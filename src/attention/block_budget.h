// The blocks of a sparse prefill, and how much blocks of tokens choose (block_choice.h). CUDA code
// reads it as C++17.
#pragma once

#include <cstdint>

namespace topkv {

/// Positions of a block of queries. Blocks begin at multiples of it.
inline constexpr std::int64_t query_block = 128;
/// Positions of a block of keys. Blocks begin at multiples of it.
inline constexpr std::int64_t key_block = 64;
/// Tokens of a block of queries that choose for it.
inline constexpr std::int64_t sampled_tokens = 16;
/// Blocks of keys that the first look leaves, for each that may be chosen.
inline constexpr std::int64_t candidate_factor = 4;

/// Query heads of a KV head that choose together on a CUDA device, at most.
inline constexpr std::int64_t most_choosing_heads_on_cuda = 128;
/// BlockBudget::most on a CUDA device, at most.
inline constexpr std::int64_t most_chosen_keys_on_cuda = 65536;

/// How many keys a block of queries chooses, beside its window and sinks.
struct BlockBudget {
  std::int64_t most = 0;   ///< keys, a multiple of key_block; 0: nothing is chosen
  std::int64_t least = 0;  ///< keys, a multiple of key_block, at most `most`
  /// The share of attention to meet, window and sinks included. Once it is met, with `least` keys
  /// or more, no more keys are chosen. 1: `most` keys are chosen.
  double mass = 1;
  /// Whether the share that was met is computed from all keys, on the host. The choice stays as it
  /// is.
  bool measure = false;

  /// A block of queries with this many keys to choose from, or fewer, attends them all.
  constexpr std::int64_t without_choice() const { return mass < 1 ? least : most; }
};

}  // namespace topkv
