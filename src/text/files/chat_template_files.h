// Where a model directory keeps its chat template and the special tokens that it names, in the
// order that transformers (5.17) looks for them; or a GGUF file.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace topkv {

struct ChatTemplateFiles {
  std::string file;    ///< that the template is in, for messages
  std::string source;  ///< well-formed UTF-8
  /// "bos_token" and the like, by their names, as they are spelled.
  std::map<std::string, std::string> special_tokens;
};

/// Those of its files that its conversations depend on and that there are, whether or not they can
/// be read as such.
std::vector<std::filesystem::path> chat_template_sources(const std::filesystem::path& directory);

/// Throws FileError; for a model without a template one that says so.
ChatTemplateFiles read_chat_template(const std::filesystem::path& model);

}  // namespace topkv
