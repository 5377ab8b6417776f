// `topkv ask`: prompts over a context that lies in a file, each in a session of its own.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/commands/answer_stream.h"
#include "src/cli/commands/chat_answers.h"
#include "src/cli/commands/citations.h"
#include "src/cli/commands/device_report.h"
#include "src/cli/commands/input.h"
#include "src/cli/commands/load_context.h"
#include "src/cli/commands/load_model.h"
#include "src/cli/commands/prefill_step.h"
#include "src/cli/flags/answer_flags.h"
#include "src/cli/flags/bind.h"
#include "src/cli/flags/options.h"
#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/progress_bar.h"
#include "src/cli/terminal/report.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/memory/memory.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "src/core/threads/stopwatch.h"
#include "src/serve/run/prompt_boundary.h"
#include "topkv/context_file.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

struct AskFlags {
  ModelFlags model;
  RetrievalFlags retrieval;
  AnswerFlags answers;
  TemplateFlags variables;
  std::string file;
  std::vector<std::string> prompts;
  PrefillFlags prefill;  // of turns, and the memory of rows
  std::optional<std::int64_t> length;
  bool mapped = false;
};

/// How questions of many tokens are read.
std::optional<PrefillAttention> turns_of(const AskFlags& flags) {
  return turn_attention(flags.prefill, flags.retrieval.sinks);
}

void check_flags(const AskFlags& flags) {
  check_flags(flags.retrieval, flags.prefill);
  check_flags(flags.answers);
  template_variables(flags.variables);
}

/// A model, and a context that it read.
class Asking {
 public:
  Asking(const AskFlags& flags, const Model& model, LoadedContext loaded,
         std::optional<ChatTemplate> chat, std::shared_ptr<const DraftModel> drafts,
         ProgressBar& progress)
      : flags_(flags),
        model_(model),
        loaded_(std::move(loaded)),
        chat_(std::move(chat)),
        drafts_(std::move(drafts)),
        grammar_(answer_grammar(flags.answers, model)),
        progress_(progress) {
    if (flags.answers.cite)
      cited_.emplace(model.tokenizer(), loaded_.origin.tokens, loaded_.origin.end.text_left,
                     loaded_.origin.sources);
  }

  /// Each by itself, in joint steps; answers in the order of the prompts. Throws Interrupted where
  /// the user has asked to stop while prompts are read.
  void ask(std::span<const std::string> prompts) {
    std::vector<std::vector<Token>> tokens;
    for (const std::string& prompt : prompts) tokens.push_back(tokens_of(prompt));
    answer(prompts, std::move(tokens));
  }

  /// Likewise lines of standard input, up to one that cannot be asked: its error comes then.
  void ask_lines(std::span<const std::string> lines) {
    std::vector<std::vector<Token>> tokens;
    std::exception_ptr refused;
    try {
      for (const std::string& line : lines) {
        check_utf8("standard input", line);
        tokens.push_back(tokens_of(line));
      }
    } catch (const std::exception&) {
      refused = std::current_exception();
    }
    const std::span<const std::string> asked = lines.first(tokens.size());
    answer(asked, std::move(tokens));
    if (refused && !interrupted()) std::rethrow_exception(refused);
  }

 private:
  static constexpr std::size_t most_together = 16;

  std::vector<Token> tokens_of(const std::string& prompt) const {
    std::vector<Token> tokens =
        serve::tokens_of_prompt(model_.tokenizer(), loaded_.origin.end, chat_, prompt,
                                template_variables(flags_.variables));
    if (tokens.empty()) throw InvalidArgument("the prompt has no tokens; give it some text");
    model_.check_reach(loaded_.context->tokens() + std::ssize(tokens) + flags_.answers.predict);
    return tokens;
  }

