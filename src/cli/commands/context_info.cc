#include "src/cli/commands/context_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "src/cli/flags/options.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "src/core/text/printable.h"

namespace topkv::cli {

void print_context_info(const std::string& file, bool json) {
  const ContextFileInfo info = context_file_info(file);
  const AttentionShape& shape = info.shape;
  if (json) {
    Json out;
    out["format"] = info.version;
    out["writer"] = info.writer;
    out["tokens"] = info.tokens;
    out["tokens_before"] = info.tokens_before < 0 ? Json(nullptr) : Json(info.tokens_before);
    out["layers"] = shape.layers;
    out["q_heads"] = shape.q_heads;
    out["kv_heads"] = shape.kv_heads;
    out["head_dim"] = shape.head_dim;
    out["kv_dtype"] = info.dtype.name();
    out["indices"] = info.indices;
    out["unknown_indices"] = info.unknown_indices;
    out["model"] = info.model;
    out["made_with"] = info.made_with;
    out["length"] = info.length;
    out["chat"] = info.end.chat;
    out["token_ids"] = info.has_token_ids;
    out["queries"] = info.has_queries;
    out["file_bytes"] = info.file_bytes;
    out["rows_bytes"] = info.rows_bytes;
    out["index_bytes"] = info.index_bytes;
    out["queries_bytes"] = info.queries_bytes;
    out["version"] = version();
    fmt::print("{}\n", out.dump(-1, ' ', false, Json::error_handler_t::replace));
    return;
  }
  fmt::print("context     {}: {} tokens{}, {}\n", printable(file), format_grouped(info.tokens),
             info.end.chat ? " in a chat template" : "", byte_text(info.file_bytes));
  fmt::print("made with   {}, {}\n", info.made_with.empty() ? "(not said)" : info.made_with,
             info.writer);
  fmt::print("model       {}\n", info.model.empty() ? "(not said)" : info.model);
  fmt::print("attention   {} layers, {} query heads, {} KV heads, head dim {}\n", shape.layers,
             shape.q_heads, shape.kv_heads, shape.head_dim);
  fmt::print("rows        {}, {}\n", info.dtype.name(), byte_text(info.rows_bytes));
  fmt::print("indices     {}, {}\n",
             info.indices.empty() ? "none" : fmt::format("{}", fmt::join(info.indices, ", ")),
             byte_text(info.index_bytes));
  if (!info.unknown_indices.empty())
    fmt::print("unknown     {}: a later topkv may know them\n",
               topkv::listed(info.unknown_indices, 8));
  if (info.tokens_before >= 0)
    fmt::print("rows        of a session, after {} tokens of its context\n",
               format_grouped(info.tokens_before));
  if (info.length > 0) fmt::print("length      {}\n", format_grouped(info.length));
  if (info.has_queries) fmt::print("queries     {}\n", byte_text(info.queries_bytes));
}

}  // namespace topkv::cli
