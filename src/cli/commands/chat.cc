// `topkv chat`: a conversation over files, which are read once into a context. The session over it
// holds the turns; where a template rewrites earlier ones, what is no longer so is forgotten.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "src/cli/commands.h"
#include "src/cli/commands/answer_stream.h"
#include "src/cli/commands/chat_answers.h"
#include "src/cli/commands/citations.h"
#include "src/cli/commands/conversation.h"
#include "src/cli/commands/device_report.h"
#include "src/cli/commands/input.h"
#include "src/cli/commands/load_model.h"
#include "src/cli/commands/prefill_step.h"
#include "src/cli/flags/answer_flags.h"
#include "src/cli/flags/bind.h"
#include "src/cli/flags/options.h"
#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/progress_bar.h"
#include "src/cli/terminal/report.h"
#include "src/core/io/files.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/common_tokens.h"
#include "src/core/text/format_numbers.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

struct ChatFlags {
  ModelFlags model;
  RetrievalFlags retrieval;
  PrefillFlags prefill;
  AnswerFlags answers;
  TemplateFlags variables;
  std::string system;
  std::int64_t room = 0;
  std::vector<std::string> files;
};

void check_flags(const ChatFlags& flags) {
  check_flags(flags.retrieval, flags.prefill);
  check_flags(flags.answers);
  template_variables(flags.variables);
  if (flags.answers.cite && flags.files.empty())
    throw UsageError("--cite: there are no files to cite; give -f, or leave it out");
  for (const std::string& file : flags.files) {
    if (file == "-") throw UsageError("--file: '-' is standard input, where questions come from");
    check_readable(file);
  }
}

/// The model at work: a context, and a session over it that holds the turns so far.
class Chat {
 public:
  /// text: of the files, one behind the other.
  Chat(const ChatFlags& flags, const Model& model, std::string text, std::vector<TextFile> files,
       Conversation conversation, ChatAnswers answers, std::shared_ptr<const DraftModel> drafts,
       ProgressBar& progress)
      : flags_(flags),
        model_(model),
        text_(std::move(text)),
        files_(std::move(files)),
        conversation_(std::move(conversation)),
        answers_(std::move(answers)),
        drafts_(std::move(drafts)),
        grammar_(answer_grammar(flags.answers, model)),
        progress_(progress) {
    read(conversation_.before_questions());
  }

  /// Prints the answer as it comes. False, and told, where there is no room for the question, or
  /// the user has asked to stop before there is an answer: then the conversation is as before.
  bool ask(const std::string& question) {
    const std::vector<Token> asked = conversation_.ask(question);
    std::size_t same = std::min(common_tokens(held_, asked), asked.size() - 1);
    auto frozen = static_cast<std::size_t>(session_->context().tokens());
    if (same < frozen) {
      read_again(asked, frozen);
      same = held_.size();
      frozen = same;
    }
    // A recurrent state goes back to a snapshot.
    same = frozen +
           static_cast<std::size_t>(session_->reachable(static_cast<std::int64_t>(same - frozen)));
    session_->truncate(static_cast<std::int64_t>(same - frozen));
    const std::span<const Token> prompt = std::span(asked).subspan(same);
    const std::int64_t room =
        flags_.room - session_->own_tokens() - static_cast<std::int64_t>(prompt.size());
    if (room < 1) {
      held_.resize(same);
      conversation_.forget_question();
      progress_.note(warning_line(fmt::format(
          "the question was skipped: with it the conversation takes {} tokens beside the files, "
          "and --room allows {}, with an answer; ask something shorter, or start again with a "
          "larger --room",
          format_grouped(flags_.room - room), format_grouped(flags_.room))));
      return false;
    }
    try {
      answer(asked, prompt, std::min(room, flags_.answers.predict));
    } catch (const Interrupted&) {
      held_.resize(same);
      conversation_.forget_question();
      progress_.finish();
      fmt::print(stderr, "[interrupted: the question was not answered]\n");
      return false;
    }
    return true;
  }

