#include "src/text/files/gguf_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_map>
#include <utility>

#include "src/core/format/json_file.h"
#include "src/core/text/printable.h"
#include "src/core/text/utf8.h"
#include "src/text/tokens/vocabulary.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

constexpr const char* tokens_key = "tokenizer.ggml.tokens";
constexpr const char* types_key = "tokenizer.ggml.token_type";
constexpr const char* pre_key = "tokenizer.ggml.pre";

// Kinds of tokens, as the format numbers them.
constexpr std::int64_t plain_token = 1;
constexpr std::int64_t unknown_token = 2;
constexpr std::int64_t control_token = 3;
constexpr std::int64_t user_token = 4;
constexpr std::int64_t unused_token = 5;

/// How text is cut: patterns one after the other, each within the pieces of those before.
struct Style {
  std::span<const std::string_view> patterns;
  bool nfc = false;
  bool ignore_merges = false;  ///< a piece that is a token as a whole becomes that
  bool add_bos = false;        ///< where the file does not say
};

// The patterns of the models' own tokenizer.json, or what llama.cpp cuts by for their names.
constexpr std::string_view gpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view llama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view tekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view gpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view bailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view seed_coder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view minicpm =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view bloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr std::string_view digit = R"(\p{N})";
constexpr std::string_view three_digits = R"(\p{N}{1,3})";

constexpr std::array<std::string_view, 1> llama3_cut = {llama3};
constexpr std::array<std::string_view, 1> qwen2_cut = {qwen2};
constexpr std::array<std::string_view, 1> qwen35_cut = {qwen35};
constexpr std::array<std::string_view, 1> tekken_cut = {tekken};
constexpr std::array<std::string_view, 1> gpt4o_cut = {gpt4o};
constexpr std::array<std::string_view, 1> gpt2_cut = {gpt2};
constexpr std::array<std::string_view, 2> digits_cut = {digit, gpt2};
constexpr std::array<std::string_view, 4> default_cut = {R"([\p{P}\$\+<=>\^~\|]+)", gpt2,
                                                         R"(\p{N}+)", R"([0-9][0-9][0-9])"};
constexpr std::array<std::string_view, 3> falcon_cut = {R"([\p{P}\$\+<=>\^~\|`]+)", gpt2,
                                                        R"([0-9][0-9][0-9])"};
