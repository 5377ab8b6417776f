#include "src/model/kept_grammars.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "src/text/grammar/json_schema.h"
#include "topkv/error.h"

namespace topkv {
namespace {

std::unique_ptr<const GrammarVocabulary> vocabulary_of(const Tokenizer& tokenizer,
                                                       const ModelConfig& config) {
  if (config.eos.empty()) {
    throw InvalidArgument(
        "a JSON schema for a model without an end token, whose answers nothing would end; give a "
        "model whose config.json has an eos_token_id");
  }
  std::vector<std::string> bytes(static_cast<std::size_t>(config.vocab_size));
  const auto known = std::min(config.vocab_size, tokenizer.vocab_size());
  for (Token token = 0; token < known; ++token)
    bytes[static_cast<std::size_t>(token)] = tokenizer.bytes_of_token(token);
  return grammar_vocabulary(bytes, config.eos);
}

}  // namespace

std::shared_ptr<const JsonGrammar> KeptGrammars::find(const Tokenizer& tokenizer,
                                                      const ModelConfig& config,
                                                      std::string_view schema) {
  if (auto found = kept(schema)) return found;
  const std::string checked = checked_json_schema(schema);
  const std::lock_guard making(making_);
  if (auto found = kept(schema)) return found;  // another thread made it
  if (!vocabulary_) vocabulary_ = vocabulary_of(tokenizer, config);
  std::shared_ptr<const JsonGrammar> made = compile_json_grammar(*vocabulary_, checked);
  keep(schema, made);
  return made;
}

std::shared_ptr<const JsonGrammar> KeptGrammars::kept(std::string_view schema) {
  const std::lock_guard listing(listing_);
  const auto at = std::ranges::find(kept_, schema, &Kept::schema);
  if (at == kept_.end()) return {};
  kept_.splice(kept_.begin(), kept_, at);
  return at->grammar;
}

void KeptGrammars::keep(std::string_view schema,
                        const std::shared_ptr<const JsonGrammar>& grammar) {
  const std::lock_guard listing(listing_);
  kept_.push_front({std::string(schema), grammar});
  const auto bytes = [&] {
    return std::accumulate(
        kept_.begin(), kept_.end(), std::int64_t{0},
        [](std::int64_t sum, const Kept& one) { return sum + one.grammar->bytes(); });
  };
  while (kept_.size() > most_grammars || (kept_.size() > 1 && bytes() > most_bytes))
    kept_.pop_back();
}

}  // namespace topkv