  void answer(std::span<const std::string> prompts, std::vector<std::vector<Token>> tokens) {
    while (!prompts.empty() && !interrupted()) {
      const std::size_t asked = ask_together(prompts, tokens);
      prompts = prompts.subspan(asked);
      tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(asked));
    }
  }

  /// Asks as many of the first as there is memory for; gives how many.
  std::size_t ask_together(std::span<const std::string> prompts,
                           std::span<const std::vector<Token>> tokens) {
    const std::int64_t most = flags_.answers.predict;
    std::vector<Session> sessions;
    sessions.reserve(most_together);  // they stay where they are
    // Of host memory none has taken its own yet when the next one looks at what is free.
    const AttentionShape& shape = loaded_.context->shape();
    const std::int64_t token_bytes = shape.bytes_per_token(loaded_.context->dtype());
    std::int64_t left = available_host_memory();
    while (sessions.size() < std::min(most_together, prompts.size())) {
      const std::int64_t own = std::ssize(tokens[sessions.size()]) + most + 1;
      if (!sessions.empty() && own > left / token_bytes) break;
      try {
        RetrievalOptions options =
            retrieval_options(flags_.retrieval, model_.config().attention.layers,
                              flags_.retrieval.indices.front(), own);
        options.turns = turns_of(flags_);
        options.measure_attention = flags_.answers.cite;
        if (!sessions.empty()) options.memory_budget = left;
        sessions.emplace_back(loaded_.context, std::move(options), model_.device());
      } catch (const OutOfMemory&) {
        if (sessions.empty()) throw;
        break;  // the others are asked after these
      }
      left -= own * token_bytes;
    }
    const std::size_t count = sessions.size();
    std::vector<Session*> each;
    for (Session& session : sessions) each.push_back(&session);
    std::vector<AnswerStream> streams;
    for (std::size_t i = 0; i < count; ++i)
      streams.emplace_back(flags_.answers.json ? AnswerStream::Shown::as_events
                           : i == 0            ? AnswerStream::Shown::at_once
                                               : AnswerStream::Shown::at_end,
                           answered_ + static_cast<std::int64_t>(i));
    const Stopwatch watch;
    std::vector<double> first_token(count);
    TokenLogprobs logprobs = {.chosen = {.token = -1}, .top = {}};
    GenerateOptions options = generate_options(flags_.answers, model_.config().sampling);
    options.draft_model = drafts_;
    options.grammar = grammar_;
    if (options.sampling.repetition_penalty != 1) options.before = loaded_.origin.tokens;
    if (chat_) {
      const ChatAnswers answers(*chat_, model_.tokenizer());
      answers.prepare(options);
      for (std::size_t i = 0; i < count; ++i)
        answers.divide(streams[i], tokens[i], flags_.answers.quiet);
    }
    options.progress = progress_.brief_callback("prompt");
    if (options.logprobs >= 0) {
      // Told just before the token that they are of.
      options.on_logprobs = [&](const TokenLogprobs& of) { logprobs = of; };
    }
    const std::vector<GenerateResult> results = model_.generate_together(
        each, tokens.first(count), options,
        [&](std::size_t i, Token token) {
          if (first_token[i] == 0) first_token[i] = watch.seconds();
          streams[i].take(logprobs);
          return streams[i].take(token);
        },
        [&](std::size_t i, std::string_view piece) { return streams[i].take(piece); });
    for (std::size_t i = 0; i < count; ++i) {
      streams[i].finish();
      print_figures(prompts[i], tokens[i], results[i], streams[i], first_token[i], sessions[i]);
    }
    return count;
  }

  /// own: the tokens that the session read first.
  std::vector<Citation> citations(const Session& session, std::span<const Token> own) {
    if (!cited_) return {};
    if (neutral_.empty()) {
      RetrievalOptions options = session.options();
      options.memory_budget = 0;
      neutral_ = neutral_attention(model_, loaded_.context, std::move(options),
                                   tokens_of(neutral_question));
    }
    return cited_->cite(session.attention_by_position(), neutral_, own);
  }

  void print_figures(const std::string& prompt, std::span<const Token> tokens,
                     const GenerateResult& result, const AnswerStream& stream, double first_token,
                     const Session& session) {
    const std::vector<PrefillShare> turns = session.turn_shares();
    const std::vector<Citation> places = citations(session, tokens);
    const auto read = std::ssize(tokens);
    const auto count = static_cast<std::int64_t>(result.tokens.size());
    const double rate =
        result.decode_seconds > 0 ? static_cast<double>(result.steps) / result.decode_seconds : 0;
    const std::int64_t number = answered_++;
    if (flags_.answers.json) {
      Json json;
      json["event"] = "answer";
      json["answer"] = number;
      json["prompt"] = prompt;
      json["text"] = stream.content();
      if (!stream.reasoning().empty()) json["reasoning"] = stream.reasoning();
      json["tokens"] = result.tokens;
      json["finish"] = name_of(result.finish);
      json["context_tokens"] = loaded_.context->tokens();
      json["prompt_tokens"] = read;
      add_turn(json, turns);
      json["generated_tokens"] = count;
      json["first_token_seconds"] = first_token;
      json["decode_tokens_per_second"] = rate > 0 ? Json(rate) : Json(nullptr);
      add_drafts(json, result);
      if (cited_) json["citations"] = json_of(places);
      print_event(json);
      return;
    }
    if (cited_) print_citations(places);
    if (flags_.answers.quiet) return;
    fmt::print(stderr, "[{} tokens read, first answered after {}, {} answered, {}/s]\n",
               format_grouped(read), format_seconds(first_token), format_grouped(count),
               format_rate(rate));
    if (const std::string attended = attended_text(turns); !attended.empty())
      fmt::print(stderr, "[turn: sparse, {}]\n", attended);
  }

  const AskFlags& flags_;
  const Model& model_;
  LoadedContext loaded_;
  std::optional<ChatTemplate> chat_;
  std::shared_ptr<const DraftModel> drafts_;
  std::shared_ptr<const Grammar> grammar_;  // null: any text
  ProgressBar& progress_;
  std::optional<CitedText> cited_;  // with --cite
  std::vector<double> neutral_;     // neutral_attention; empty: not measured yet
  std::int64_t answered_ = 0;       // prompts
};

