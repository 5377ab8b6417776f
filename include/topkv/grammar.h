// Grammars: what the text of an answer conforms to.
//
//     auto grammar = topkv::Grammar::json_schema(model, R"({"type": "object", "properties": …})");
//     auto result = model.generate(session, prompt, {.grammar = grammar});
//     // result.text is JSON that conforms to the schema, if result.ended()
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "topkv/model.h"

namespace topkv {

/// A JSON schema that the text of an answer conforms to (GenerateOptions::grammar). Each token is
/// chosen from the tokens with which the text can still conform, and end tokens only when it does
/// (Dong et al. 2024, "XGrammar").
///
/// It is made once for a model and shared by any number of answers. Threads: immutable, and safe
/// from many.
class Grammar {
 public:
  /// Makes the grammar of a JSON schema for a model, which outlives it.
  /// docs/reference/generation.md lists the keywords and the limits.
  ///
  /// It takes milliseconds to seconds, by schema and vocabulary. The model keeps the latest
  /// grammars, and gives them again for an equal text.
  ///
  /// Throws InvalidArgument for a schema that cannot be used, with the place and the reason, and
  /// for a model without an end token. Throws FileError for a model without a tokenizer. Throws
  /// Unsupported if grammars are not in this build.
  static std::shared_ptr<const Grammar> json_schema(const Model& model, std::string_view schema);
  ~Grammar();
  Grammar(const Grammar&) = delete;  // answers share one by pointer
  Grammar& operator=(const Grammar&) = delete;

  /// Returns the host memory that it takes, in bytes.
  std::int64_t bytes() const;

  struct Impl;               ///< for topkv itself
  const Impl& impl() const;  ///< for topkv itself

 private:
  explicit Grammar(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace topkv
