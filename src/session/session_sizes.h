// The shape of a session: what its layers attend, as devices and memory plans need to know it.
#pragma once

#include <cstdint>

#include "src/device/decode_backend.h"
#include "topkv/session.h"
#include "topkv/types.h"

namespace topkv {

/// Returns what a session with these options attends. Windows are clamped to the tokens that it can
/// come to have.
SessionShape session_shape(const AttentionShape& shape, const RetrievalOptions& options,
                           std::int64_t context_tokens);

/// Returns the bytes of device memory that a session takes for steps by chunks, of the most tokens.
/// 0: its attention is not by chunks.
std::int64_t joined_bytes(const SessionShape& shape);

}  // namespace topkv
