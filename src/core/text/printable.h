// Bytes from outside, paths among them, in messages.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace topkv {

/// One line of well-formed UTF-8: control characters, line separators and bytes that are not UTF-8
/// are written as \xNN.
std::string printable(std::string_view bytes);

/// The same of what somebody typed, or a file has: no more than a message has room for.
std::string printable_beginning(std::string_view bytes);

/// "a, b and 3 more": the first of some texts, so many at most.
std::string listed(std::span<const std::string> texts, std::size_t most);

/// A path for a message; it may hold any bytes.
std::string path_text(const std::filesystem::path& path);

}  // namespace topkv
