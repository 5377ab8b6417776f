// The places of files that an answer attended most (--cite).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/commands/answer_stream.h"
#include "src/cli/commands/conversation.h"
#include "src/cli/commands/input.h"
#include "src/cli/flags/answer_flags.h"
#include "src/cli/flags/options.h"
#include "topkv/context_file.h"
#include "topkv/model.h"
#include "topkv/session.h"
#include "topkv/tokenizer.h"

namespace topkv::cli {

/// A line of a file.
struct Citation {
  std::string file;
  std::int64_t line = 0;  ///< from 1 on
  double share = 0;       ///< its part of the attention that the question and answer drew, 0 to 1
  std::string text;       ///< of the line, without spaces around it
};

/// With --cite: throws UsageError for flags and devices with which attention is not measured, and
/// Unsupported for a model of which it cannot be: before a text is read.
void check_cite(const AnswerFlags& answers, const RetrievalFlags& retrieval, const Device& device);
void check_cite(const AnswerFlags& answers, const AttentionShape& shape);

/// Finds the files of a text in the text of its tokens, which may end within it. Empty: the
/// tokenizer or the chat template has changed the text. text: of the files, one behind the other.
std::vector<ContextSource> sources_of(const Tokenizer& tokenizer, std::span<const Token> tokens,
                                      std::string_view text, std::span<const TextFile> files);

/// The lines of the files in a context's text.
class CitedText {
 public:
  static constexpr std::size_t most_citations = 3;

  /// tokenizer: outlives this. tokens: of the context. left: the text of the files behind these
  /// tokens. sources: of both, not empty.
  CitedText(const Tokenizer& tokenizer, std::span<const Token> tokens, std::string_view left,
            std::vector<ContextSource> sources);

  /// Returns the lines that drew most attention, the first one most. A position counts with the
  /// attention that it got beyond twice its part of `neutral`, the attention to a question about
  /// nothing.
  /// attention, neutral: Session::attention_by_position. own: the session's tokens behind the
  /// context; the first of them may be of the files' text, too.
  std::vector<Citation> cite(std::span<const double> attention, std::span<const double> neutral,
                             std::span<const Token> own) const;

 private:
  struct Line {
    std::size_t source = 0;
    std::int64_t number = 0;
    std::size_t begin = 0, end = 0;  // bytes of text_
  };

  void add_lines(std::size_t source);
  std::int64_t line_at(std::size_t place) const;
  void add_place(std::string_view text, std::size_t begin, std::vector<std::int64_t>& lines) const;

  const Tokenizer* tokenizer_;
  std::string text_;            // of the tokens, and what is left of the files
  std::size_t held_bytes_ = 0;  // of the tokens
  std::vector<ContextSource> sources_;
  std::vector<Line> lines_;
  std::vector<std::int64_t> line_of_;  // of each token; -1: it is in no file
};

/// Returns the lines of files whose texts a context was read from, one behind the other. Throws
/// Unsupported where the tokenizer or the chat template has changed the text.
CitedText cited_text(const Tokenizer& tokenizer, std::span<const Token> tokens,
                     std::string_view text, std::span<const TextFile> files);

/// Returns the tokens that ask a question about nothing behind a context, and no other question.
std::vector<Token> neutral_prompt(const Conversation& conversation,
                                  const std::vector<Token>& context);

/// Returns the attention to a question about nothing, which reads `prompt` and answers it shortly.
/// Most positions get attention from any question: what they get here is no sign of a place.
/// options: of the sessions that answer.
std::vector<double> neutral_attention(const Model& model,
                                      const std::shared_ptr<const Context>& context,
                                      RetrievalOptions options, std::span<const Token> prompt);

/// The text of a question about nothing.
inline constexpr const char* neutral_question = "N/A";

/// Prints citations to standard error, a line each, or that there are none.
void print_citations(std::span<const Citation> citations);
/// [{"file": …, "line": …, "share": …, "text": …}, …]
Json json_of(std::span<const Citation> citations);

}  // namespace topkv::cli
