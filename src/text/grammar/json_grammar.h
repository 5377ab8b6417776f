// Which tokens may follow in a text that conforms to a JSON schema.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topkv/types.h"

namespace topkv {

/// How far one text has come. One thread; it may outlive its grammar.
class GrammarState {
 public:
  virtual ~GrammarState() = default;
  /// Returns which tokens may be next: bit t % 32 of word t / 32. It is valid until the next call.
  /// Throws InvalidArgument if there is none, because the vocabulary has no token for it.
  virtual std::span<const std::int32_t> allowed() = 0;
  /// Adds a token. REQUIRES: it was allowed.
  virtual void accept(Token token) = 0;
};

/// The tokens that texts are written in: immutable.
class GrammarVocabulary {
 public:
  virtual ~GrammarVocabulary() = default;
};

/// Makes a vocabulary. bytes: of each token; empty: the token is in no text. ends: tokens that end
/// a text, some. Throws Unsupported if grammars are not built.
std::unique_ptr<const GrammarVocabulary> grammar_vocabulary(const std::vector<std::string>& bytes,
                                                            const std::vector<Token>& ends);

/// A JSON schema for a vocabulary: immutable.
class JsonGrammar {
 public:
  virtual ~JsonGrammar() = default;
  /// Returns the beginning of a text.
  virtual std::unique_ptr<GrammarState> begin() const = 0;
  /// Returns the memory that it takes.
  virtual std::int64_t bytes() const = 0;
};

/// Compiles a schema that check_json_schema has returned. Throws InvalidArgument for what the
/// engine refuses, with its words, and Unsupported if grammars are not built.
std::unique_ptr<const JsonGrammar> compile_json_grammar(const GrammarVocabulary& vocabulary,
                                                        const std::string& schema);

}  // namespace topkv
