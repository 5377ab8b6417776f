// The tokenizer and the chat template in a GGUF file's metadata.
#pragma once

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "src/core/format/gguf_file.h"
#include "src/text/files/chat_template_files.h"
#include "topkv/types.h"

namespace topkv {

/// Scores of pieces that may be merged, and merged to; finite.
using PieceScores = std::unordered_map<Token, float>;

struct GgufTokenizer {
  nlohmann::json json;  ///< the tokenizer.json that says the same
  /// Of SentencePiece's pieces: what is merged first, instead of the json's merges. Else empty.
  PieceScores scores;
};

/// Byte-level BPE (tokenizer.ggml.model "gpt2"), whose tokenizer.ggml.pre names how text is cut
/// before it, as llama.cpp knows it; or SentencePiece's BPE ("llama").
/// Throws FileError, Unsupported naming the key and the value.
GgufTokenizer tokenizer_of_gguf(const GgufFile& file);

/// tokenizer.chat_template and the texts of the special tokens. Throws FileError where there is
/// none.
ChatTemplateFiles chat_template_of_gguf(const GgufFile& file);

}  // namespace topkv
