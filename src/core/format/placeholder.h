// Placeholders: what tools and servers leave in the place of a file that was not fetched. These are
// pointers of Git LFS, web pages (of a proxy, or for signing in) and errors in XML (of a store).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace topkv {

/// Bytes at the beginning of a file that tell a placeholder.
inline constexpr std::int64_t placeholder_beginning = 512;

/// Throws FileError, which says what the file is and how to fetch it, where a file that begins so
/// is a placeholder. beginning: the first placeholder_beginning bytes, or more; a shorter file
/// whole. REQUIRES: the file is to be of a format that no placeholder begins as.
void refuse_placeholder(std::string_view beginning, const std::filesystem::path& path);

/// The same of a file, of which it reads the beginning. Throws FileError, too, where it cannot.
void refuse_placeholder(const std::filesystem::path& path);

}  // namespace topkv
