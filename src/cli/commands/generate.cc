// `topkv generate`: a prompt, over an empty context or over files.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/commands/answer_samples.h"
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
#include "src/cli/terminal/profile.h"
#include "src/cli/terminal/progress_bar.h"
#include "src/cli/terminal/report.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/io/files.h"
#include "src/core/memory/peak_memory.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/common_tokens.h"
#include "src/core/text/format_numbers.h"
#include "topkv/error.h"
#include "topkv/generation.h"

namespace topkv::cli {
namespace {

struct GenerateFlags {
  ModelFlags model;
  RetrievalFlags retrieval;
  PrefillFlags prefill;
  AnswerFlags answers;
  TemplateFlags variables;
  std::int64_t samples = 0;
  std::string prompt;  // empty: the files alone are continued
  std::vector<std::string> files;
  bool chat = false;
  std::string system;
  std::optional<std::int64_t> length;  // not set: the model's reach
  bool profile = false;
};

/// A text as the model reads it: the context's tokens, and those of the prompt behind it.
struct Reading {
  std::vector<Token> context;  // empty: none
  std::vector<Token> prompt;
};

void check_flags(const GenerateFlags& flags) {
  check_flags(flags.retrieval, flags.prefill);
  check_flags(flags.answers);
  if (flags.prompt.empty() && flags.files.empty()) {
    throw UsageError(
        "--prompt is missing; expected a text to continue, or -f with a file of it (- is standard "
        "input)");
  }
  if (!flags.system.empty() && !flags.chat) {
    throw UsageError("--system: a plain prompt has no system message; add --chat");
  }
  if (!template_variables(flags.variables).empty() && !flags.chat) {
    throw UsageError("--template-arg: a plain prompt has no chat template; add --chat");
  }
  if (flags.answers.cite && flags.files.empty())
    throw UsageError("--cite: there are no files to cite; give -f, or leave it out");
  if (flags.answers.cite && flags.samples > 1)
    throw UsageError("--cite: cites one answer; leave --samples out");
  if (std::count(flags.files.begin(), flags.files.end(), "-") > 1) {
    throw UsageError("--file: '-' is given twice; standard input can be read once");
  }
}

// The tokens are those of files and prompt as one text. Where tokens join the two, as in ".\n",
// they belong to the prompt.
Reading read(const Tokenizer& tokenizer, const std::string& text, const std::string& prompt) {
  Reading reading;
  reading.prompt = tokenizer.encode(text + prompt);
  if (!text.empty()) {
    const std::vector<Token> alone = tokenizer.encode(text);
    const auto border =
        std::mismatch(alone.begin(), alone.end(), reading.prompt.begin(), reading.prompt.end())
            .second;
    // A prompt that adds nothing (there is none, or a tokenizer drops it) still needs a token to
    // start.
    const auto end =
        border == reading.prompt.end() && border != reading.prompt.begin() ? border - 1 : border;
    reading.context.assign(reading.prompt.begin(), end);
    reading.prompt.erase(reading.prompt.begin(), end);
  }
  const std::vector<Token> beginning = tokenizer.beginning_tokens();
  std::vector<Token>& first = reading.context.empty() ? reading.prompt : reading.context;
  first.insert(first.begin(), beginning.begin(), beginning.end());
  return reading;
}

// The files are in the question: the context ends where a question may begin.
Reading read(Conversation& conversation, const std::string& prompt) {
  const std::vector<Token> before = conversation.before_questions();
  Reading reading;
  reading.prompt = conversation.ask(prompt);
  const std::size_t same =
      std::min(common_tokens(before, reading.prompt), reading.prompt.size() - 1);
  const auto border = reading.prompt.begin() + static_cast<std::ptrdiff_t>(same);
  reading.context.assign(reading.prompt.begin(), border);
  reading.prompt.erase(reading.prompt.begin(), border);
  return reading;
}

double rate(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

// null where nothing was measured
Json json_rate(std::int64_t count, double seconds) {
  return count > 0 && seconds > 0 ? Json(rate(count, seconds)) : Json(nullptr);
}

struct Figures {
  SamplingOptions sampling;
  std::string index, tail_spec;  // of the session
  std::int64_t prompt_tokens = 0;
  double rows_per_head = 0;
  bool ruled = false;         // by --kv-mass or --kv-error
  bool sampled = false;       // by --kv-guarantee
  double sampled_rows = 0;    // the part of rows_per_head
  double retrieved_more = 0;  // share of steps, layers and query heads
  double went_dense = 0;
  std::int64_t coded_tokens = 0;         // of the session's own
  TailFigures tail;                      // of all layers
  std::vector<PrefillShare> turns = {};  // what the prompt attended, if it is read as a turn
  ContextMemory memory;
};

void print_json(const Model& model, const Prefilled& prefilled, const GenerateResult& result,
                const AnswerStream& stream, const Figures& figures, const std::string& prompt,
                std::size_t number, const std::vector<Citation>* citations) {
  const auto generated = static_cast<std::int64_t>(result.tokens.size());
  Json json;
  json["event"] = "answer";
  json["answer"] = number;
  json["prompt"] = prompt;
  json["text"] = stream.content();
  if (!stream.reasoning().empty()) json["reasoning"] = stream.reasoning();
  json["tokens"] = result.tokens;
  json["finish"] = name_of(result.finish);
  json["context_tokens"] = prefilled.context->tokens();
  json["prefill_seconds"] = prefilled.seconds;
  json["prefill_tokens_per_second"] = json_rate(prefilled.context->tokens(), prefilled.seconds);
  add_attended(json, prefilled);
  add_turn(json, figures.turns);
  json["prompt_tokens"] = figures.prompt_tokens;
  json["prompt_seconds"] = result.prompt_seconds;
  json["generated_tokens"] = generated;
  json["decode_seconds"] = result.decode_seconds;
  json["decode_tokens_per_second"] = json_rate(result.steps, result.decode_seconds);
  add_drafts(json, result);
  json["temperature"] = figures.sampling.temperature;
  json["top_k"] = figures.sampling.top_k;
  json["top_p"] = figures.sampling.top_p;
  json["min_p"] = figures.sampling.min_p;
  json["repetition_penalty"] = figures.sampling.repetition_penalty;
  json["frequency_penalty"] = figures.sampling.frequency_penalty;
  json["presence_penalty"] = figures.sampling.presence_penalty;
  json["seed"] = figures.sampling.seed + number;
  json["rows_per_head"] = figures.rows_per_head;
  json["retrieved_more"] = figures.ruled ? Json(figures.retrieved_more) : Json(nullptr);
  json["went_dense"] = figures.ruled ? Json(figures.went_dense) : Json(nullptr);
  if (figures.sampled) {
    json["sampled_rows_per_head"] = figures.sampled_rows;
    json["went_dense"] = figures.went_dense;
  }
  json["coded_tokens"] = figures.coded_tokens;
  const bool estimated = figures.tail.heads > 0;
  json["exact_mass"] = estimated ? Json(figures.tail.mean_exact_mass()) : Json(nullptr);
  json["expected_error"] = estimated ? Json(figures.tail.mean_error()) : Json(nullptr);
  json["index"] = figures.index;
  json["tail"] = figures.tail_spec;
  json["rows_bytes"] = figures.memory.rows_bytes;
  json["index_bytes"] = figures.memory.index_bytes;
  json["queries_bytes"] = figures.memory.queries_bytes;
  json["peak_memory_bytes"] = peak_memory_bytes();
  if (citations != nullptr) json["citations"] = json_of(*citations);
  json["device"] = model.device().name();
  json["weights"] = name_of(model.weights());
  json["version"] = version();
  print_event(json);
}

/// Of all samples together, as one; ended as they all did.
GenerateResult sum_of(std::span<const GenerateResult> results) {
  GenerateResult sum = results[0];
  for (const GenerateResult& one : results.subspan(1)) {
    sum.tokens.insert(sum.tokens.end(), one.tokens.begin(), one.tokens.end());
    sum.steps += one.steps;
    sum.drafted += one.drafted;
    sum.accepted += one.accepted;
    sum.model_drafted += one.model_drafted;
    sum.model_accepted += one.model_accepted;
    sum.decode_seconds = std::max(sum.decode_seconds, one.decode_seconds);
    if (one.finish != sum.finish) sum.finish = Finish::length;
  }
  return sum;
}

void print_figures(const Prefilled& prefilled, const GenerateResult& result,
                   const Figures& figures) {
  const auto generated = static_cast<std::int64_t>(result.tokens.size());
  const std::int64_t context = prefilled.context->tokens();
  if (context > 0) {
    fmt::print(stderr, "context    {} tokens, {}/s, {} of rows\n", format_grouped(context),
               format_rate(rate(context, prefilled.seconds)), byte_text(figures.memory.rows_bytes));
    fmt::print(stderr, "prefill    {}\n", reading_text(prefilled.attention, prefilled.shares));
  }
  if (figures.memory.index_bytes > 0) {
    const std::int64_t queries = figures.memory.queries_bytes;
    fmt::print(stderr, "index      {}, {}{}, waited for it {}\n", figures.index,
               byte_text(figures.memory.index_bytes),
               queries > 0 ? fmt::format(" and {} of queries", byte_text(queries)) : "",
               format_seconds(prefilled.times.indexing));
  }
  fmt::print(stderr, "prompt     {} tokens, {}/s\n", format_grouped(figures.prompt_tokens),
             format_rate(rate(figures.prompt_tokens, result.prompt_seconds)));
  if (const std::string attended = attended_text(figures.turns); !attended.empty())
    fmt::print(stderr, "turn       sparse: {}\n", attended);
  fmt::print(stderr, "generated  {} tokens, {}/s{}\n", format_grouped(generated),
             format_rate(rate(result.steps, result.decode_seconds)),
             result.ended()                       ? ", ended by the model"
             : result.finish == Finish::stop_text ? ", ended by a stop text"
                                                  : "");
  if (result.drafted > 0) fmt::print(stderr, "drafts     {}\n", draft_text(result));
  fmt::print(stderr, "sampling   {}\n", sampling_text(figures.sampling));
  fmt::print(stderr, "time       {}\n", time_shares(result.times));
  fmt::print(stderr, "retrieved  {:.0f} rows per step, layer and query head\n",
             figures.rows_per_head);
  if (figures.ruled) {
    fmt::print(stderr, "more rows  for {:.1f} % of them, all rows for {:.1f} %\n",
               100 * figures.retrieved_more, 100 * figures.went_dense);
  }
  if (figures.sampled) {
    fmt::print(stderr, "sampled    {:.0f} of these rows, all rows for {:.1f} % of them\n",
               figures.sampled_rows, 100 * figures.went_dense);
  }
  if (figures.tail.heads > 0) {
    fmt::print(stderr,
               "attended   {:.1f} % exactly, the rest estimated; expected error {:.3f} (the true "
               "error may be larger)\n",
               100 * figures.tail.mean_exact_mass(), figures.tail.mean_error());
  }
  fmt::print(stderr, "memory     {} at most\n", byte_text(peak_memory_bytes()));
}

int run_generate(GenerateFlags flags) {
  check_flags(flags);
  check_model(flags.model, flags.retrieval);
  const std::string& index = flags.retrieval.indices.front();
  for (const std::string& file : flags.files) {
    if (file != "-") check_readable(file);
  }
  std::optional<ChatTemplate> chat;
  if (flags.chat) chat = ChatTemplate::load(flags.model.directory);
  const Device device = open_device(flags.model);
  check_cite(flags.answers, flags.retrieval, device);

  std::vector<TextFile> files;
  const std::string text = text_of_files(flags.files, &files);
  catch_interrupts();  // only now: Ctrl-C must end a wait for standard input
  const ThreadLimit threads(flags.model);
  ProgressBar progress = stderr_progress();
  if (flags.answers.quiet) progress.hush();
  const Model model = load_model(
      flags.model, device, flags.prefill, flags.retrieval, progress, flags.length.value_or(0),
      turn_attention(flags.prefill, flags.retrieval.sinks), flags.answers.drafts);
  GenerateOptions options = generate_options(flags.answers, model.config().sampling);
  options.draft_model = load_draft_model(flags.answers.drafts, model, progress);
  options.grammar = answer_grammar(flags.answers, model);
  if (follows_model(flags.answers) && !model.config().sampling_warning.empty())
    progress.note(warning_line(model.config().sampling_warning));
  const Tokenizer& tokenizer = model.tokenizer();
  std::optional<ChatAnswers> chat_answers;
  if (chat) chat_answers.emplace(*chat, tokenizer);
  std::optional<Conversation> conversation;
  if (chat) {
    conversation.emplace(*std::move(chat), tokenizer, flags.system, text,
                         template_variables(flags.variables));
  }
  const Reading reading =
      conversation ? read(*conversation, flags.prompt) : read(tokenizer, text, flags.prompt);
  check_cite(flags.answers, model.config().attention);
  std::optional<CitedText> cited;
  if (flags.answers.cite) cited = cited_text(tokenizer, reading.context, text, files);
  const auto given = static_cast<std::int64_t>(reading.context.size() + reading.prompt.size());
  check_rows(model.config().attention, given + flags.answers.predict + 1,
             prefill_options(flags.prefill, flags.retrieval));
  check_indices(flags.retrieval, model.config(), static_cast<std::int64_t>(reading.context.size()));
  model.check_reach(given + flags.answers.predict);  // now rather than when it gets there
  check_indices(device, model.config().attention, flags.retrieval,
                static_cast<std::int64_t>(reading.context.size()));
  const Prefilled prefilled =
      prefill(model, flags.retrieval, flags.prefill, reading.context, progress);

  Figures figures;
  figures.sampling = options.sampling;
  figures.prompt_tokens = static_cast<std::int64_t>(reading.prompt.size());
  const AttentionShape& shape = model.config().attention;
  RetrievalOptions retrieval = retrieval_options(flags.retrieval, shape.layers, index,
                                                 figures.prompt_tokens + flags.answers.predict + 1);
  retrieval.turns = turn_attention(flags.prefill, flags.retrieval.sinks);
  retrieval.measure_attention = flags.answers.cite;
  Session session(prefilled.context, std::move(retrieval), device);
  std::vector<AnswerStream> streams;
  for (std::int64_t i = 0; i < flags.samples; ++i)
    streams.emplace_back(flags.answers.json ? AnswerStream::Shown::as_events
                         : i == 0           ? AnswerStream::Shown::at_once
                                            : AnswerStream::Shown::at_end,
                         i);
  if (chat_answers) {
    chat_answers->prepare(options);
    for (AnswerStream& stream : streams)
      chat_answers->divide(stream, reading.prompt, flags.answers.quiet);
  }
  options.progress = progress.brief_callback("prompt");
  options.before = reading.context;
  std::vector<StepTimes> before_decoding;
  const std::vector<GenerateResult> results =
      generate_samples(model, session, reading.prompt, options, streams,
                       [&] { before_decoding = session.step_times(); });
  for (AnswerStream& stream : streams) stream.finish();
  std::vector<Citation> citations;
  if (cited) {
    const std::vector<Token> neutral = conversation ? neutral_prompt(*conversation, reading.context)
                                                    : tokenizer.encode(neutral_question);
    citations = cited->cite(session.attention_by_position(),
                            neutral_attention(model, prefilled.context, session.options(), neutral),
                            reading.prompt);
  }

  const SessionStats& stats = session.stats();
  figures.rows_per_head = stats.rows_per_head(shape.q_heads);
  if (stats.steps > 0) {
    const auto heads = static_cast<double>(stats.steps * shape.q_heads);
    figures.retrieved_more = static_cast<double>(stats.retrieved_more) / heads;
    figures.went_dense = static_cast<double>(stats.went_dense) / heads;
    figures.sampled_rows = static_cast<double>(stats.rows_sampled) / heads;
  }
  figures.coded_tokens = stats.coded_tokens;
  figures.turns = session.turn_shares();
  figures.ruled = session.options().mass || session.options().error;
  figures.sampled = session.options().guarantee.has_value();
  for (const TailFigures& layer : session.tail_figures()) figures.tail += layer;
  figures.memory = prefilled.context->memory();
  figures.index = session.options().index;
  figures.tail_spec = session.options().tail;
  if (flags.answers.json) {
    for (std::size_t i = 0; i < results.size(); ++i)
      print_json(model, prefilled, results[i], streams[i], figures, flags.prompt, i,
                 cited ? &citations : nullptr);
  } else if (cited) {
    print_citations(citations);
  }
  if (!flags.answers.json && !flags.answers.quiet) {
    print_figures(prefilled, sum_of(results), figures);
    fmt::print(stderr, "device     {}\n", device.name());
    if (device.is_cuda()) fmt::print(stderr, "GPU memory {}\n", memory_account(device));
  }
  if (flags.profile) {
    std::vector<StepTimes> decoding;
    add_difference(decoding, session.step_times(), before_decoding);
    std::fputs(
        profile_table(decoding, results[0].steps, results[0].decode_seconds, line_width(stderr))
            .c_str(),
        stderr);
  }
  return interrupted() ? interrupted_status() : 0;
}

}  // namespace

Run add_generate(CLI::App& app) {
  const auto flags = std::make_shared<GenerateFlags>();
  FlagBinder bind(*add_command(app, "generate"));
  bind.all(flags->model, flags->retrieval, flags->prefill, flags->answers, flags->variables);
  bind("--indexer", flags->retrieval.indexer);
  bind("--samples", flags->samples);
  bind("--prompt", flags->prompt);
  bind("--file", flags->files);
  bind("--chat", flags->chat);
  bind("--system", flags->system);
  bind("--length", flags->length);
  bind("--profile", flags->profile);
  return [flags] { return run_generate(*flags); };
}

}  // namespace topkv::cli
