#include "src/text/files/chat_template_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "src/core/format/gguf_file.h"
#include "src/core/format/json_file.h"
#include "src/core/format/placeholder.h"
#include "src/core/io/files.h"
#include "src/core/io/mapped_file.h"
#include "src/core/text/printable.h"
#include "src/core/text/utf8.h"
#include "src/text/files/gguf_tokenizer.h"
#include "src/text/jinja/limits.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

// transformers' SPECIAL_TOKENS_ATTRIBUTES. Other keys that end in _token count where they are
// texts.
constexpr const char* named_tokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

// A checkpoint names a dozen, of some letters each; a template has them all as names.
constexpr std::size_t max_special_tokens = 1024;
constexpr std::size_t max_special_token_bytes = 8192;  // and of its name

// Of a model's directory. What several templates are in, and what one is.
constexpr const char* several_templates = "additional_chat_templates";
constexpr const char* one_template = "chat_template.jinja";
constexpr const char* tokenizer_config = "tokenizer_config.json";
constexpr const char* tokens_map = "special_tokens_map.json";

// Beside this key that file is not read.
constexpr const char* instead_of_tokens_map = "added_tokens_decoder";

/// The one file that its template is in, if there is such a file. The first that is there counts.
std::optional<std::filesystem::path> template_file(const std::filesystem::path& directory) {
  for (const auto& file :
       {directory / several_templates / "default.jinja", directory / one_template}) {
    if (file_exists(file)) return file;
  }
  return std::nullopt;
}

class Finder {
 public:
  explicit Finder(const std::filesystem::path& directory)
      : directory_(directory), config_file_(directory / tokenizer_config) {
    if (std::filesystem::exists(config_file_)) config_ = read_json_file(config_file_);
    if (!config_.is_object()) JsonObject(config_, config_file_);  // throws
  }

  ChatTemplateFiles find() {
    ChatTemplateFiles found;
    read_source(found);
    if (valid_utf8_bytes(found.source) < found.source.size()) {
      throw FileError(fmt::format("{}: the chat template is not UTF-8; convert it", found.file));
    }
    tokens_of(config_, config_file_, found.special_tokens);
    const std::filesystem::path legacy = directory_ / tokens_map;
    if (!config_.contains(instead_of_tokens_map) && std::filesystem::exists(legacy)) {
      const Json map = read_json_file(legacy);
      if (map.is_object()) tokens_of(map, legacy, found.special_tokens);
    }
    return found;
  }

 private:
  void read_source(ChatTemplateFiles& found) {
    if (const auto file = template_file(directory_)) {
      found.file = path_text(*file);
      found.source = read_regular_file(*file, max_template_bytes);
      refuse_placeholder(found.source, *file);
      return;
    }
    const std::filesystem::path more = directory_ / several_templates;
    const std::vector<std::string> names = names_in(more);
    if (!names.empty()) no_default(path_text(more), names);
    const JsonObject config(config_, config_file_);
    const Json* entry = config.find("chat_template");
    if (entry == nullptr) {
      throw FileError(fmt::format(
          "{}: no chat template here: expected chat_template.jinja, or chat_template in "
          "tokenizer_config.json; a model without one is no chat model: give it a plain prompt",
          path_text(directory_)));
    }
    found.file = path_text(config_file_);
    found.source = entry->is_string() ? entry->get<std::string>() : of_several(*entry, config);
  }

  /// [{"name": "default", "template": "…"}, …]
  std::string of_several(const Json& list, const JsonObject& config) const {
    if (!list.is_array()) config.fail("chat_template", "a text or a list of named ones");
    std::vector<std::string> names;
    std::string source;
    bool found = false;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const JsonObject one(list[i], config_file_, fmt::format("chat_template[{}].", i));
      const std::string name = one.text("name");
      names.push_back(printable_beginning(name));
      if (name != "default") continue;
      source = one.text("template");
      found = true;
    }
    if (!found) no_default(path_text(config_file_), names);
    return source;
  }

  [[noreturn]] static void no_default(const std::string& where,
                                      const std::vector<std::string>& names) {
    throw FileError(fmt::format(
        "{}: chat templates are there ({}), but none is called default, which is what a "
        "conversation takes; put one into chat_template.jinja beside it",
        where, listed(names, 3)));
  }

  static std::vector<std::string> names_in(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    if (!std::filesystem::is_directory(folder)) return names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".jinja") continue;
      names.push_back(path_text(entry.path().stem()));
    }
    return names;
  }

  /// Later files replace what earlier ones say.
  static void tokens_of(const Json& object, const std::filesystem::path& file,
                        std::map<std::string, std::string>& out) {
    const auto add = [&](const std::string& name, const Json& value) {
      const bool known = std::find(std::begin(named_tokens), std::end(named_tokens), name) !=
                         std::end(named_tokens);
      const Json* text = &value;
      if (known && value.is_object() && value.contains("content")) text = &value["content"];
      if (!text->is_string()) return;
      out.insert_or_assign(name, checked(name, text->get<std::string>(), file));
      if (out.size() > max_special_tokens) {
        throw FileError(fmt::format(
            "{}: has more than {} special tokens, the last of them {}; expected at most {}",
            path_text(file), max_special_tokens, printable_beginning(name), max_special_tokens));
      }
    };
    for (const auto& [key, value] : object.items()) {
      if (key.ends_with("_token")) add(key, value);
    }
    const auto extra = object.find("extra_special_tokens");
    if (extra == object.end() || !extra->is_object()) return;
    for (const auto& [key, value] : extra->items()) add(key, value);
  }

  static std::string checked(const std::string& name, std::string text,
                             const std::filesystem::path& file) {
    const std::size_t longest = std::max(name.size(), text.size());
    if (longest <= max_special_token_bytes) return text;
    throw FileError(fmt::format("{}: {} has {} bytes in its {}; expected at most {}",
                                path_text(file), printable_beginning(name), longest,
                                name.size() == longest ? "name" : "text", max_special_token_bytes));
  }

  const std::filesystem::path& directory_;
  std::filesystem::path config_file_;
  Json config_ = Json::object();
};

bool reads_tokens_map(const std::filesystem::path& config_file) {
  try {
    return !file_exists(config_file) ||
           !read_json_file(config_file).contains(instead_of_tokens_map);
  } catch (const FileError&) {
    return true;
  }
}

}  // namespace

std::vector<std::filesystem::path> chat_template_sources(const std::filesystem::path& directory) {
  const std::filesystem::path config_file = directory / tokenizer_config;
  std::vector<std::filesystem::path> files = {config_file};
  if (reads_tokens_map(config_file)) files.push_back(directory / tokens_map);
  std::erase_if(files, [](const auto& file) { return !file_exists(file); });
  if (auto file = template_file(directory)) files.push_back(std::move(*file));
  return files;
}

ChatTemplateFiles read_chat_template(const std::filesystem::path& model) {
  if (is_model_file(model)) return chat_template_of_gguf(GgufFile::open(model));
  if (!std::filesystem::is_directory(model)) {
    throw FileError(
        fmt::format("{}: no such directory; expected a model's, or a GGUF file", path_text(model)));
  }
  try {
    return Finder(model).find();
  } catch (const std::filesystem::filesystem_error& error) {
    throw FileError(fmt::format("{}: {}", path_text(model), error.code().message()));
  }
}

}  // namespace topkv
