// Parts of XGrammar that topkv does not compile: they take a fifth of its time, and no JSON schema
// comes to them.
#include <lark_converter.h>
#include <structural_tag.h>

namespace xgrammar {

Grammar LarkToGrammar(const std::string&, const std::optional<TokenizerInfo>&,
                      const std::vector<NamedGrammar>&) {
  throw XGrammarError("grammars of Lark are not compiled into topkv");
}

Result<Grammar, StructuralTagError> StructuralTagToGrammar(const std::string&,
                                                           const std::optional<TokenizerInfo>&) {
  return ResultErr<StructuralTagError>(
      InvalidStructuralTagError("structural tags are not compiled into topkv"));
}

}  // namespace xgrammar
