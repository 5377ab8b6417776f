// What every AttentionStep must keep, in prefill and in sessions.
#pragma once

#include "topkv/attention.h"
#include "topkv/types.h"

namespace topkv {

/// Throws InvalidArgument when the layer is none of the shape's, there is no token or more than
/// memory can hold, K and V are of tokens that the step does not have, a pointer is null that must
/// not be, or what is written overlaps what is read (out may be q).
void check_step(const AttentionShape& shape, const AttentionStep& step);

/// Throws InvalidArgument when the step, whose tokens are so many from position `first` on, lacks a
/// query that one of them needs to meet an earlier chunk, or has such a query and the shape has no
/// chunks.
void check_chunks(const AttentionShape& shape, const AttentionStep& step, std::int64_t first,
                  std::int64_t tokens);

}  // namespace topkv
