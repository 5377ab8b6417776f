// The description in a context file: JSON, for people too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topkv/context_file.h"
#include "topkv/index_spec.h"

namespace topkv {

struct FileMeta {
  /// An index, in the order in which the context has them.
  struct Index {
    std::string spec;            ///< as the file spells it
    std::int64_t heads_of = -1;  ///< the index, before it, whose heads serve it too; -1: its own
    std::size_t owner = 0;       ///< whose heads these are: itself, or one before it
    /// None: this version does not know it, spelled so, for such keys and with these heads; a
    /// later one may.
    std::optional<IndexSpec> known = {};
  };

  /// Specs of the indices that this version knows.
  std::vector<std::string> known_specs() const;

  std::string writer;
  AttentionShape shape;
  KvDType dtype;
  std::int64_t tokens = 0;
  std::int64_t tokens_before = -1;  ///< Segment::tokens_before
  std::vector<Index> indices;
  std::string model, made_with;
  std::int64_t length = 0;  ///< ContextOrigin
  ContextEnd end;
};

std::string write_meta(const FileMeta& meta);

/// Throws FileError for what cannot be a context: the shape is checked, and the rows of so many
/// tokens are a number of bytes.
FileMeta parse_meta(std::string_view text, const std::filesystem::path& path);

}  // namespace topkv
