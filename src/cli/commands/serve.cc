// `topkv serve`: a model and contexts over HTTP, as clients of OpenAI's API and of Ollama's ask.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/commands/device_report.h"
#include "src/cli/commands/load_context.h"
#include "src/cli/commands/load_model.h"
#include "src/cli/commands/prefill_step.h"
#include "src/cli/flags/bind.h"
#include "src/cli/flags/options.h"
#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/progress_bar.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/memory/memory.h"
#include "src/core/text/printable.h"
#include "src/serve/http/server.h"
#include "src/serve/request/guard.h"
#include "src/serve/run/served_names.h"
#include "src/serve/run/service.h"
#include "topkv/context_file.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

struct ServeFlags {
  ModelFlags model;
  RetrievalFlags retrieval;
  PrefillFlags prefill;
  std::vector<std::string> files;
  std::string host;
  std::int64_t port = 0;
  std::string api_key;
  std::vector<std::string> aliases;
  std::int64_t queue = 0;
  std::int64_t batch = 0;
  std::int64_t room = 0;
  std::string keep;
  std::optional<std::int64_t> length;
  bool mapped = false;
  DraftFlags drafts;
};

std::string name_of_file(const std::string& file) {
  return std::filesystem::path(file).stem().string();
}

serve::ServerOptions server_options(const ServeFlags& flags) {
  serve::ServerOptions options;
  options.host = flags.host;
  options.port = static_cast<int>(flags.port);
  const char* key = std::getenv("TOPKV_API_KEY");
  options.api_key = !flags.api_key.empty() ? flags.api_key : key != nullptr ? key : "";
  if (!std::ranges::all_of(options.api_key, [](char c) { return c > ' ' && c <= '~'; }))
    throw UsageError(
        "--api-key, or TOPKV_API_KEY: has a space, a line end or another character that no client "
        "can send; expected visible ASCII characters alone");
  return options;
}

/// Of rows of ended answers. By default a quarter of what is free now: they give way to others.
std::int64_t kept_bytes(const ServeFlags& flags) {
  if (flags.keep.empty()) return available_host_memory() / 4;
  return flags.keep == "0" ? 0 : parse_bytes("--keep", flags.keep);
}

void check_flags(const ServeFlags& flags) {
  check_flags(flags.retrieval, flags.prefill);
  check_flags(flags.drafts);
  server_options(flags);
  kept_bytes(flags);
  for (const std::string& alias : flags.aliases) {
    if (!serve::is_alias(alias))
      throw UsageError(
          fmt::format("--alias: expected 1 to 256 visible ASCII characters without '\"' "
                      "and '\\', found '{}'",
                      printable_beginning(alias)));
    if (alias == model_name(flags.model) || std::ranges::count(flags.aliases, alias) > 1)
      throw UsageError(fmt::format("--alias: '{}' is a name of the model already", alias));
  }
  std::set<std::string> names;
  for (const std::string& file : flags.files) {
    const std::string name = name_of_file(file);
    if (!serve::is_context_name(name))
      throw UsageError(
          fmt::format("{}: the file's name without its ending is the context's name; expected 1 to "
                      "64 of A-Z, a-z, 0-9, '.', '_' and '-', found '{}'",
                      printable(file), printable(name)));
    if (!names.insert(name).second)
      throw UsageError(
          fmt::format("two files are named '{}'; expected different names, because contexts have "
                      "the names of their files",
                      name));
  }
}

/// A file that is to be loaded.
struct Wanted {
  std::string file;
  ContextFileInfo info;
  RetrievalFlags retrieval;  // with its index
};

/// Says at the start what requests would otherwise find out.
void warn_of_reach(const ModelConfig& config, const serve::Service& service) {
  std::int64_t longest = 0;
  for (const serve::ContextInfo& context : service.contexts().list())
    longest = std::max(longest, context.tokens);
  const std::string beyond = config.beyond_reach(longest + service.options().room);
  if (beyond.empty()) return;
  print_warning(fmt::format(
      "the longest context ({} tokens) and --room ({}) together: {}; give a smaller --room",
      longest, service.options().room, beyond));
}

void tell_turns(const std::string& context, std::span<const PrefillShare> shares) {
  const std::string attended = attended_text(shares);
  if (attended.empty()) return;
  fmt::print(stderr, "{}: turns so far: sparse, {}\n",
             context.empty() ? "a session without a context" : "a session over context " + context,
             attended);
}

serve::ServedWeights served_weights(const ServeFlags& flags, const Model& model,
                                    const std::string& fingerprint) {
  const std::filesystem::path path = flags.model.directory;
  const DevicePlan plan = Model::plan(path, Device(), {}, {}, model.weights());
  return {.fingerprint = fingerprint,
          .format = std::filesystem::is_directory(path) ? "safetensors" : "gguf",
          .quantised = plan.quantised,
          .bytes = plan.weights_bytes};
}

