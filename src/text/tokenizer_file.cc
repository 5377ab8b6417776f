#include "src/text/tokenizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/gguf_file.h"
#include "src/core/json_file.h"
#include "src/core/printable.h"
#include "src/core/utf8.h"
#include "src/text/gguf_tokenizer.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

constexpr std::size_t max_token_bytes = 8192;       // in the file; the longest there are have 256
constexpr std::size_t max_added_bytes = 1'000'000;  // all together; each takes some 60 of memory

class Reader {
 public:
  /// scores: of the tokens, which say what is merged first instead of model.merges; null: none.
  Reader(const std::filesystem::path& file, Json json, const PieceScores* scores = nullptr)
      : file_(file), json_(std::move(json)), root_(json_, file), scores_(scores) {}

  TokenizerParts read() {
    for (const char* key : {"truncation", "padding"}) {
      if (root_.find(key) != nullptr) root_.unsupported(key, "null: set it to null in the file");
    }
    Normalizer normalizer = Normalizer::parse(value("normalizer"), file_);
    const bool pieces = normalizer.replaces_spaces();
    PreTokenizer pre_tokenizer = PreTokenizer::parse(value("pre_tokenizer"), file_, pieces);
    const bool drops_first_space = check_decoder(pieces);
    const Json* model_json = root_.find("model");
    if (model_json == nullptr) root_.fail("model", "an object");
    const JsonObject model(*model_json, file_, "model.");
    check_model(model, pieces);
    if (pieces) vocabulary_ = Vocabulary(Vocabulary::Spelling::pieces);
    read_vocabulary(model);
    Bpe bpe = make_bpe(model);
    if (scores_ != nullptr) {
      merge_by_scores(bpe);
    } else {
      read_merges(model, bpe);
    }
    TokenizerParts parts{
        {},           normalizer,       {}, std::move(pre_tokenizer), std::move(bpe), {},
        Vocabulary(), drops_first_space};
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

  /// Long tokens are no harm by themselves, but a few of their ids would decode to any amount.
  void check_length(const std::string& content, std::string_view where) const {
    if (content.size() <= max_token_bytes) return;
    fail<FileError>(fmt::format("{} has a token of {} bytes, {}; expected at most {}", where,
                                content.size(), shown(content), max_token_bytes));
  }

  /// Whether the first space is dropped. Bytes are put together whatever the decoder.
  bool check_decoder(bool pieces) const {
    if (root_.find("decoder") == nullptr) return false;
    const JsonObject decoder(value("decoder"), file_, "decoder.");
    if (!pieces) {
      if (decoder.text("type") != "ByteLevel") decoder.unsupported("type", "ByteLevel");
      return false;
    }
    if (decoder.text("type") != "Sequence") decoder.unsupported("type", "Sequence there");
    const Json* list = decoder.find("decoders");
    if (list == nullptr || !list->is_array()) decoder.fail("decoders", "an array");
    bool drops = false;
    for (std::size_t i = 0; i < list->size(); ++i) {
      const JsonObject one((*list)[i], file_, fmt::format("decoder.decoders[{}].", i));
      const std::string type = one.text("type");
      if (type == "Strip") {
        if (one.text("content") != " ") one.unsupported("content", "\" \"");
        drops = one.integer("start", 0, 1) == 1;
        one.integer("stop", 0, 0);
      } else if (type != "Replace" && type != "ByteFallback" && type != "Fuse") {
        one.unsupported("type", "Replace, ByteFallback, Fuse and Strip");
      }
    }
    return drops;
  }

  static void check_model(const JsonObject& model, bool pieces) {
    // Files of before 2021 do not say the type.
    if (model.text("type", "BPE") != "BPE") model.unsupported("type", "BPE");
    const Json* dropout = model.find("dropout");
    if (dropout != nullptr && *dropout != 0) model.unsupported("dropout", "no dropout");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json* affix = model.find(key);
      if (affix != nullptr && *affix != "") model.unsupported(key, "none");
    }
    // unk_token and fuse_unk never matter: Bpe makes sure that each byte of a text has a token.
    const bool fallback = model.find("byte_fallback") != nullptr && model.flag("byte_fallback");
    if (fallback && !pieces) {
      model.unsupported("byte_fallback", "byte-level vocabularies, which need none");
    }
    if (pieces && !fallback) {
      model.unsupported("byte_fallback", "true with SentencePiece's pieces");
    }
  }

