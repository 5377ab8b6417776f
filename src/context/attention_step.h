// Checks of an AttentionStep, in prefills and in sessions.
#pragma once

#include <span>

#include "topkv/attention.h"
#include "topkv/types.h"

namespace topkv {

/// Checks a step by itself. Throws InvalidArgument when:
/// - the shape does not have the layer;
/// - there is no token, or more tokens than memory can hold;
/// - the layer has a recurrent state;
/// - K and V belong to tokens that the step does not have;
/// - q, out, k or v is null; k and v may be null in a step without rows;
/// - the layer attends the rows of another layer, and k or v is not null;
/// - keys are values, and v is not null;
/// - a tensor that is written overlaps one that is read; out may be q itself.
///
/// sessions: the step's tensors hold that many sessions' tokens, one session after the other.
/// step.tokens and step.kv_tokens count the tokens of one session.
void check_step(const AttentionShape& shape, const AttentionStep& step, std::int64_t sessions = 1);

/// Checks the index tensors of a step, which check_step has taken. Throws Unsupported in a layer
/// with a trained indexer for a step that lacks K and V of some tokens. Throws InvalidArgument
/// when:
/// - the layer chooses, and index_q is null, or index_k is null although tokens complete keys;
/// - the layer does not choose, and an index tensor is given;
/// - out or lse overlaps an index tensor.
///
/// firsts: the position of the step's first token in each of its sessions, or in the one context.
void check_index_tensors(const AttentionShape& shape, const AttentionStep& step,
                         std::span<const std::int64_t> firsts);

/// Checks the queries of a step by chunks, whose `tokens` tokens are at positions `first` and on.
/// Throws InvalidArgument when:
/// - a token needs q_next or q_far for an earlier chunk, and it is null;
/// - q_next or q_far is given, and the shape has no chunks.
void check_chunks(const AttentionShape& shape, const AttentionStep& step, std::int64_t first,
                  std::int64_t tokens);

}  // namespace topkv
