// The description in a context file: JSON, for people too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "topkv/context_file.h"

namespace topkv {

struct FileMeta {
  /// An index, in the order in which the context has them.
  struct Index {
    std::string spec;
    std::int64_t heads_of = -1;  ///< the index, before it, whose heads serve it too; -1: its own
  };

  std::string writer;
  AttentionShape shape;
  KvDType dtype;
  std::int64_t tokens = 0;
  std::vector<Index> indices;
  std::string model, made_with;
  ContextEnd end;
};

std::string write_meta(const FileMeta& meta);

/// Throws FileError for what cannot be a context: the shape is checked, specs are known, and the
/// rows of so many tokens are a number of bytes.
FileMeta parse_meta(std::string_view text, const std::filesystem::path& path);

}  // namespace topkv
