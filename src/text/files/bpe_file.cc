#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "src/core/text/printable.h"
#include "src/core/text/utf8.h"
#include "src/text/files/model_file.h"
#include "src/text/tokens/byte_level.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

class Reader {
 public:
  Reader(const std::filesystem::path& file, const PieceScores* scores, Vocabulary& vocabulary)
      : file_(file), scores_(scores), vocabulary_(vocabulary) {}

  Bpe read(const JsonObject& model) {
    const Json* dropout = model.find("dropout");
    if (dropout != nullptr && *dropout != 0) model.unsupported("dropout", "no dropout");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json* affix = model.find(key);
      if (affix != nullptr && *affix != "") model.unsupported(key, "none");
    }
    read_vocabulary(model);
    Bpe bpe = make_bpe(model);
    if (scores_ != nullptr) {
      merge_by_scores(bpe);
    } else {
      read_merges(model, bpe);
    }
    return bpe;
  }

 private:
  template <class E>
  [[noreturn]] void fail(const std::string& message) const {
    throw E(fmt::format("{}: {}", path_text(file_), message));
  }

  void read_vocabulary(const JsonObject& model) {
    const Json* vocab = model.find("vocab");
    if (vocab == nullptr || !vocab->is_object()) model.fail("vocab", "an object of tokens to ids");
    for (const auto& [content, id] : vocab->items()) {
      check_token_length(file_, content, "model.vocab");
      const bool fits = id.is_number_unsigned() && id.get<std::uint64_t>() < Vocabulary::max_tokens;
      if (!fits) {
        fail<FileError>(fmt::format("model.vocab gives {} the id {}; expected 0 to {}",
                                    shown(content), shown(id), Vocabulary::max_tokens - 1));
      }
      if (!vocabulary_.add(content, id.get<Token>())) {
        fail<FileError>(fmt::format(
            "model.vocab gives {} the id {}, which another token has; expected one of its own",
            shown(content), shown(id)));
      }
    }
  }

  Bpe make_bpe(const JsonObject& model) const {
    const auto flag = [&](const char* key) {
      return model.find(key) != nullptr && model.flag(key);
    };
    const bool pieces = vocabulary_.spelling() == Vocabulary::Spelling::pieces;
    Bpe::Options options{.ignore_merges = flag("ignore_merges"),
                         .byte_fallback = flag("byte_fallback"),
                         .fuse_unknown = flag("fuse_unk")};
    if (options.byte_fallback && !pieces) {
      check_no_letter_falls_back(model);
      options.byte_fallback = false;
    }
    const bool names_unknown = model.find("unk_token") != nullptr;
    if (names_unknown) options.unknown = vocabulary_.find(model.text("unk_token"));
    Bpe bpe(vocabulary_, options);
    // The library fails as soon as a text needs it.
    if (names_unknown && options.unknown < 0 && !bpe.complete()) {
      model.fail("unk_token", "a token of model.vocab, which has none for some bytes");
    }
    return bpe;
  }

  /// Of a byte-level vocabulary: a byte without a token would become the tokens of the bytes that
  /// its letter of the alphabet has in UTF-8, which no decoder puts together.
  void check_no_letter_falls_back(const JsonObject& model) const {
    for (int byte = 0; byte < 256; ++byte) {
      const std::string letter = byte_level_letter(static_cast<unsigned char>(byte));
      if (vocabulary_.find(letter) >= 0) continue;
      if (std::ranges::all_of(letter, [&](char each) {
            return vocabulary_.find(byte_piece(static_cast<unsigned char>(each))) >= 0;
          })) {
        model.unsupported("byte_fallback",
                          fmt::format("it with a ByteLevel pre_tokenizer where no byte falls "
                                      "back: give {} a token, or set it to false",
                                      shown(letter)));
      }
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

  const std::filesystem::path& file_;
  const PieceScores* scores_;
  Vocabulary& vocabulary_;
};

}  // namespace

Bpe read_bpe(const JsonObject& model, const std::filesystem::path& file, const PieceScores* scores,
             Vocabulary& vocabulary) {
  return Reader(file, scores, vocabulary).read(model);
}

}  // namespace topkv
