// Figures as people read them; bytes are in byte_text.h. Pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace topkv {

/// 131072 → "128K", 1048576 → "1M", 1000 → "1000": the shortest exact form.
std::string format_count(std::int64_t count);
/// 1234567 → "1,234,567".
std::string format_grouped(std::int64_t count);
/// "0.4 s", "12 s", "3 min 05 s", "2 h 10 min".
std::string format_seconds(double seconds);
/// Three significant digits, grouped: "0.42", "7.1", "31.5", "1,240". "-" for what was not
/// measured.
std::string format_rate(double per_second);
/// "5", "12.5".
std::string format_percent(double percent);

}  // namespace topkv
