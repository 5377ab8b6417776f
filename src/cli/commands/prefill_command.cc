// `topkv prefill`: texts read once into a context that stays in a file.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "src/cli/commands.h"
#include "src/cli/commands/citations.h"
#include "src/cli/commands/device_report.h"
#include "src/cli/commands/input.h"
#include "src/cli/commands/load_model.h"
#include "src/cli/commands/prefill_step.h"
#include "src/cli/flags/bind.h"
#include "src/cli/flags/options.h"
#include "src/cli/flags/output_paths.h"
#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/progress_bar.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/io/files.h"
#include "src/core/io/open_file.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "src/core/threads/stopwatch.h"
#include "src/serve/run/prompt_boundary.h"
#include "topkv/context_file.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

struct PrefillCommandFlags {
  ModelFlags model;
  RetrievalFlags retrieval;
  PrefillFlags prefill;
  std::vector<std::string> files;
  std::string output;
  bool chat = false;
  std::string system;
  std::optional<std::int64_t> length;  // not set: the model's reach
  bool measure = false;
  bool json = false;
  bool quiet = false;
};

void check_flags(const PrefillCommandFlags& flags) {
  if (flags.measure && (flags.prefill.mode == "dense" || flags.prefill.mode == "window")) {
    throw UsageError(fmt::format(
        "--measure: a {} prefill chooses no keys; leave it out, or give --prefill sparse",
        flags.prefill.mode));
  }
  check_flags(flags.retrieval, flags.prefill);
  if (!flags.system.empty() && !flags.chat)
    throw UsageError("--system: a plain text has no system message; add --chat");
  if (std::count(flags.files.begin(), flags.files.end(), "-") > 1)
    throw UsageError("--file: '-' is given twice; standard input can be read once");
  std::vector<Input> inputs = inputs_of(flags.model.directory);
  for (const std::string& file : flags.files) {
    inputs.push_back({"-f", file});
    if (file != "-") check_readable(file);
  }
  check_output("-o", flags.output, inputs);
}

/// What --chat needs; empty without.
std::optional<ChatTemplate> chat_of(const PrefillCommandFlags& flags) {
  if (!flags.chat) return {};
  ChatTemplate chat = ChatTemplate::load(flags.model.directory);
  try {
    serve::check_keeps_texts(chat, flags.system);
  } catch (const Unsupported& error) {
    throw Unsupported(fmt::format("{}; leave --chat out, or use topkv chat -f", error.what()));
  }
  return chat;
}

