// Bytes from outside, paths among them, in messages.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace topkv {

/// One line of well-formed UTF-8: control characters, line separators and bytes that are not UTF-8
/// are written as \xNN.
std::string printable(std::string_view bytes);

/// A path for a message; it may hold any bytes.
std::string path_text(const std::filesystem::path& path);

}  // namespace topkv
