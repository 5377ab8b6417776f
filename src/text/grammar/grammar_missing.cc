// What stands for src/text/grammar where that is not built (cmake/Grammars.cmake).
#include "src/text/grammar/json_grammar.h"
#include "topkv/error.h"

namespace topkv {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported(
      "JSON schemas are not in this build of topkv: build it where PyPI can be reached, or with -D "
      "TOPKV_XGRAMMAR_DIR= at the sources of XGrammar");
}

}  // namespace

std::unique_ptr<const GrammarVocabulary> grammar_vocabulary(const std::vector<std::string>&,
                                                            const std::vector<Token>&) {
  refuse();
}

std::unique_ptr<const JsonGrammar> compile_json_grammar(const GrammarVocabulary&,
                                                        const std::string&) {
  refuse();
}

}  // namespace topkv