int run_ask(AskFlags flags) {
  check_flags(flags);
  const ContextFileInfo info = context_file_info(flags.file);
  name_index_of_file(flags.retrieval, info);
  check_asked(flags.file, info, flags.retrieval);
  check_model(flags.model, flags.retrieval);
  if (!info.end.chat && !flags.variables.variables.empty())
    throw UsageError(
        "--template-arg: the context is a plain text without a chat template; leave the flag out");
  const Device device = open_device(flags.model);
  check_cite(flags.answers, flags.retrieval, device);
  check_cite(flags.answers, info.shape);
  catch_interrupts();
  const ThreadLimit threads(flags.model);
  ProgressBar progress = stderr_progress();
  if (flags.answers.quiet) progress.hush();
  const Model model =
      load_model(flags.model, device, flags.prefill, flags.retrieval, progress,
                 flags.length.value_or(info.length), turns_of(flags), flags.answers.drafts);
  const std::string own = model.fingerprint();
  check_model_of(flags.file, info.model, info.made_with, own, flags.model);
  // Another model may have no chat template, so the error says first that it is another one.
  std::optional<ChatTemplate> chat;
  if (info.end.chat) chat = ChatTemplate::load(flags.model.directory);
  const double penalty =
      generate_options(flags.answers, model.config().sampling).sampling.repetition_penalty;
  if (penalty != 1 && !info.has_token_ids) {
    throw FileError(
        fmt::format("{}: has no token ids for the repetition penalty of {} to count; give "
                    "--repetition-penalty 1, or a file that topkv prefill wrote",
                    printable(flags.file), penalty));
  }
  LoadedContext loaded = load_asked({.file = flags.file,
                                     .mapped = flags.mapped,
                                     .memory = flags.prefill.memory.value_or(0),
                                     .quiet = flags.answers.quiet},
                                    info, flags.model, flags.retrieval, own, device, progress);
  check_ids(flags.file, loaded.origin.tokens, model.config().vocab_size);
  if (flags.answers.cite && loaded.origin.sources.empty()) {
    throw FileError(fmt::format(
        "{}: does not name the files of its text, as files of earlier versions do not, and files "
        "of texts that the tokenizer or the chat template changes; leave --cite out, or read the "
        "text again with topkv prefill, which warns of such a text",
        printable(flags.file)));
  }
  Asking asking(flags, model, std::move(loaded), std::move(chat),
                load_draft_model(flags.answers.drafts, model, progress), progress);
  stop_if_interrupted();
  asking.ask(flags.prompts);
  if (!flags.prompts.empty()) return interrupted() ? interrupted_status() : 0;
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  bool asked = false;
  while (const std::optional<std::string> line = next_line(terminal)) {
    // Those that are there by now are asked together: who waits for an answer gets it.
    std::vector<std::string> lines = {*line};
    while (!terminal && lines.size() < 1024 && line_waits()) {
      const std::optional<std::string> more = next_line(false);
      if (!more) break;
      lines.push_back(*more);
    }
    std::erase_if(
        lines, [](const std::string& one) { return one.find_first_not_of(" \t\r") == one.npos; });
    asked = asked || !lines.empty();
    try {
      asking.ask_lines(lines);
    } catch (const Interrupted&) {
      if (!terminal) throw;
      progress.finish();
      fmt::print(stderr, "[interrupted: the question was not answered]\n");
    }
    if (!terminal && interrupted()) return interrupted_status();
    forget_interrupt();
  }
  if (!asked && !terminal)
    print_warning("nothing was asked: there is no -p, and no line with text on standard input");
  return 0;
}

}  // namespace

Run add_ask(CLI::App& app) {
  const auto flags = std::make_shared<AskFlags>();
  FlagBinder bind(*add_command(app, "ask"));
  bind.operand(flags->file);
  bind.all(flags->model, flags->retrieval, flags->prefill, flags->answers, flags->variables);
  bind("--indexer", flags->retrieval.indexer);
  bind("--prompt", flags->prompts);
  bind("--mmap", flags->mapped);
  bind("--length", flags->length);
  return [flags] { return run_ask(*flags); };
}

}  // namespace topkv::cli