/// One object: what was read, and what tokens attended in each layer in which they choose keys.
void print_json(const PrefillCommandFlags& flags, const Prefilled& prefilled, std::int64_t bytes) {
  Json json;
  json["file"] = flags.output;
  json["file_bytes"] = bytes;
  json["context_tokens"] = prefilled.context->tokens();
  json["indices"] = prefilled.context->indices();
  json["prefill_seconds"] = prefilled.seconds;
  add_attended(json, prefilled);
  // Without a choice there is nothing to measure.
  json["measured"] = flags.measure && attended_share(prefilled.shares).has_value();
  json["layers"] = Json::array();
  for (std::size_t layer = 0; layer < prefilled.shares.size(); ++layer) {
    const PrefillShare& share = prefilled.shares[layer];
    if (share.queries == 0) continue;
    json["layers"].push_back({{"layer", layer},
                              {"attended_mass", share.mean_mass()},
                              {"attended_keys", share.key_share()}});
  }
  json["version"] = version();
  fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

int run_prefill(PrefillCommandFlags flags) {
  check_flags(flags);
  check_model(flags.model, flags.retrieval);
  const std::optional<ChatTemplate> chat = chat_of(flags);
  const std::int64_t length = flags.length.value_or(0);
  const Device device = open_device(flags.model);
  if (flags.measure && device.is_cuda()) {
    throw UsageError(
        "--measure: a CUDA device has an estimate of the share alone; leave it out, or give "
        "--device cpu");
  }
  std::vector<TextFile> files;
  const std::string text = text_of_files(flags.files, &files);
  catch_interrupts();
  const ThreadLimit threads(flags.model);
  ProgressBar progress = stderr_progress();
  if (flags.quiet) progress.hush();
  const Model model =
      load_model(flags.model, device, flags.prefill, flags.retrieval, progress, length);
  const serve::KeptPrompt kept =
      chat ? serve::kept_prompt(model.tokenizer(), *chat, flags.system, text)
           : serve::kept_prompt(model.tokenizer(), text);
  const auto tokens = static_cast<std::int64_t>(kept.tokens.size());
  if (tokens == 0) {
    const std::string& file = flags.files.front();
    throw FileError(fmt::format(
        "{}: is too short: its last word is read with each prompt, which may continue it, and "
        "there is nothing else to keep; give more text, or end it with a line end",
        file == "-" ? "standard input" : printable(file)));
  }
  check_rows(model.config().attention, tokens, prefill_options(flags.prefill, flags.retrieval));
  check_indices(flags.retrieval, model.config(), tokens);
  model.check_reach(tokens);
  // Now rather than when it has been paid for.
  check_room(flags.output,
             expected_file_bytes(model.config().attention, tokens,
                                 prefill_options(flags.prefill, flags.retrieval).kv_dtype,
                                 flags.retrieval.indices));
  Prefilled prefilled =
      prefill(model, flags.retrieval, flags.prefill, kept.tokens, progress, flags.measure);
  const std::string_view mode = name_of(prefilled.attention.mode);
  for (std::size_t i = 1; i < flags.retrieval.indices.size(); ++i) {
    prefilled.context = prefilled.context->with_index(flags.retrieval.indices[i],
                                                      progress.callback("index"), device);
  }
  std::vector<ContextSource> sources = sources_of(model.tokenizer(), kept.tokens, text, files);
  if (sources.empty() && !text.empty()) {
    progress.note(warning_line(
        "the tokenizer or the chat template changes the text of the files: topkv ask --cite cannot "
        "name their lines"));
  }
  const Stopwatch saving;
  save_context(
      *prefilled.context, flags.output,
      {.model = model.fingerprint(),
       .made_with = fmt::format("{} of {}, weights {}, {} prefill", model.config().model_type,
                                model_name(flags.model), name_of(model.weights()), mode),
       .length = length,
       .tokens = kept.tokens,
       .end = kept.end,
       .sources = std::move(sources)},
      progress.callback("save"));
  progress.finish();
  const double seconds = saving.seconds();
  const std::int64_t bytes = context_file_info(flags.output).file_bytes;
  if (flags.json) print_json(flags, prefilled, bytes);
  if (flags.quiet || flags.json) return 0;
  fmt::print(stderr, "context    {} tokens, {}/s\n", format_grouped(tokens),
             format_rate(static_cast<double>(tokens) / prefilled.seconds));
  fmt::print(stderr, "prefill    {}\n",
             reading_text(prefilled.attention, prefilled.shares, flags.measure));
  fmt::print(stderr, "indices    {}\n", fmt::join(prefilled.context->indices(), ", "));
  fmt::print(stderr, "file       {}, {} in {}\n", printable(flags.output), byte_text(bytes),
             format_seconds(seconds));
  return 0;
}

}  // namespace

Run add_prefill(CLI::App& app) {
  const auto flags = std::make_shared<PrefillCommandFlags>();
  FlagBinder bind(*add_command(app, "prefill"));
  bind.all(flags->model, flags->retrieval, flags->prefill);
  bind("--indexer", flags->retrieval.indexer);
  bind("--file", flags->files);
  bind("--output", flags->output);
  bind("--chat", flags->chat);
  bind("--system", flags->system);
  bind("--length", flags->length);
  bind("--measure", flags->measure);
  bind("--json", flags->json);
  bind("--quiet", flags->quiet);
  return [flags] { return run_prefill(*flags); };
}

}  // namespace topkv::cli
