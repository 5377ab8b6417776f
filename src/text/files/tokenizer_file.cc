#include "src/text/files/tokenizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/format/gguf_file.h"
#include "src/core/format/json_file.h"
#include "src/core/text/printable.h"
#include "src/text/files/gguf_tokenizer.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

constexpr std::size_t max_added_bytes = 1'000'000;  // all together; each takes some 60 of memory

class TokenizerReader {
 public:
  /// scores: of the tokens, which say what is merged first instead of model.merges; null: none.
  TokenizerReader(const std::filesystem::path& file, Json json, const PieceScores* scores = nullptr)
      : file_(file), json_(std::move(json)), root_(json_, file), scores_(scores) {}

  TokenizerParts read() {
    for (const char* key : {"truncation", "padding"}) {
      if (root_.find(key) != nullptr) root_.unsupported(key, "null: set it to null in the file");
    }
    Normalizer normalizer = Normalizer::parse(value("normalizer"), file_);
    PreTokenizer pre_tokenizer = PreTokenizer::parse(value("pre_tokenizer"), file_);
    const bool byte_level = pre_tokenizer.byte_level();
    vocabulary_ =
        Vocabulary(byte_level ? Vocabulary::Spelling::byte_level : Vocabulary::Spelling::pieces,
                   decoder(byte_level));
    TokenModel model = read_model(byte_level);
    TokenizerParts parts{{}, std::move(normalizer), {}, std::move(pre_tokenizer), std::move(model),
                         {}, Vocabulary()};
    read_added_tokens(parts);
    parts.around = TokenTemplate::parse(value("post_processor"), vocabulary_, file_);
    parts.vocabulary = std::move(vocabulary_);
    return parts;
  }

 private:
  /// What an entry of added_tokens says.
  struct Added {
    std::string content;
    Token token;
    bool special;
    bool strip_left;
    bool strip_right;
    bool normalized;
  };

  const Json& value(std::string_view key) const {
    static const Json null;
    const Json* found = root_.find(key);
    return found == nullptr ? null : *found;
  }

  template <class E>
  [[noreturn]] void fail(const std::string& message) const {
    throw E(fmt::format("{}: {}", path_text(file_), message));
  }

  /// Nothing where a byte-level vocabulary is to be put together.
  std::optional<Decoder> decoder(bool byte_level) const {
    if (root_.find("decoder") == nullptr) {
      if (byte_level) return {};
      // Without one the library puts spaces between the tokens.
      root_.unsupported("decoder", "null with a ByteLevel pre_tokenizer only");
    }
    const Json& description = value("decoder");
    if (byte_level && JsonObject(description, file_, "decoder.").text("type") == "ByteLevel")
      return {};
    return Decoder::parse(description, file_, byte_level);
  }

  TokenModel read_model(bool byte_level) {
    const Json* description = root_.find("model");
    if (description == nullptr) root_.fail("model", "an object");
    const JsonObject model(*description, file_, "model.");
    // Files of before 2021 do not say the type.
    const std::string type =
        model.text("type", model.find("unk_id") == nullptr ? "BPE" : "Unigram");
    if (type == "BPE") return read_bpe(model, file_, scores_, vocabulary_);
    if (type != "Unigram") model.unsupported("type", "BPE and Unigram");
    if (byte_level) model.unsupported("type", "BPE with a ByteLevel pre_tokenizer");
    return read_unigram(model, file_, vocabulary_);
  }

  Added added_token(const Json& entry, std::size_t index) const {
    const JsonObject object(entry, file_, fmt::format("added_tokens[{}].", index));
    Added added{.content = object.text("content"),
                .token = static_cast<Token>(object.integer("id", 0, Vocabulary::max_tokens - 1)),
                .special = object.flag("special"),
                .strip_left = object.flag("lstrip"),
                .strip_right = object.flag("rstrip"),
                .normalized = object.flag("normalized")};
    if (added.content.empty()) object.fail("content", "a text that is not empty");
    check_token_length(file_, added.content, "added_tokens");
    if (object.flag("single_word")) object.unsupported("single_word", "false");
    return added;
  }

  std::string_view normalized(const Normalizer& normalizer, const std::string& content,
                              Normalizer::Scratch& scratch, ByteAllowance& allowance) const {
    try {
      return normalizer.apply(content, scratch, allowance).text;
    } catch (const FileError& error) {
      fail<FileError>(error.what());
    }
  }

  void read_added_tokens(TokenizerParts& parts) {
    const Json& list = value("added_tokens");
    if (!list.is_null() && !list.is_array()) root_.fail("added_tokens", "an array");
    const std::int64_t in_model = vocabulary_.count();
    std::int64_t next = in_model;
    std::vector<Added> tokens;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Added& added = tokens.emplace_back(added_token(list[i], i));
      // The tokenizers library numbers added tokens itself, whatever the file says. A file that
      // says otherwise would mean one thing there and another here.
      const Token known = vocabulary_.find(added.content);
      const std::int64_t expected = known >= 0 ? known : next;
      if (added.token != expected || (known < 0 && !vocabulary_.add(added.content, added.token))) {
        fail<FileError>(fmt::format("added_tokens[{}], {}, has the id {}; expected {}", i,
                                    shown(added.content), added.token,
                                    vocabulary_.contains(static_cast<Token>(expected)) && known < 0
                                        ? "an id that no other token has"
                                        : std::to_string(expected)));
      }
      next = std::max(next, std::int64_t{added.token} + 1);
      if (added.special) vocabulary_.make_special(added.token);
    }
    // Of two that normalize to the same text, special ones come first.
    std::stable_partition(tokens.begin(), tokens.end(), [](const Added& a) { return a.special; });
    Normalizer::Scratch scratch;
    ByteAllowance allowance(max_added_bytes);
    std::size_t bytes = 0;
    for (const Added& added : tokens) {
      const std::string_view content =
          added.normalized ? normalized(parts.normalizer, added.content, scratch, allowance)
                           : std::string_view(added.content);
      if (content.empty()) continue;  // is found nowhere
      bytes += content.size();
      if (bytes > max_added_bytes) {
        fail<Unsupported>(
            fmt::format("added_tokens has more than {} bytes of text, which is not "
                        "implemented; topkv runs up to that",
                        max_added_bytes));
      }
      (added.normalized ? parts.added_normalized : parts.added_raw)
          .add(content, added.token, added.strip_left, added.strip_right);
    }
    parts.added_normalized.finish();
    parts.added_raw.finish();
  }

  const std::filesystem::path& file_;
  Json json_;
  JsonObject root_;
  const PieceScores* scores_;
  Vocabulary vocabulary_;
};

}  // namespace

TokenizerParts read_tokenizer_file(const std::filesystem::path& file) {
  if (begins_as_gguf(file)) {
    const GgufTokenizer found = tokenizer_of_gguf(GgufFile::open(file));
    return TokenizerReader(file, found.json, found.scores.empty() ? nullptr : &found.scores).read();
  }
  // Scores are compared: they must have the values that the library gives them.
  return TokenizerReader(file, read_json_file(file, JsonFloats::serde)).read();
}

}  // namespace topkv
