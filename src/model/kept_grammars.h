// The latest grammars of a model: clients ask for one schema again and again.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "src/text/grammar/json_grammar.h"
#include "topkv/model.h"
#include "topkv/tokenizer.h"

namespace topkv {

/// Safe from many threads.
class KeptGrammars {
 public:
  /// Returns the grammar of a schema. It is made unless it is kept: one at a time, while others are
  /// found. Throws as Grammar::json_schema does.
  std::shared_ptr<const JsonGrammar> find(const Tokenizer& tokenizer, const ModelConfig& config,
                                          std::string_view schema);

 private:
  static constexpr std::int64_t most_bytes = std::int64_t{256} << 20;
  static constexpr std::size_t most_grammars = 64;

  struct Kept {
    std::string schema;
    std::shared_ptr<const JsonGrammar> grammar;
  };
  /// Null: it is not kept.
  std::shared_ptr<const JsonGrammar> kept(std::string_view schema);
  void keep(std::string_view schema, const std::shared_ptr<const JsonGrammar>& grammar);

  std::mutex making_;
  std::unique_ptr<const GrammarVocabulary> vocabulary_;  // from the first grammar on
  std::mutex listing_;
  std::list<Kept> kept_;  // the latest first
};

}  // namespace topkv
