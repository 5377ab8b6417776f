// From when on codes stand for a session's own rows.
#pragma once

#include <cstdint>

namespace topkv {

/// Rows that have left the window; fewer cost a step little as they are. A host attends these about
/// as fast as it scans, and finds less to gain. Tests lower that one.
inline constexpr std::int64_t least_coded_on_device = 2048;
inline std::int64_t least_coded_on_host = 12288;

}  // namespace topkv