constexpr std::array<std::string_view, 3> deepseek3_cut = {
    three_digits, R"([一-龥぀-ゟ゠-ヿ]+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::array<std::string_view, 5> coder_cut = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                                                       R"([一-龥ࠀ-一가-퟿]+)", digit};
constexpr std::array<std::string_view, 1> bloom_cut = {bloom};
constexpr std::array<std::string_view, 2> viking_cut = {bloom, digit};
constexpr std::array<std::string_view, 1> bailing_cut = {bailing};
constexpr std::array<std::string_view, 1> seed_coder_cut = {seed_coder};
constexpr std::array<std::string_view, 2> minicpm_cut = {three_digits, minicpm};

constexpr Style llama3_style = {llama3_cut, false, true, true};
constexpr Style smaug_style = {llama3_cut, false, true, false};
constexpr Style dbrx_style = {llama3_cut};
constexpr Style qwen2_style = {qwen2_cut, true};
constexpr Style like_qwen2_style = {qwen2_cut};
constexpr Style qwen35_style = {qwen35_cut, true};
constexpr Style tekken_style = {tekken_cut, false, true, true};
constexpr Style gpt4o_style = {gpt4o_cut};
constexpr Style gpt2_style = {gpt2_cut};
constexpr Style digits_style = {digits_cut};
constexpr Style default_style = {default_cut};  // where llama.cpp was told nothing else
constexpr Style falcon_style = {falcon_cut};
constexpr Style deepseek3_style = {deepseek3_cut};
constexpr Style coder_style = {coder_cut};
constexpr Style bloom_style = {bloom_cut};
constexpr Style viking_style = {viking_cut};
constexpr Style bailing_style = {bailing_cut};
constexpr Style seed_coder_style = {seed_coder_cut};
constexpr Style minicpm_style = {minicpm_cut, false, true};

struct Named {
  std::string_view name;
  const Style* style;
};
constexpr Named names[] = {{"llama-bpe", &llama3_style},
                           {"llama3", &llama3_style},
                           {"llama-v3", &llama3_style},
                           {"falcon3", &llama3_style},
                           {"falcon-h1", &llama3_style},
                           {"pixtral", &llama3_style},
                           {"midm-2.0", &llama3_style},
                           {"lfm2", &llama3_style},
                           {"smaug-bpe", &smaug_style},
                           {"dbrx", &dbrx_style},
                           {"glm4", &dbrx_style},
                           {"chatglm-bpe", &dbrx_style},
                           {"qwen2", &qwen2_style},
                           {"deepseek-r1-qwen", &qwen2_style},
                           {"megrez", &like_qwen2_style},
                           {"kormo", &like_qwen2_style},
                           {"hunyuan", &like_qwen2_style},
                           {"solar-open", &like_qwen2_style},
                           {"stablelm2", &like_qwen2_style},
                           {"grok-2", &like_qwen2_style},
                           {"qwen35", &qwen35_style},
                           {"tekken", &tekken_style},
                           {"gpt-4o", &gpt4o_style},
                           {"llama4", &gpt4o_style},
                           {"kanana2", &gpt4o_style},
                           {"minimax-m2", &gpt4o_style},
                           {"gpt-2", &gpt2_style},
                           {"phi-2", &gpt2_style},
                           {"olmo", &gpt2_style},
                           {"mpt", &gpt2_style},
                           {"jais", &gpt2_style},
                           {"exaone4", &gpt2_style},
                           {"gigachat", &gpt2_style},
                           {"a.x-4.0", &gpt2_style},
                           {"mellum", &gpt2_style},
                           {"trillion", &gpt2_style},
                           {"granite-docling", &gpt2_style},
                           {"smollm", &digits_style},
                           {"starcoder", &digits_style},
                           {"refact", &digits_style},
                           {"command-r", &digits_style},
                           {"codeshell", &digits_style},
                           {"exaone", &digits_style},
                           {"minerva-7b", &digits_style},
                           {"mellum2", &digits_style},
                           {"default", &default_style},
                           {"falcon", &falcon_style},
                           {"deepseek-v3", &deepseek3_style},
                           {"hunyuan-dense", &deepseek3_style},
                           {"joyai-llm", &deepseek3_style},
                           {"hy_v4", &deepseek3_style},
                           {"deepseek-coder", &coder_style},
                           {"bloom", &bloom_style},
                           {"poro-chat", &bloom_style},
                           {"gpt3-finnish", &bloom_style},
                           {"viking", &viking_style},
                           {"bailingmoe", &bailing_style},
                           {"bailingmoe2", &bailing_style},
                           {"llada-moe", &bailing_style},
                           {"seed-coder", &seed_coder_style},
                           {"minicpm5", &minicpm_style}};

const Style& style_of(const GgufFile& file) {
  if (!file.has(pre_key)) {
    throw FileError(fmt::format(
        "{}: has no {}, which tells how text is cut into words: it was converted by a llama.cpp of "
        "before May 2024; convert the model again",
        path_text(file.path()), pre_key));
  }
  const std::string name = file.text(pre_key);
  const auto* const found = std::ranges::find(names, name, &Named::name);
  if (found != std::ranges::end(names)) return *found->style;
  std::vector<std::string_view> known;
  for (const Named& one : names) known.push_back(one.name);
  file.unsupported(pre_key, fmt::format("{}", fmt::join(known, ", ")));
}

std::string repeated(std::string_view text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

class Translator {
 public:
  explicit Translator(const GgufFile& file) : file_(file) {}

  GgufTokenizer read() {
    constexpr const char* model_key = "tokenizer.ggml.model";
    const std::string kind = file_.text(model_key);
    if (kind == "llama") return read_pieces();
    if (kind == "gemma4") return read_merged_pieces();
    if (kind != "gpt2") {
      file_.unsupported(
          model_key,
          "\"gpt2\" (byte-level BPE), \"llama\" (SentencePiece) and \"gemma4\": of this model "
          "take a directory with safetensors and a tokenizer.json of these kinds");
    }
    const Style& style = style_of(file_);
    read_tokens();
    Json model = {{"type", "BPE"}, {"ignore_merges", style.ignore_merges}};
    model["vocab"] = std::move(vocabulary_);
    model["merges"] = merges();
    Json json = {{"added_tokens", std::move(added_)}, {"post_processor", around(style.add_bos)}};
    if (style.nfc) json["normalizer"] = {{"type", "NFC"}};
    json["pre_tokenizer"] = cut(style);
    json["model"] = std::move(model);
    return {json, {}};
  }

 private:
  std::string checked(std::string_view text, const char* key, std::size_t index) const {
    if (valid_utf8_bytes(text) == text.size()) return std::string(text);
    throw FileError(fmt::format("{}: {}[{}] is {}; expected UTF-8", path_text(file_.path()), key,
                                index, shown_bytes(text)));
  }

  void read_tokens() {
    texts_ = file_.texts(tokens_key);
    const auto types = file_.integers(types_key);
    if (texts_.size() > std::size_t{Vocabulary::max_tokens}) {
      file_.fail(tokens_key, fmt::format("at most {} tokens", Vocabulary::max_tokens));
    }
    if (types.size() != texts_.size()) {
      file_.fail(types_key, fmt::format("one for each of the {} tokens", texts_.size()));
    }
    auto& vocabulary = vocabulary_.get_ref<Json::object_t&>();
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      // A row of the embedding without a token.
      if (types[i] == unused_token || texts_[i].empty()) continue;
      std::string text = checked(texts_[i], tokens_key, i);
      const bool spaces = is_pieces_ && types[i] == user_token && text.size() > 1 &&
                          text.find_first_not_of(' ') == std::string::npos;
      if (spaces) {
        text = repeated(piece_space, text.size());
        spaces_.push_back(i);
      }
      const auto id = static_cast<std::uint64_t>(i);
      const auto [place, is_new] = vocabulary.emplace(text, id);
      if (!is_new) {
        throw FileError(fmt::format("{}: {}[{}] is {}, as is [{}]; expected each token once",
                                    path_text(file_.path()), tokens_key, i, shown(Json(text)),
                                    place->second.get<std::uint64_t>()));
      }
      if (spaces) continue;
      if (types[i] == plain_token) plain_.push_back(i);
      if (types[i] != control_token && types[i] != user_token && types[i] != unknown_token)
        continue;
      added_.push_back({{"content", text},
                        {"id", id},
                        {"special", types[i] != user_token},
                        {"lstrip", false},
                        {"rstrip", false},
                        {"normalized", false},
                        {"single_word", false}});
    }
  }

  void read_tokens_of_pieces() {
    is_pieces_ = true;
    read_tokens();
  }

  /// Pieces that merges make up, as in Gemma 4's tokenizer.json; scores say nothing.
  GgufTokenizer read_merged_pieces() {
    read_tokens_of_pieces();
    GgufTokenizer found = pieces(file_.flag("tokenizer.ggml.add_space_prefix", false));
    found.json["model"]["merges"] = merges();
    found.json["model"]["vocab"] = std::move(vocabulary_);
    return found;
  }

  GgufTokenizer read_pieces() {
    constexpr const char* scores_key = "tokenizer.ggml.scores";
    constexpr const char* extra_key = "tokenizer.ggml.remove_extra_whitespaces";
    if (file_.flag(extra_key, false)) file_.unsupported(extra_key, "spaces as they are");
    read_tokens_of_pieces();
    const auto scores = file_.numbers(scores_key);
    if (scores.size() != texts_.size()) {
      file_.fail(scores_key, fmt::format("one for each of the {} tokens", texts_.size()));
    }
    GgufTokenizer found = pieces(file_.flag("tokenizer.ggml.add_space_prefix", true));
    for (const std::size_t i : plain_) {
      if (!std::isfinite(scores[i])) {
        throw FileError(fmt::format("{}: {}[{}] is {}; expected finite numbers",
                                    path_text(file_.path()), scores_key, i, scores[i]));
      }
      found.scores[static_cast<Token>(i)] = static_cast<float>(scores[i]);
    }
    score_spaces(found.scores);
    found.json["model"]["vocab"] = std::move(vocabulary_);
    return found;
  }

  /// What tokenizers of pieces have in common, without the vocabulary.
  GgufTokenizer pieces(bool prefix) {
    Json normalizers = Json::array();
    if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", piece_space}});
    normalizers.push_back(
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", piece_space}});
    Json decoders = Json::array(
        {{{"type", "Replace"}, {"pattern", {{"String", piece_space}}}, {"content", " "}},
         {{"type", "ByteFallback"}},
         {{"type", "Fuse"}}});
    if (prefix) {
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    GgufTokenizer found;
    found.json = {{"added_tokens", std::move(added_)},
                  {"post_processor", around(true)},
                  {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
                  {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
                  {"model", {{"type", "BPE"}, {"byte_fallback", true}, {"merges", Json::array()}}}};
    constexpr const char* unknown_key = "tokenizer.ggml.unknown_token_id";
    if (file_.has(unknown_key)) {  // for characters of bytes that are no tokens
      found.json["model"]["unk_token"] = named(unknown_key).first;
      found.json["model"]["fuse_unk"] = true;
    }
    return found;
  }

  /// Before all other pieces, in the order of the file: these have no scores of their own.
  void score_spaces(PieceScores& scores) const {
    float highest = 0;
    for (const auto& [token, score] : scores) highest = std::max(highest, score);
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      scores[static_cast<Token>(spaces_[i])] = highest + static_cast<float>(spaces_.size() - i);
    }
  }

  Json merges() const {
    constexpr const char* key = "tokenizer.ggml.merges";
    const auto lines = file_.texts(key);
    Json merges = Json::array();
    for (std::size_t i = 0; i < lines.size(); ++i) merges.push_back(checked(lines[i], key, i));
    return merges;
  }

  /// Text and id of a token that the metadata names by its id.
  std::pair<std::string, std::size_t> named(const char* id_key) const {
    const auto id = static_cast<std::size_t>(
        file_.integer(id_key, 0, static_cast<std::int64_t>(texts_.size()) - 1));
    return {checked(texts_[id], tokens_key, id), id};
  }

  /// The same, as a piece of a template.
  Json piece(const char* id_key, Json& tokens) const {
    const auto [name, id] = named(id_key);
    tokens[name] = {{"id", name}, {"ids", {id}}};
    return {{"SpecialToken", {{"id", name}}}};
  }

  Json around(bool add_bos) const {
    Json tokens = Json::object();
    Json single = Json::array();
    if (file_.flag("tokenizer.ggml.add_bos_token", add_bos)) {
      single.push_back(piece("tokenizer.ggml.bos_token_id", tokens));
    }
    single.push_back({{"Sequence", {{"id", "A"}}}});
    if (file_.flag("tokenizer.ggml.add_eos_token", false)) {
      single.push_back(piece("tokenizer.ggml.eos_token_id", tokens));
    }
    return {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}};
  }

  static Json cut(const Style& style) {
    Json stages = Json::array();
    for (const std::string_view pattern : style.patterns) {
      stages.push_back({{"type", "Split"},
                        {"pattern", {{"Regex", pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}});
    }
    stages.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    return {{"type", "Sequence"}, {"pretokenizers", stages}};
  }

  const GgufFile& file_;
  std::vector<std::string_view> texts_;
  std::vector<std::size_t> plain_;  // tokens that are neither bytes nor added
  bool is_pieces_ = false;
  // Gemma's runs of spaces: pieces, as in its own tokenizer.json, though spelled as text here.
  std::vector<std::size_t> spaces_;
  Json vocabulary_ = Json::object();
  Json added_ = Json::array();
};

/// A mark that a template writes, such as <|im_start|>, is one token. Some converters call it plain
/// text, which is cut into other tokens: chats would be answered as if they had no turns. A plain
/// token that no two others make up comes of no text.
void check_marks(const GgufFile& file, std::string_view source) {
  constexpr std::size_t longest = 64;
  const auto texts = file.texts(tokens_key);
  const auto types = file.integers(types_key);
  std::unordered_map<std::string_view, std::size_t> plain;
  for (std::size_t i = 0; i < std::min(texts.size(), types.size()); ++i)
    if (types[i] == plain_token) plain.emplace(texts[i], i);
  for (std::size_t begin = 0; begin < source.size(); ++begin) {
    if (source[begin] != '<' && source[begin] != '[') continue;
    const std::string_view rest = source.substr(begin, longest);
    const std::size_t end = rest.find(source[begin] == '<' ? '>' : ']');
    if (end == rest.npos) continue;
    const std::string_view mark = rest.substr(0, end + 1);
    const auto found = plain.find(mark);
    if (found == plain.end()) continue;
    bool is_made = false;
    for (std::size_t cut = 1; cut < mark.size() && !is_made; ++cut)
      is_made = plain.contains(mark.substr(0, cut)) && plain.contains(mark.substr(cut));
    if (is_made) continue;
    throw FileError(fmt::format(
        "{}: {}[{}] is {} (plain text) for {}, which the chat template writes and no text becomes; "
        "expected {} or {}: convert the model again, or set it with the gguf package",
        path_text(file.path()), types_key, found->second, plain_token, shown_bytes(mark),
        control_token, user_token));
  }
}

}  // namespace

GgufTokenizer tokenizer_of_gguf(const GgufFile& file) { return Translator(file).read(); }

ChatTemplateFiles chat_template_of_gguf(const GgufFile& file) {
  constexpr const char* key = "tokenizer.chat_template";
  if (!file.has(key)) {
    throw FileError(fmt::format(
        "{}: no chat template here: expected {} in its metadata; a model without one is no chat "
        "model: give it a plain prompt",
        path_text(file.path()), key));
  }
  ChatTemplateFiles found{path_text(file.path()), file.text(key), {}};
  if (!file.has(tokens_key)) return found;
  if (file.has(types_key)) check_marks(file, found.source);
  const auto texts = file.texts(tokens_key);
  for (const auto& [name, id_name] : {std::pair{"bos_token", "bos"},
                                      {"eos_token", "eos"},
                                      {"unk_token", "unknown"},
                                      {"pad_token", "padding"}}) {
    const std::string id_key = fmt::format("tokenizer.ggml.{}_token_id", id_name);
    if (!file.has(id_key)) continue;
    const std::int64_t id = file.integer(id_key, 0, static_cast<std::int64_t>(texts.size()) - 1);
    found.special_tokens[name] = replace_invalid_utf8(texts[static_cast<std::size_t>(id)]);
  }
  return found;
}

}  // namespace topkv
