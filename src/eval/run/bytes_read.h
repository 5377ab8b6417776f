// What a token's step reads of a context: bytes over all layers with full attention, which are
// those that retrieve and the first dense ones. Layers with a sliding window of their own read the
// same whatever the method, and are left out.
#pragma once

#include <cstdint>
#include <optional>

#include "topkv/context.h"
#include "topkv/session.h"

namespace topkv {

/// Of the index, to choose rows, of the tail, and of the rows that were chosen. rows: so many per
/// token, over all layers and query heads, as SessionStats::rows_retrieved has them: a row that two
/// heads attend counts twice. options: as a session has them. None where it is not known: an index
/// that does not tell (a graph, lists), or a rule that searches more than once.
std::optional<std::int64_t> bytes_to_retrieve(const Context& context,
                                              const RetrievalOptions& options, double rows);

/// Of all rows of the first dense layers.
std::int64_t bytes_of_dense_layers(const Context& context, const RetrievalOptions& options);

/// Of sinks and window in the others, as large as they come to be in a context of this length.
std::int64_t bytes_of_windows(const Context& context, const RetrievalOptions& options);

/// All of these.
std::optional<std::int64_t> bytes_read(const Context& context, const RetrievalOptions& options,
                                       double rows);

}  // namespace topkv