 private:
  void read(const std::vector<Token>& tokens) {
    const ModelConfig& config = model_.config();
    const auto count = static_cast<std::int64_t>(tokens.size());
    try {
      check_rows(config.attention, count + flags_.room,
                 prefill_options(flags_.prefill, flags_.retrieval));
    } catch (const OutOfMemory& error) {
      throw OutOfMemory(
          fmt::format("host memory for the KV rows of {} tokens of the files and {} of --room",
                      format_grouped(count), format_grouped(flags_.room)),
          error.wanted_bytes(), error.available_bytes(),
          fmt::format("give a smaller --room{}, {}", count > 0 ? " or shorter files" : "",
                      flags_.prefill.memory ? "or raise --mem" : "or free memory"));
    }
    check_indices(flags_.retrieval, config, count);
    check_indices(model_.device(), config.attention, flags_.retrieval, count);
    if (flags_.answers.cite) cite(tokens);
    session_.reset();  // and the context before it, whose rows may take all there is
    context_.reset();
    const Prefilled prefilled =
        prefill(model_, flags_.retrieval, flags_.prefill, tokens, progress_);
    RetrievalOptions options = retrieval_options(flags_.retrieval, config.attention.layers,
                                                 flags_.retrieval.indices.front(), flags_.room);
    options.turns = turn_attention(flags_.prefill, flags_.retrieval.sinks);
    options.measure_attention = flags_.answers.cite;
    context_ = prefilled.context;
    session_.emplace(context_, std::move(options), model_.device());
    held_ = tokens;
    if (count == 0 || flags_.answers.quiet) return;
    fmt::print(stderr, "context    {} tokens in {}, {} of rows\n", format_grouped(count),
               format_seconds(prefilled.seconds + prefilled.times.indexing),
               byte_text(prefilled.context->memory().rows_bytes));
    fmt::print(stderr, "prefill    {}\n", reading_text(prefilled.attention, prefilled.shares));
  }

  /// Finds the lines of the files in a context of these tokens. In a context that is read in place
  /// of another they may be lost: answers have no citations from then on.
  void cite(const std::vector<Token>& tokens) {
    cited_.reset();
    neutral_.clear();
    try {
      cited_ = cited_text(model_.tokenizer(), tokens, text_, files_);
      neutral_prompt_ = neutral_prompt(conversation_, tokens);
    } catch (const Unsupported&) {
      if (!context_) throw;
      progress_.note(warning_line(
          "the chat template moves the text of the files out of the context: answers have no "
          "citations from now on"));
    }
  }

  /// A template that moves or rewrites what the context was made of.
  void read_again(const std::vector<Token>& asked, std::size_t frozen) {
    const std::size_t lasts = std::min(conversation_.lasting(asked), asked.size() - 1);
    progress_.note(warning_line(
        fmt::format("the chat template changes the text of the files or the text before it for "
                    "this question: a context of {} tokens is read in place of the one of {}",
                    format_grouped(static_cast<std::int64_t>(lasts)),
                    format_grouped(static_cast<std::int64_t>(frozen)))));
    read({asked.begin(), asked.begin() + static_cast<std::ptrdiff_t>(lasts)});
  }

  void answer(const std::vector<Token>& asked, std::span<const Token> prompt, std::int64_t most) {
    AnswerStream stream(
        flags_.answers.json ? AnswerStream::Shown::as_events : AnswerStream::Shown::at_once,
        answered_);
    GenerateOptions options = generate_options(flags_.answers, model_.config().sampling);
    options.max_tokens = most;
    options.draft_model = drafts_;
    options.grammar = grammar_;
    options.progress = progress_.brief_callback("prompt");
    options.before.assign(asked.begin(), asked.end() - std::ssize(prompt));
    answers_.prepare(options);
    answers_.divide(stream, asked, flags_.answers.quiet);
    if (options.logprobs >= 0)
      options.on_logprobs = [&](const TokenLogprobs& of) { stream.take(of); };
    const GenerateResult result = model_.generate(
        *session_, prompt, options, [&](Token token) { return stream.take(token); },
        [&](std::string_view piece) { return stream.take(piece); });
    stream.finish();
    // The session has all of it but the token chosen last.
    held_ = asked;
    held_.insert(held_.end(), result.tokens.begin(), result.tokens.end());
    held_.resize(static_cast<std::size_t>(session_->tokens()));
    conversation_.answer(result.finish == Finish::stop_text || !answers_.plain()
                             ? stream.content()
                             : model_.tokenizer().decode(result.tokens));
    const auto count = static_cast<std::int64_t>(result.tokens.size());
    const std::vector<Citation> places = citations();
    if (!flags_.answers.json && cited_) print_citations(places);
    if (flags_.answers.json) {
      Json json;
      json["event"] = "answer";
      json["answer"] = answered_;
      json["text"] = stream.content();
      if (!stream.reasoning().empty()) json["reasoning"] = stream.reasoning();
      json["tokens"] = result.tokens;
      json["finish"] = name_of(result.finish);
      json["prompt_tokens"] = prompt.size();
      json["prompt_seconds"] = result.prompt_seconds;
      json["generated_tokens"] = count;
      json["decode_seconds"] = result.decode_seconds;
      add_drafts(json, result);
      json["conversation_tokens"] = session_->tokens();
      if (cited_) json["citations"] = json_of(places);
      print_event(json);
    }
    ++answered_;
    if (flags_.answers.quiet || flags_.answers.json) return;
    fmt::print(stderr, "[{} tokens read, {} answered, {}/s, {} in all{}]\n",
               format_grouped(static_cast<std::int64_t>(prompt.size())), format_grouped(count),
               format_rate(result.decode_seconds > 0
                               ? static_cast<double>(result.steps) / result.decode_seconds
                               : 0),
               format_grouped(session_->tokens()),
               result.ended()                       ? ""
               : interrupted()                      ? ", interrupted"
               : result.finish == Finish::stop_text ? ", ended by a stop text"
               : count < most                       ? ""
               : most == flags_.answers.predict     ? ", cut off: -n allows no more"
                                                    : ", cut off: --room allows no more");
    print_turns(std::ssize(prompt));
  }