int run_serve(ServeFlags flags) {
  serve::require_http();
  check_flags(flags);
  std::vector<Wanted> wanted;
  bool chats = false;
  for (const std::string& file : flags.files) {
    wanted.push_back({file, context_file_info(file), flags.retrieval});
    Wanted& one = wanted.back();
    name_index_of_file(one.retrieval, one.info);
    check_asked(file, one.info, one.retrieval);
    check_model(flags.model, one.retrieval);
    chats = chats || one.info.end.chat;
  }
  check_model(flags.model, flags.retrieval);
  std::optional<ChatTemplate> chat;
  try {
    chat = ChatTemplate::load(flags.model.directory);
  } catch (const Error& error) {
    if (chats) throw;
    fmt::print(stderr, "no chats: {}\n", error.what());
  }
  // Of files that were read for several the model's fingerprint refuses some, if it matters.
  std::int64_t length = 0;
  for (const Wanted& one : wanted)
    if (length == 0) length = one.info.length;
  length = flags.length.value_or(length);
  const Device device = open_device(flags.model);
  const serve::ServerOptions server = server_options(flags);
  catch_interrupts();
  const ThreadLimit threads(flags.model);
  ProgressBar progress = stderr_progress();
  const Model model =
      load_model(flags.model, device, flags.prefill, flags.retrieval, progress, length,
                 turn_attention(flags.prefill, flags.retrieval.sinks), flags.drafts);
  const std::int64_t layers = model.config().attention.layers;
  const std::string& index = flags.retrieval.indices.front();
  serve::ReadingOptions reading = {
      .prefill = prefill_options(flags.prefill, flags.retrieval),
      .retrieval = retrieval_options(flags.retrieval, layers, index, 1)};
  reading.retrieval.turns = turn_attention(flags.prefill, flags.retrieval.sinks);
  if (index != "exact") reading.prefill.indices = {index};
  reading.on_read = [](const std::string& name, const PrefillAttention& attention,
                       std::span<const PrefillShare> shares) {
    fmt::print(stderr, "context {}: prefill {}\n", name, reading_text(attention, shares));
  };
  const std::int64_t reading_memory = reading.prefill.memory_budget;
  const std::string own = model.fingerprint();
  serve::Service service(model, std::move(chat),
                         {.model_name = model_name(flags.model),
                          .weights = served_weights(flags, model, own),
                          .aliases = flags.aliases,
                          .room = flags.room,
                          .kept_bytes = kept_bytes(flags),
                          .draft = parse_draft(flags.drafts.mode),
                          .draft_model = load_draft_model(flags.drafts, model, progress),
                          .limits = {.queue = flags.queue, .batch = flags.batch},
                          .reading = std::move(reading),
                          .on_turns = tell_turns});
  for (const Wanted& one : wanted) {
    LoadedContext loaded =
        load_asked({.file = one.file, .mapped = flags.mapped, .memory = reading_memory}, one.info,
                   flags.model, one.retrieval, own, device, progress);
    check_ids(one.file, loaded.origin.tokens, model.config().vocab_size);
    RetrievalOptions retrieval =
        retrieval_options(one.retrieval, layers, one.retrieval.indices.front(), 1);
    retrieval.turns = turn_attention(flags.prefill, one.retrieval.sinks);
    service.contexts().add({.name = name_of_file(one.file),
                            .context = std::move(loaded.context),
                            .end = std::move(loaded.origin.end),
                            .tokens = std::move(loaded.origin.tokens),
                            .retrieval = std::move(retrieval)});
  }
  stop_if_interrupted();
  warn_of_reach(model.config(), service);
  if (!serve::is_loopback(server.host) && server.api_key.empty())
    print_warning(
        fmt::format("anyone who reaches {} can ask, and can read and delete contexts: there is no "
                    "API key; set TOPKV_API_KEY",
                    printable(server.host)));
  const bool all = serve::serve(service, server, interrupted, [&](int port) {
    fmt::print("http://{}:{}\n",
               server.host.find(':') == std::string::npos ? server.host : "[" + server.host + "]",
               port);
    std::fflush(stdout);
  });
  fmt::print(stderr, "{}\n",
             all ? "ended; every request was answered" : "ended; some answers were cut off");
  return all ? 0 : exit_error;
}

}  // namespace

Run add_serve(CLI::App& app) {
  const auto flags = std::make_shared<ServeFlags>();
  FlagBinder bind(*add_command(app, "serve"));
  bind.operand(flags->files);
  bind.all(flags->model, flags->retrieval, flags->prefill, flags->drafts);
  bind("--host", flags->host);
  bind("--port", flags->port);
  bind("--api-key", flags->api_key);
  bind("--alias", flags->aliases);
  bind("--max-queue", flags->queue);
  bind("--max-batch", flags->batch);
  bind("--room", flags->room);
  bind("--keep", flags->keep);
  bind("--length", flags->length);
  bind("--mmap", flags->mapped);
  return [flags] { return run_serve(*flags); };
}

}  // namespace topkv::cli
