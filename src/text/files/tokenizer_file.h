// Reads tokenizer.json, as the `tokenizers` library (0.2x) writes it, or a GGUF file's metadata
// into the parts of a Tokenizer.
#pragma once

#include <filesystem>

#include "src/text/files/model_file.h"
#include "src/text/tokens/added_tokens.h"
#include "src/text/tokens/normalizer.h"
#include "src/text/tokens/post_processor.h"
#include "src/text/tokens/pre_tokenizer.h"
#include "src/text/tokens/vocabulary.h"

namespace topkv {

/// Text goes through the parts in this order.
struct TokenizerParts {
  AddedTokens added_raw;         // looked for in the text as it is
  Normalizer normalizer;         // then each part in between is normalized
  AddedTokens added_normalized;  // looked for in normalized text
  PreTokenizer pre_tokenizer;
  TokenModel model;
  TokenTemplate around;
  Vocabulary vocabulary;  // model.vocab and the added tokens
};

/// Throws FileError for what is broken or contradicts itself, Unsupported naming the component for
/// what topkv does not implement; both begin with the path.
TokenizerParts read_tokenizer_file(const std::filesystem::path& file);

}  // namespace topkv
