// The tokenizer and the chat template in a GGUF file's metadata.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "src/core/gguf_file.h"
#include "src/text/chat_template_files.h"

namespace topkv {

/// The tokenizer.json that says the same. Byte-level BPE (tokenizer.ggml.model "gpt2"), whose
/// tokenizer.ggml.pre names how text is cut before it, as llama.cpp knows it.
/// Throws FileError, Unsupported naming the key and the value.
nlohmann::json tokenizer_of_gguf(const GgufFile& file);

/// tokenizer.chat_template and the texts of the special tokens. Throws FileError where there is
/// none.
ChatTemplateFiles chat_template_of_gguf(const GgufFile& file);

}  // namespace topkv
