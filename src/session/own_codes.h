// The number of a session's own rows from which on they get codes.
#pragma once

#include <cstdint>

namespace topkv {

/// Own rows that have left the window. Fewer rows cost a step little when they are attended
/// exactly. The host gains less by codes, because it attends rows about as fast as it scans codes.
/// Tests lower the host's number.
inline constexpr std::int64_t least_coded_on_device = 2048;
inline std::int64_t least_coded_on_host = 12288;

}  // namespace topkv
