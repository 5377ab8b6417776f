#include "src/text/grammar/json_grammar.h"

#include <fmt/format.h>
#include <support/logging.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// Characters between two parts of an answer. A model that writes nothing but white space comes to
// the next part.
constexpr int most_white_space = 12;

/// What the engine warned of on this thread: it says so of what it leaves out.
thread_local std::string* warnings = nullptr;

xgrammar::CompiledGrammar compiled(const xgrammar::TokenizerInfo& info, const std::string& schema) {
  xgrammar::GrammarCompiler compiler(info, 1, false);
  return compiler.CompileJSONSchema(schema, true, std::nullopt, std::nullopt, true,
                                    most_white_space);
}

struct Vocabulary final : GrammarVocabulary {
  explicit Vocabulary(xgrammar::TokenizerInfo of)
      : info(std::move(of)), any(compiled(info, "{}")) {}
  xgrammar::TokenizerInfo info;
  xgrammar::CompiledGrammar any;  // JSON of any kind
};

/// A text as one grammar sees it.
class Matched {
 public:
  Matched(const xgrammar::CompiledGrammar& grammar, std::int64_t tokens)
      : matcher_(grammar),
        words_(static_cast<std::size_t>(xgrammar::GetBitmaskSize(static_cast<int>(tokens)))) {}

  std::span<std::int32_t> allowed() {
    std::int64_t shape = std::ssize(words_);
    DLTensor tensor{};
    tensor.data = words_.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = &shape;
    matcher_.FillNextTokenBitmask(&tensor);
    return words_;
  }
  bool accept(Token token) { return matcher_.AcceptToken(token); }

 private:
  xgrammar::GrammarMatcher matcher_;
  std::vector<std::int32_t> words_;
};

/// Texts of a schema that are JSON, too: the engine's strings of a length or of a pattern may have
/// control characters as they are.
class State final : public GrammarState {
 public:
  State(const xgrammar::CompiledGrammar& schema, const xgrammar::CompiledGrammar& any,
        std::int64_t tokens)
      : schema_(schema, tokens), any_(any, tokens) {}

  std::span<const std::int32_t> allowed() override {
    const std::span<std::int32_t> words = schema_.allowed();
    const std::span<const std::int32_t> json = any_.allowed();
    bool some = false;
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] &= json[i];
      some = some || words[i] != 0;
    }
    if (some) return words;
    throw InvalidArgument(
        "no token of the vocabulary goes on in the way that the JSON schema asks for; give another "
        "schema");
  }

  void accept(Token token) override {
    if (schema_.accept(token) && any_.accept(token)) return;
    throw InvalidArgument(fmt::format("token {} does not conform to the JSON schema", token));
  }

 private:
  Matched schema_;
  Matched any_;
};

class Grammar final : public JsonGrammar {
 public:
  Grammar(xgrammar::CompiledGrammar of, const Vocabulary& vocabulary)
      : compiled_(std::move(of)), any_(vocabulary.any), tokens_(vocabulary.info.GetVocabSize()) {}
  std::unique_ptr<GrammarState> begin() const override {
    return std::make_unique<State>(compiled_, any_, tokens_);
  }
  std::int64_t bytes() const override {
    return static_cast<std::int64_t>(compiled_.MemorySizeBytes());
  }

 private:
  xgrammar::CompiledGrammar compiled_;
  xgrammar::CompiledGrammar any_;
  std::int64_t tokens_;
};

}  // namespace

std::unique_ptr<const GrammarVocabulary> grammar_vocabulary(const std::vector<std::string>& bytes,
                                                            const std::vector<Token>& ends) {
  return std::make_unique<Vocabulary>(
      xgrammar::TokenizerInfo(bytes, xgrammar::VocabType::RAW, static_cast<int>(bytes.size()),
                              std::vector<std::int32_t>(ends.begin(), ends.end())));
}

std::unique_ptr<const JsonGrammar> compile_json_grammar(const GrammarVocabulary& vocabulary,
                                                        const std::string& schema) {
  const auto& of = static_cast<const Vocabulary&>(vocabulary);
  std::string warned;
  struct Listening {
    explicit Listening(std::string& into) { warnings = &into; }
    ~Listening() { warnings = nullptr; }
    Listening(const Listening&) = delete;
    Listening& operator=(const Listening&) = delete;
  } const listening(warned);
  std::unique_ptr<const JsonGrammar> grammar;
  try {
    grammar = std::make_unique<Grammar>(compiled(of.info, schema), of);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw InvalidArgument("the JSON schema cannot be used: " + printable(error.what()));
  }
  if (!warned.empty())
    throw InvalidArgument("the JSON schema cannot be used: " + printable(warned));
  return grammar;
}

}  // namespace topkv

namespace xgrammar {

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw XGrammarError(message);
}

void LogMessageImpl(const std::string&, int, int, const std::string& message) {
  if (topkv::warnings != nullptr && topkv::warnings->empty()) *topkv::warnings = message;
}

}  // namespace xgrammar
