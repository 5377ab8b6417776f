// Reads the "model" of a tokenizer.json: BPE or Unigram, and its vocabulary.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <variant>

#include "src/core/format/json_file.h"
#include "src/text/files/gguf_tokenizer.h"
#include "src/text/tokens/bpe.h"
#include "src/text/tokens/unigram.h"
#include "src/text/tokens/vocabulary.h"

namespace topkv {

using TokenModel = std::variant<Bpe, Unigram>;

/// Fills the vocabulary, which says how contents are spelled. scores: of the tokens, which say what
/// is merged first instead of model.merges; null: none. Throws FileError, or Unsupported naming the
/// key; both begin with `file`.
Bpe read_bpe(const JsonObject& model, const std::filesystem::path& file, const PieceScores* scores,
             Vocabulary& vocabulary);

/// Likewise. REQUIRES: the vocabulary is spelled in pieces; scores were read as serde_json does.
Unigram read_unigram(const JsonObject& model, const std::filesystem::path& file,
                     Vocabulary& vocabulary);

/// Throws FileError for a token of more than 8192 bytes: long ones are no harm by themselves, but a
/// few of their ids would decode to any amount.
void check_token_length(const std::filesystem::path& file, const std::string& content,
                        std::string_view where);

}  // namespace topkv
