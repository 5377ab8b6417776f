// `topkv fidelity`: how near decoding with retrieval is to dense attention.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/device_report.h"
#include "src/cli/help.h"
#include "src/cli/interrupt.h"
#include "src/cli/numbers.h"
#include "src/cli/options.h"
#include "src/cli/report.h"
#include "src/cli/terminal.h"
#include "src/cli/text.h"
#include "src/core/byte_text.h"
#include "src/core/figures.h"
#include "src/eval/fidelity.h"
#include "src/eval/fidelity_text.h"

namespace topkv::cli {
namespace {

struct FidelityFlags {
  ModelFlags model;
  RetrievalFlags retrieval;
  PrefillFlags prefill;
  std::string context = "64K";
  std::string questions = "4";
  std::string haystack = "generated";
  std::string seed = "42";
  std::vector<std::string> ks = {"256"};
  std::vector<std::string> tails = {""};
  bool json = false;
};

void add_flags(CLI::App& command, FidelityFlags& flags) {
  add_flags(command, flags.model);
  add_flags(command, flags.retrieval);
  for (const char* one : {"--kv-topk", "--kv-tail"}) {  // here several may be given
    command.remove_option(command.get_option(one));
  }
  command.add_option("--kv-topk", flags.ks, "rows per layer such as 64")->expected(1)->take_all();
  command.add_option("--kv-tail", flags.tails, "none, or an index with codes of values")
      ->expected(1)
      ->take_all();
  flags.prefill.mode = "window";
  add_flags(command, flags.prefill);
  command.add_option("-c,--ctx", flags.context, "a count of tokens such as 64K");
  command.add_option("--questions", flags.questions, "a count such as 4");
  command.add_option("--haystack", flags.haystack, "generated, noise, needles or a directory");
  command.add_option("--seed", flags.seed, "a whole number");
  command.add_flag("--json", flags.json);
}

/// One for each choice of flags.
std::vector<RetrievalFlags> choices(const FidelityFlags& flags) {
  std::vector<RetrievalFlags> all;
  for (const std::string& index : flags.retrieval.indices) {
    for (const std::string& tail : flags.tails) {
      for (const std::string& k : flags.ks) {
        RetrievalFlags one = flags.retrieval;
        one.indices = {index};
        one.tail = tail;
        one.k = k;
        all.push_back(one);
      }
    }
  }
  return all;
}

Json to_json(const Fidelity& setting, const FidelityReport& report, const FidelityFlags& flags,
             std::int64_t context_tokens, const Device& device) {
  Json json;
  json["setting"] =
      fmt::format("{}, top {}, tail {}", setting.options.index, setting.k, setting.options.tail);
  json["index"] = setting.options.index;
  json["kv_topk"] = setting.k;
  json["kv_tail"] = setting.options.tail;
  json["context_tokens"] = context_tokens;
  json["haystack"] = printable(flags.haystack);
  json["prefill"] = flags.prefill.mode;
  json["probe_tokens"] = setting.tokens;
  json["error_mean"] = setting.error_mean;
  json["error_p90"] = setting.error_p90;
  json["layer_error"] = setting.layer_error;
  json["kl_mean"] = setting.kl_mean;
  json["kl_max"] = setting.kl_max;
  json["agreement"] = setting.agreement;
  json["perplexity"] = setting.perplexity;
  json["dense_perplexity"] = report.dense_perplexity;
  json["mass"] = setting.mass;
  json["recall"] = setting.recall ? Json(*setting.recall) : Json(nullptr);
  json["rows"] = setting.rows;
  json["bytes_read"] = setting.bytes_read > 0 ? Json(setting.bytes_read) : Json(nullptr);
  json["bytes_held_device"] = setting.bytes_held_device;
  json["bytes_held_host"] = setting.bytes_held_host;
  json["device"] = device.name();
  json["version"] = version();
  return json;
}

std::string table(const FidelityReport& report, std::size_t width) {
  std::vector<std::vector<std::string>> rows;
  for (const Fidelity& of : report.settings) {
    rows.push_back(
        {of.options.index, of.k, of.options.tail, fmt::format("{:.4f}", of.error_mean),
         fmt::format("{:.4f}", of.error_p90), fmt::format("{:.5f}", of.kl_mean),
         fmt::format("{:.5f}", of.kl_max), fmt::format("{:.3f}", of.agreement),
         fmt::format("{:.3f}", of.mass), of.recall ? fmt::format("{:.3f}", *of.recall) : "-",
         fmt::format("{:.3f}", of.perplexity), of.bytes_read > 0 ? byte_text(of.bytes_read) : "-",
         byte_text(of.bytes_held_host)});
  }
  std::vector<bool> right(13, true);
  right[0] = false;
  right[2] = false;
  return format_table({"index", "top k", "tail", "error", "error p90", "KL", "KL max", "agree",
                       "mass", "recall", "perplexity", "read/token", "held"},
                      rows, right, {.width = width, .keys = 3});
}

int run_fidelity(const FidelityFlags& flags) {
  catch_interrupts();
  const std::int64_t length = parse_count("-c", flags.context);
  check_flags(flags.model);
  check_flags(flags.prefill);
  check_haystack_flag(flags.haystack);
  const std::vector<double> depths = parse_depths("--questions", flags.questions);
  const std::uint64_t seed = parse_seed("--seed", flags.seed);
  const std::vector<RetrievalFlags> chosen = choices(flags);
  ModelConfig config;
  for (const RetrievalFlags& retrieval : chosen) {
    check_flags(retrieval);
    config = check_model(flags.model, retrieval);
  }
  constexpr std::int64_t probe_room = 512;  // tokens, with those of the sessions beside
  check_rows(config.attention,
             length + 2 * probe_room * static_cast<std::int64_t>(chosen.size() + 1),
             prefill_options(flags.prefill, flags.retrieval));
  const ThreadLimit threads(flags.model);
  const Device device = open_device(flags.model);
  ProgressBar progress = stderr_progress();
  const Model model =
      load_model(flags.model.directory, device, flags.prefill, chosen.front(), progress);
  const FidelityText text = make_fidelity_text(
      model.tokenizer(), beginning_tokens(model.tokenizer()), length, depths, flags.haystack, seed);
  const auto tokens = static_cast<std::int64_t>(text.context.size());
  std::shared_ptr<const Context> context = model.prefill(
      text.context, prefill_options(flags.prefill, flags.retrieval), progress.callback("prefill"));
  std::vector<Fidelity> settings;
  for (const RetrievalFlags& retrieval : chosen) {
    check_indices(retrieval, config, tokens);
    const std::string& index = retrieval.indices.front();
    if (!context->has_index(index)) context = context->with_index(index, progress.callback(index));
    context = with_tail(context, retrieval.tail, progress.callback("tail"));
    settings.push_back({.options = retrieval_options(retrieval, config.attention.layers, index, 1),
                        .k = retrieval.k});
  }
  const FidelityReport report = measure_fidelity(model, context, text.probes, std::move(settings),
                                                 progress.callback("compare"));
  progress.finish();
  if (flags.json) {
    for (const Fidelity& of : report.settings) {
      fmt::print("{}\n", to_json(of, report, flags, tokens, device)
                             .dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    return 0;
  }
  const std::size_t width = line_width(stdout);
  fmt::print("{}\n", table(report, width));
  fmt::print("{}", labelled("",
                            fmt::format("Against dense attention over {} tokens ({} prefill): "
                                        "{} tokens of questions and answers, perplexity {:.3f}. "
                                        "error: |out - dense| / |dense| of a layer; KL: of the "
                                        "next token; mass: share of dense attention in the rows "
                                        "attended.",
                                        format_grouped(tokens), flags.prefill.mode,
                                        report.settings.front().tokens, report.dense_perplexity),
                            width, 0));
  return 0;
}

}  // namespace

Run add_fidelity(CLI::App& app) {
  CLI::App* command = add_command(app, "fidelity", fidelity_help);
  const auto flags = std::make_shared<FidelityFlags>();
  add_flags(*command, *flags);
  return [flags] { return run_fidelity(*flags); };
}

}  // namespace topkv::cli
