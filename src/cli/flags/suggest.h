// "did you mean …?" for mistyped commands and flags.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace topkv::cli {

/// Insertions, deletions, substitutions and swaps of neighbours that turn a into b, over bytes
/// (Levenshtein 1966 with Damerau's swaps, each letter edited once).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The known word nearest to `typed`, the first among equals; empty when none is near enough to
/// be a typing error (more than a third of the letters differ).
std::string nearest(std::string_view typed, std::span<const std::string> known);

/// "; did you mean --prompt?", or nothing.
std::string did_you_mean(const std::string& near);

}  // namespace topkv::cli
