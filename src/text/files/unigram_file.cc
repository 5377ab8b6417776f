#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "src/core/text/printable.h"
#include "src/text/files/model_file.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

bool is_piece(const Json& entry) {
  return entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number() &&
         std::isfinite(entry[1].get<double>());
}

}  // namespace

Unigram read_unigram(const JsonObject& model, const std::filesystem::path& file,
                     Vocabulary& vocabulary) {
  const auto refuse = [&](const std::string& message) {
    throw FileError(fmt::format("{}: {}", path_text(file), message));
  };
  const Json* vocab = model.find("vocab");
  if (vocab == nullptr || !vocab->is_array()) model.fail("vocab", "an array of tokens with scores");
  if (vocab->size() > std::size_t{Vocabulary::max_tokens}) {
    refuse(fmt::format("model.vocab has {} tokens; expected at most {}", vocab->size(),
                       Vocabulary::max_tokens));
  }
  std::vector<double> scores;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < vocab->size(); ++i) {
    const Json& entry = (*vocab)[i];
    if (!is_piece(entry)) {
      refuse(fmt::format("model.vocab[{}] is {}; expected a token and its score", i, shown(entry)));
    }
    const auto& content = entry[0].get_ref<const std::string&>();
    check_token_length(file, content, "model.vocab");
    if (content.size() > Unigram::max_piece_bytes) {
      throw Unsupported(
          fmt::format("{}: model.vocab[{}] has {} bytes; topkv runs pieces of at most "
                      "{}",
                      path_text(file), i, content.size(), Unigram::max_piece_bytes));
    }
    bytes += content.size();
    if (bytes > Unigram::max_bytes) {
      throw Unsupported(
          fmt::format("{}: model.vocab[0] to [{}] have {} bytes together; topkv runs pieces of at "
                      "most {}",
                      path_text(file), i, bytes, Unigram::max_bytes));
    }
    vocabulary.add_further(content, static_cast<Token>(i));  // a piece twice is the last one
    scores.push_back(entry[1].get<double>());
  }
  if (model.find("unk_id") == nullptr) model.unsupported("unk_id", "the id of a token");
  const std::int64_t unknown =
      model.integer("unk_id", 0, static_cast<std::int64_t>(scores.size()) - 1);
  const bool fallback = model.find("byte_fallback") != nullptr && model.flag("byte_fallback");
  return Unigram(vocabulary, std::move(scores), static_cast<Token>(unknown), fallback);
}

}  // namespace topkv
