// What is put around the tokens of a text: the "post_processor" of a tokenizer.json.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "src/text/tokens/vocabulary.h"
#include "topkv/types.h"

namespace topkv {

struct TokenTemplate {
  std::vector<Token> before;
  std::vector<Token> after;

  /// Reads null, ByteLevel (which changes no token), TemplateProcessing (its "single" template)
  /// and Sequences of them. Throws FileError, or Unsupported naming the component; both begin with
  /// `file`.
  static TokenTemplate parse(const nlohmann::json& description, const Vocabulary& vocabulary,
                             const std::filesystem::path& file);
};

}  // namespace topkv
