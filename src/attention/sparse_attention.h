// Attention of a sparse prefill on the host: tokens choose blocks of keys and attend them exactly.
#pragma once

#include <span>
#include <vector>

#include "src/attention/block_attention.h"
#include "src/attention/block_choice.h"
#include "topkv/context.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

/// Partials of the queries of consecutive tokens over the blocks of keys that they choose.
///
/// passes: of the same tokens; see PassQueries. always: the window and the sinks that each token
/// attends in any case. rows: of each KV head, from position 0 to the last token at least. means:
/// of each KV head, as for choose_blocks. out: heads = [tokens, q_heads], overwritten; it may be
/// the memory of the first pass's queries. Returns what the tokens met.
/// Split over threads by KV head and tokens; the result does not depend on the number of threads.
PrefillShare attend_sparse(const AttentionShape& shape, std::span<const PassQueries> passes,
                           const CausalWindow& always, const BlockBudget& budget,
                           std::span<const RowSpan> rows, std::span<const std::vector<float>> means,
                           PartialView out);

}  // namespace topkv
