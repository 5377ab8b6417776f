// "did you mean …?" for mistyped commands and flags.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace topkv::cli {

/// Insertions, deletions and substitutions that turn a into b (Levenshtein 1966), over bytes.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The known word nearest to `typed`, the first among equals; empty when none is near enough to
/// be a typing error (more than a third of the letters differ).
std::string nearest(std::string_view typed, std::span<const std::string> known);

}  // namespace topkv::cli
