// Hashes for tables whose keys come from outside: who writes a file or a text cannot know which
// keys fall into the same place, and so cannot make them do so.
#pragma once

#include <cstdint>
#include <string_view>

namespace topkv {

/// SipHash-1-3 under a key drawn once per process.
/// Source: Aumasson, Bernstein, "SipHash: a fast short-input PRF", 2012.
std::uint64_t keyed_hash(std::string_view bytes);

/// Of the eight bytes of a number.
std::uint64_t keyed_hash(std::uint64_t number);

}  // namespace topkv