  /// Prints what the turns of the session attended, once a question was a turn.
  void print_turns(std::int64_t prompt) const {
    if (prompt < least_turn_tokens) return;
    if (const std::string attended = attended_text(session_->turn_shares()); !attended.empty())
      fmt::print(stderr, "[turns so far: sparse, {}]\n", attended);
  }

  /// Returns the places of the last answer. Each question begins anew.
  std::vector<Citation> citations() {
    if (!cited_) return {};
    if (neutral_.empty()) {
      RetrievalOptions options = session_->options();
      neutral_ = neutral_attention(model_, context_, std::move(options), neutral_prompt_);
    }
    std::vector<Citation> places =
        cited_->cite(session_->attention_by_position(), neutral_,
                     std::span(held_).subspan(static_cast<std::size_t>(context_->tokens())));
    session_->reset_attention();
    return places;
  }

  const ChatFlags& flags_;
  const Model& model_;
  const std::string text_;
  const std::vector<TextFile> files_;
  Conversation conversation_;
  ChatAnswers answers_;
  std::shared_ptr<const DraftModel> drafts_;
  std::shared_ptr<const Grammar> grammar_;  // null: any text
  ProgressBar& progress_;
  std::shared_ptr<const Context> context_;
  std::optional<Session> session_;
  // With --cite.
  std::optional<CitedText> cited_;
  std::vector<Token> neutral_prompt_;
  std::vector<double> neutral_;  // neutral_attention of the context; empty: not measured yet
  std::int64_t answered_ = 0;    // questions
  std::vector<Token> held_;      // tokens of the context, then of the session
};

int run_chat(ChatFlags flags) {
  check_flags(flags);
  check_model(flags.model, flags.retrieval);
  ChatTemplate chat_template = ChatTemplate::load(flags.model.directory);
  const Device device = open_device(flags.model);
  check_cite(flags.answers, flags.retrieval, device);
  std::vector<TextFile> files;
  const std::string text = text_of_files(flags.files, &files);
  catch_interrupts();
  const ThreadLimit threads(flags.model);
  ProgressBar progress = stderr_progress();
  if (flags.answers.quiet) progress.hush();
  const Model model =
      load_model(flags.model, device, flags.prefill, flags.retrieval, progress, 0,
                 turn_attention(flags.prefill, flags.retrieval.sinks), flags.answers.drafts);
  check_cite(flags.answers, model.config().attention);
  ChatAnswers answers(chat_template, model.tokenizer());
  Chat chat(flags, model, text, std::move(files),
            Conversation(std::move(chat_template), model.tokenizer(), flags.system, text,
                         template_variables(flags.variables)),
            std::move(answers), load_draft_model(flags.answers.drafts, model, progress), progress);
  const bool prompts = ::isatty(STDIN_FILENO) != 0;
  bool all_asked = true;
  bool any_asked = false;
  while (const std::optional<std::string> question = next_line(prompts)) {
    if (question->find_first_not_of(" \t\r") == std::string::npos) continue;
    any_asked = true;
    all_asked = chat.ask(*question) && all_asked;
    forget_interrupt();
  }
  if (!any_asked && !prompts)
    print_warning("nothing was asked: there is no line with text on standard input");
  return all_asked || prompts ? 0 : 1;  // in a pipe nobody sees what was told
}

}  // namespace

Run add_chat(CLI::App& app) {
  const auto flags = std::make_shared<ChatFlags>();
  FlagBinder bind(*add_command(app, "chat"));
  bind.all(flags->model, flags->retrieval, flags->prefill, flags->answers, flags->variables);
  bind("--file", flags->files);
  bind("--system", flags->system);
  bind("--room", flags->room);
  return [flags] { return run_chat(*flags); };
}

}  // namespace topkv::cli
