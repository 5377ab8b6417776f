// Bytes as people read them. Pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace topkv {

/// "0 B", "900 B", "1.5 KiB", "4.0 GiB".
std::string byte_text(std::int64_t bytes);

/// For errors, where both the size and the number count: "900 bytes", "1.5 KiB (1536 bytes)".
std::string exact_byte_text(std::int64_t bytes);

}  // namespace topkv
