// The description in a context file, in JSON, which people can read, too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topkv/context_file.h"
#include "topkv/index_spec.h"

namespace topkv {

/// The description of a context. The members mean what they do in ContextFileInfo.
struct FileMeta {
  /// An index or a tail. They are in the order of the context.
  struct Index {
    std::string spec;            ///< the file's spelling
    std::int64_t heads_of = -1;  ///< number of an earlier index whose heads it shares; -1: none
    std::size_t owner = 0;       ///< the index that has the heads: itself, or an earlier one
    /// The spec, if this topkv can load the index. Not set: it does not know the spec, in this
    /// spelling, for such keys, with these heads; a later topkv may.
    std::optional<IndexSpec> known = {};
  };

  /// Returns the specs of the indices that this topkv knows.
  std::vector<std::string> known_specs() const;
  /// Returns the position of the first token in its text.
  std::int64_t first_position() const { return tokens_before < 0 ? 0 : tokens_before; }
  /// Returns the position of a layer's first row.
  std::int64_t first_row(std::int64_t layer) const {
    return first_rows.empty() ? 0 : first_rows[static_cast<std::size_t>(layer)];
  }

  std::string writer;
  AttentionShape shape;
  KvDType dtype;
  std::int64_t tokens = 0;
  std::int64_t tokens_before = -1;  ///< Segment::tokens_before
  /// For each layer, the position of its first row: above 0 in layers with a sliding window alone.
  /// Empty: every layer has the rows of all tokens.
  std::vector<std::int64_t> first_rows = {};
  std::vector<Index> indices;
  std::string model, made_with;
  std::int64_t length = 0;  ///< ContextOrigin
  ContextEnd end;
  std::vector<ContextSource> sources = {};
};

/// Throws InvalidArgument for files of a text that parse_meta refuses.
void check_sources(std::span<const ContextSource> sources);

/// Returns the JSON text of a description.
std::string write_meta(const FileMeta& meta);

/// Parses a description. Throws FileError for one that cannot be of a context: its shape is
/// checked, and 64 bits must count the bytes of its rows.
FileMeta parse_meta(std::string_view text, const std::filesystem::path& path);

}  // namespace topkv
