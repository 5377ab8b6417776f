#include "src/eval/run/bytes_read.h"

#include <algorithm>

namespace topkv {
namespace {

/// Bytes of so many rows of each KV head, in the layers with full attention from `first` up to
/// `end`.
std::int64_t bytes_of_rows(const Context& context, std::int64_t rows, std::int64_t first,
                           std::int64_t end) {
  const AttentionShape& shape = context.shape();
  std::int64_t layers = 0;
  for (std::int64_t layer = first; layer < std::min(end, shape.layers); ++layer) {
    if (shape.attends_all(layer)) ++layers;
  }
  return layers * shape.kv_heads * rows * shape.row_bytes(context.dtype());
}

/// Returns whether a layer finds rows by an index.
bool any_attends_all(const AttentionShape& shape) {
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    if (shape.attends_all(layer)) return true;
  return false;
}

/// Returns the bytes of index keys that a token's choices score.
std::int64_t bytes_of_index_keys(const Context& context, const RetrievalOptions& options) {
  const IndexerShape& of = *context.shape().indexer;
  if (options.indexer_top.value_or(of.top) >= every_index_block) return 0;
  return context.shape().index_key_layers() * of.keys(context.tokens()) * of.key_bytes();
}

}  // namespace

std::optional<std::int64_t> bytes_to_retrieve(const Context& context,
                                              const RetrievalOptions& options, double rows) {
  if (options.mass || options.error) return {};
  if (context.shape().indexer) {
    if (any_attends_all(context.shape())) return {};  // rows of both kinds are counted as one
    // The query heads of a group attend the same rows.
    return bytes_of_index_keys(context, options) +
           static_cast<std::int64_t>(
               rows / static_cast<double>(context.shape().group()) *
               static_cast<double>(context.shape().row_bytes(context.dtype())));
  }
  const std::int64_t dense = std::min(options.dense_layers, context.shape().layers);
  const std::int64_t searched = context.bytes_read_to_search(options.index, dense);
  if (searched < 0) return {};
  const std::int64_t row = context.shape().row_bytes(context.dtype());
  auto bytes = searched + static_cast<std::int64_t>(rows * static_cast<double>(row));
  if (options.tail != "none")
    bytes += context.bytes_read_to_estimate(options.tail, options.index, dense);
  return bytes;
}

std::int64_t bytes_of_dense_layers(const Context& context, const RetrievalOptions& options) {
  return bytes_of_rows(context, context.tokens(), 0, options.dense_layers);
}

std::int64_t bytes_of_windows(const Context& context, const RetrievalOptions& options) {
  return bytes_of_rows(context, std::min(context.tokens(), options.sinks + options.window),
                       options.dense_layers, context.shape().layers);
}

std::optional<std::int64_t> bytes_read(const Context& context, const RetrievalOptions& options,
                                       double rows) {
  std::optional<std::int64_t> bytes = bytes_to_retrieve(context, options, rows);
  if (bytes) *bytes += bytes_of_dense_layers(context, options) + bytes_of_windows(context, options);
  return bytes;
}

}  // namespace topkv
