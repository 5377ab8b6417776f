#include "src/text/tokens/post_processor.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/core/format/json_file.h"
#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

// A template names a few; what is listed many times over would be many times as long.
constexpr std::size_t max_template_tokens = 1024;

class Parser {
 public:
  Parser(const Vocabulary& vocabulary, const std::filesystem::path& file)
      : vocabulary_(vocabulary), file_(file) {}

  TokenTemplate parse(const Json& description) {
    if (!description.is_null()) component(description, "post_processor.");
    return result_;
  }

 private:
  void component(const Json& description, const std::string& where) {
    const JsonObject object(description, file_, where);
    if (++components_ > 32) object.unsupported("type", "at most 32 components");
    const std::string type = object.text("type");
    if (type == "TemplateProcessing") {
      single(object, where);
    } else if (type == "Sequence") {
      const Json& list = array(object, "processors");
      for (std::size_t i = 0; i < list.size(); ++i) {
        component(list[i], fmt::format("{}processors[{}].", where, i));
      }
    } else if (type != "ByteLevel") {
      object.unsupported("type", "ByteLevel, TemplateProcessing and Sequence");
    }
  }

  static const Json& array(const JsonObject& object, std::string_view key) {
    const Json* list = object.find(key);
    if (list == nullptr || !list->is_array()) object.fail(key, "an array");
    return *list;
  }

  void single(const JsonObject& object, const std::string& where) {
    const Json& pieces = array(object, "single");
    const Json* special = object.find("special_tokens");
    if (special == nullptr) object.fail("special_tokens", "an object");
    const JsonObject names(*special, file_, where + "special_tokens.");
    TokenTemplate around;
    int sequences = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const std::string place = fmt::format("{}single[{}].", where, i);
      const JsonObject piece(pieces[i], file_, place);
      if (const Json* token = piece.find("SpecialToken")) {
        const std::string name = JsonObject(*token, file_, place + "SpecialToken.").text("id");
        append_ids(names, name, where, sequences == 0 ? around.before : around.after);
      } else if (const Json* sequence = piece.find("Sequence")) {
        const JsonObject reference(*sequence, file_, place + "Sequence.");
        if (reference.text("id") != "A") reference.fail("id", "\"A\" in the template for one text");
        ++sequences;
      } else {
        object.fail("single", "SpecialToken or Sequence in each piece");
      }
    }
    if (sequences != 1) object.unsupported("single", "templates with the text in them once");
    // Of several templates in a row, each is put around what the ones before it gave.
    if (result_.before.size() + around.before.size() > max_template_tokens ||
        result_.after.size() + around.after.size() > max_template_tokens) {
      object.unsupported("single", fmt::format("templates of at most {} tokens on either side",
                                               max_template_tokens));
    }
    result_.before.insert(result_.before.begin(), around.before.begin(), around.before.end());
    result_.after.insert(result_.after.end(), around.after.begin(), around.after.end());
  }

  void append_ids(const JsonObject& names, const std::string& name, const std::string& where,
                  std::vector<Token>& out) const {
    const Json* entry = names.find(name);
    if (entry == nullptr) {
      throw FileError(fmt::format("{}: {}special_tokens lacks {}, which its template names",
                                  path_text(file_), where, shown(name)));
    }
    const JsonObject token(*entry, file_, fmt::format("{}special_tokens.{}.", where, shown(name)));
    const Json& ids = array(token, "ids");
    if (out.size() + ids.size() > max_template_tokens) {
      token.unsupported(
          "ids", fmt::format("templates of at most {} tokens on either side", max_template_tokens));
    }
    for (const Json& id : ids) {
      const bool known = id.is_number_unsigned() &&
                         id.get<std::uint64_t>() < static_cast<std::uint64_t>(vocabulary_.size()) &&
                         vocabulary_.contains(id.get<Token>());
      if (!known) token.fail("ids", "ids of tokens");
      out.push_back(id.get<Token>());
    }
  }

  const Vocabulary& vocabulary_;
  const std::filesystem::path& file_;
  TokenTemplate result_;
  int components_ = 0;
};

}  // namespace

TokenTemplate TokenTemplate::parse(const Json& description, const Vocabulary& vocabulary,
                                   const std::filesystem::path& file) {
  return Parser(vocabulary, file).parse(description);
}

}  // namespace topkv
