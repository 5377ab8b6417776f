// The forms of a token's query in dual chunk attention (chunk_passes.h).
#pragma once

#include <cstdint>

namespace topkv {

/// AttentionStep::q, q_next and q_far.
enum class QueryForm : std::uint8_t { own, next, far };
inline constexpr std::int64_t query_forms = 3;

}  // namespace topkv