  void read_vocabulary(const JsonObject& model) {
    const Json* vocab = model.find("vocab");
    if (vocab == nullptr || !vocab->is_object()) model.fail("vocab", "an object of tokens to ids");
    for (const auto& [content, id] : vocab->items()) {
      check_length(content, "model.vocab");
      const bool fits = id.is_number_unsigned() && id.get<std::uint64_t>() < Vocabulary::max_tokens;
      if (!fits) {
        fail<FileError>(fmt::format("model.vocab gives {} the id {}; expected 0 to {}",
                                    shown(content), shown(id), Vocabulary::max_tokens - 1));
      }
      if (!vocabulary_.add(content, id.get<Token>())) {
        fail<FileError>(fmt::format("model.vocab gives {} the id {}, which another token has; expected one of its own",
                                    shown(content), shown(id)));
      }
    }
  }

  Bpe make_bpe(const JsonObject& model) const {
    const bool ignore_merges =
        model.find("ignore_merges") != nullptr && model.flag("ignore_merges");
    try {
      return Bpe(vocabulary_, ignore_merges);
    } catch (const Unsupported& error) {
      fail<Unsupported>(error.what());
    }
  }

  /// "a b", or ["a", "b"] as newer files have it.
  std::pair<std::string, std::string> merge_pair(const Json& merge, std::size_t index) const {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    }
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
        return {text.substr(0, space), text.substr(space + 1)};
      }
    }
    fail<FileError>(
        fmt::format("model.merges[{}] is {}; expected two tokens", index, shown(merge)));
  }

  void read_merges(const JsonObject& model, Bpe& bpe) const {
    const Json* merges = model.find("merges");
    if (merges == nullptr || !merges->is_array()) model.fail("merges", "an array");
    for (std::size_t i = 0; i < merges->size(); ++i) {
      const Json& merge = (*merges)[i];
      // The first line of a merges.txt, copied along.
      if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version"))
        continue;
      const auto [left, right] = merge_pair(merge, i);
      const auto known = [&](const std::string& content) {
        const Token token = vocabulary_.find(content);
        if (token < 0) {
          fail<FileError>(fmt::format("model.merges[{}] is {}, but model.vocab lacks {}", i,
                                      shown(merge), shown(content)));
        }
        return token;
      };
      bpe.add_merge(known(left), known(right), known(left + right));
    }
  }

  /// As SentencePiece merges: whichever pair of pieces makes the piece of the highest score.
  void merge_by_scores(Bpe& bpe) const {
    constexpr std::size_t longest = 1024;  // every way to cut a piece in two is tried
    std::vector<float> order;              // distinct scores, the highest first
    for (const auto& [token, score] : *scores_) order.push_back(score);
    std::ranges::sort(order, std::greater<>());
    order.erase(std::unique(order.begin(), order.end()), order.end());
    for (const auto& [content, token] : vocabulary_.ids()) {
      const auto found = scores_->find(token);
      if (found == scores_->end()) continue;
      const std::string_view whole = content;
      if (whole.size() > longest) {
        fail<Unsupported>(fmt::format("token {} has {} bytes; topkv merges pieces of at most {}",
                                      token, whole.size(), longest));
      }
      const auto rank = static_cast<std::int32_t>(
          std::ranges::lower_bound(order, found->second, std::greater<>()) - order.begin());
      for (std::size_t at = first_utf8_char(whole).bytes; at < whole.size();
           at += first_utf8_char(whole.substr(at)).bytes) {
        const Token left = vocabulary_.find(whole.substr(0, at));
        if (left < 0 || !scores_->contains(left)) continue;
        const Token right = vocabulary_.find(whole.substr(at));
        if (right >= 0 && scores_->contains(right)) bpe.add_merge(left, right, token, rank);
      }
    }
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
    check_length(added.content, "added_tokens");
    if (object.flag("single_word")) object.unsupported("single_word", "false");
    return added;
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
    std::string buffer;
    std::size_t bytes = 0;
    for (const Added& added : tokens) {
      const std::string_view content = added.normalized
                                           ? parts.normalizer.apply(added.content, buffer)
                                           : std::string_view(added.content);
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
    return Reader(file, found.json, found.scores.empty() ? nullptr : &found.scores).read();
  }
  return Reader(file, read_json_file(file)).read();
}

}  // namespace topkv
