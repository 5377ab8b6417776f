// `topkv fidelity`: how near decoding with retrieval is to dense attention.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/cli/commands.h"
#include "src/cli/commands/compare_prefills.h"
#include "src/cli/commands/device_report.h"
#include "src/cli/commands/load_model.h"
#include "src/cli/flags/bind.h"
#include "src/cli/flags/options.h"
#include "src/cli/flags/output_paths.h"
#include "src/cli/flags/retrieval_grid.h"
#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/report.h"
#include "src/cli/terminal/terminal.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/format/csv.h"
#include "src/core/io/files.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "src/eval/report/fidelity_chart.h"
#include "src/eval/report/fidelity_lines.h"
#include "src/eval/report/report_page.h"
#include "src/eval/run/fidelity_text.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

struct FidelityFlags {
  ModelFlags model;
  GridFlags compared;
  PrefillFlags prefill;
  ComparedPrefills prefills;
  std::int64_t context = 0;
  std::string questions;
  std::string haystack;
  std::uint64_t seed = 0;
  std::vector<std::string> dtypes;
  bool json = false;
  std::string csv;   ///< empty: none
  std::string svg;   ///< empty: none
  std::string html;  ///< empty: none
};

/// Before the long run rather than behind it.
void check_output(const FidelityFlags& flags) {
  const auto resolved = [](const std::string& file) {
    std::error_code error;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(file), error);
  };
  const std::vector<Input> inputs = inputs_of(flags.model.directory, "--haystack", flags.haystack);
  std::vector<std::pair<const char*, std::string>> files;
  for (const auto& [flag, file] :
       {std::pair{"--csv", flags.csv}, {"--svg", flags.svg}, {"--html", flags.html}}) {
    if (file.empty()) continue;
    check_output(flag, file, inputs);
    for (const auto& [other, taken] : files) {
      if (resolved(file) == resolved(taken)) {
        throw UsageError(fmt::format("{}: '{}' is the file of {}, too; expected another file", flag,
                                     file, other));
      }
    }
    files.emplace_back(flag, file);
  }
}

bool ruled(const FidelityReport& report) {
  return std::ranges::any_of(report.settings,
                             [](const Fidelity& of) { return !rule_text(of.options).empty(); });
}

/// Whether settings read rows that are stored in several ways.
bool several_dtypes(const FidelityReport& report) {
  return std::ranges::any_of(report.settings, [&](const Fidelity& of) {
    return !(of.kv_dtype == report.settings.front().kv_dtype);
  });
}

std::string number(std::optional<double> x) { return x ? fmt::format("{:.3f}", *x) : "-"; }

/// A row per setting.
ResultTable table_of(const FidelityReport& report) {
  const bool rules = ruled(report);
  const bool dtypes = several_dtypes(report);
  std::vector<std::vector<std::string>> rows;
  for (const Fidelity& of : report.settings) {
    rows.push_back({index_text(of.options), of.k, of.options.tail,
                    fmt::format("{:.4f}", of.error_mean), fmt::format("{:.4f}", of.error_p90),
                    of.error_told ? fmt::format("{:.4f}", *of.error_told) : "-",
                    fmt::format("{:.5f}", of.kl.mean), fmt::format("{:.5f}", of.kl.most),
                    fmt::format("{:.3f}", of.agreement), number(of.mass), number(of.mass_p10),
                    number(of.recall), number(of.mass_recall), number(of.mass_recall_p10),
                    fmt::format("{:.3f}", of.perplexity),
                    of.bytes_read > 0 ? byte_text(of.bytes_read) : "-",
                    byte_text(of.bytes_held_host + of.bytes_held_device)});
    if (dtypes) rows.back().insert(rows.back().begin() + 3, of.kv_dtype.name());
    if (!rules) continue;
    rows.back().insert(rows.back().begin() + 3, rule_cell(of.options));
    const bool has_rule = !rule_text(of.options).empty();
    const auto share = [&](double x) { return has_rule ? fmt::format("{:.3f}", x) : "-"; };
    rows.back().insert(rows.back().end(), {fmt::format("{:.0f}", of.rows), share(of.retrieved_more),
                                           share(of.went_dense)});
  }
  std::vector<std::string> headings = {
      "index",   "top k",       "tail",       "error",      "error p90", "told",
      "KL",      "KL max",      "agree",      "mass",       "mass p10",  "recall",
      "by mass", "by mass p10", "perplexity", "read/token", "held"};
  std::vector<bool> right(17, true);
  right[0] = false;
  right[2] = false;
  if (dtypes) {
    headings.insert(headings.begin() + 3, "rows in");
    right.insert(right.begin() + 3, false);
  }
  if (rules) {
    headings.insert(headings.begin() + 3, "rule");
    right.insert(right.begin() + 3, false);
    for (const char* heading : {"rows", "more", "dense"}) headings.emplace_back(heading);
    right.insert(right.end(), 3, true);
  }
  return {std::move(headings), std::move(rows), std::move(right)};
}

std::string table(const FidelityReport& report, std::size_t width) {
  const std::size_t keys = 3U + (ruled(report) ? 1U : 0U) + (several_dtypes(report) ? 1U : 0U);
  return format_table(table_of(report), {.width = width, .keys = keys});
}

/// A row per layer that attends all of the context.
ResultTable spread_of(const FidelityReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t layer = 0; layer < report.spread.size(); ++layer) {
    const LayerSpread& of = report.spread[layer];
    if (of.heads == 0) continue;
    rows.push_back({fmt::format("{}", layer), fmt::format("{:.0f}", of.mean_keys()),
                    fmt::format("{:.2f}", of.mean_entropy())});
  }
  return {{"layer", "keys for 75 %", "entropy"}, std::move(rows), {true, true, true}};
}

std::string spread_table(const FidelityReport& report, std::size_t width) {
  ResultTable spread = spread_of(report);
  if (spread.rows.empty()) return {};
  return format_table(std::move(spread), {.width = width, .keys = 1U}) + "\n";
}

/// What was compared, and what the tables' columns are.
std::string explained(const FidelityReport& report, std::int64_t tokens,
                      const std::string& prefill) {
  return fmt::format(
      "Against dense attention over {} tokens ({} prefill{}): "
      "{} tokens of questions and answers, perplexity {:.3f}. "
      "error: |out - dense| / |dense| of a layer; told: what "
      "the sessions expect it to be; KL: of the "
      "next token; keys for 75 %, entropy (natural log): of dense attention "
      "by a question's last token; mass: share of dense attention in the rows "
      "attended; recall: of exact search's rows; by mass: of "
      "their softmax weight; p10: the "
      "10th percentile over layers, heads and tokens.{}",
      format_grouped(tokens), prefill,
      report.settings.front().options.host_search ? "; the host finds rows where a GPU could" : "",
      report.settings.front().tokens, report.dense_perplexity,
      ruled(report) ? " rows: of a query head in a layer; more, "
                      "dense: share of these that took more than "
                      "at first, and all."
                    : "");
}

void print_report(const FidelityReport& report, std::int64_t tokens, const std::string& prefill) {
  const std::size_t width = line_width(stdout);
  fmt::print("{}\n", table(report, width));
  fmt::print("{}", spread_table(report, width));
  fmt::print("{}", labelled("", explained(report, tokens, prefill), width, 0));
}

bool drawable(const FidelityReport& report) {
  return std::any_of(report.settings.begin(), report.settings.end(), has_place);
}

void write_output(const FidelityFlags& flags, const FidelityReport& report,
                  const std::vector<Json>& lines) {
  if (!flags.csv.empty()) write_file(flags.csv, csv_lines(lines));
  if (flags.html.empty() && flags.svg.empty()) return;
  const Json& any = lines.front();
  const auto tokens = any.at("context_tokens").get<std::int64_t>();
  const std::string title =
      fmt::format("How near retrieval is to dense attention: {}", model_name(flags.model));
  const std::string subtitle = fmt::format(
      "{} tokens of context, {} prefill, haystack {}; {} tokens of questions and answers",
      format_grouped(tokens), flags.prefill.mode, printable(flags.haystack),
      format_grouped(report.settings.front().tokens));
  const std::string picture =
      drawable(report) ? fidelity_svg(report.settings, title, subtitle) : std::string();
  if (!flags.html.empty()) {
    Json settings = {{"model", flags.model.directory},
                     {"seed", std::to_string(flags.seed)},
                     {"questions", flags.questions}};
    for (const char* shared :
         {"context_tokens", "haystack", "prefill", "weights", "device", "version"})
      settings[shared] = any.at(shared);
    write_file(flags.html,
               html_page({.title = title,
                          .subtitle = picture.empty() ? subtitle : std::string(),
                          .picture = picture,
                          .parts = {{"Settings compared", table_of(report),
                                     explained(report, tokens, flags.prefill.mode)},
                                    {"Dense attention, layer by layer", spread_of(report)}}},
                         settings));
  }
  if (flags.svg.empty()) return;
  if (picture.empty()) {
    throw Error(fmt::format(
        "{}: not written: no setting has the bytes read per token, which are its axis; add a "
        "setting with an index such as exact or codes, and without --kv-mass and --kv-error",
        flags.svg));
  }
  write_file(flags.svg, picture);
}

/// The dtypes of rows, once each, behind that of the rows that dense attention reads: the most
/// exact of them, bf16 at least.
std::vector<std::string> with_reference(const std::vector<std::string>& dtypes) {
  std::vector<std::string> all;
  const auto given = [&](const char* one) {
    return std::ranges::find(dtypes, one) != dtypes.end();
  };
  all.emplace_back(given("f32") ? "f32" : given("f16") && !given("bf16") ? "f16" : "bf16");
  for (const std::string& one : dtypes) {
    if (std::ranges::find(all, one) == all.end()) all.push_back(one);
  }
  return all;
}

/// With several prefills: what they leave in rows. Each is decoded with dense attention.
int run_prefills(const FidelityFlags& flags) {
  if (flags.dtypes.size() > 1)
    throw UsageError("--kv-dtype: found several, beside several prefills; expected one of the two");
  for (const auto& [flag, file] : {std::pair{"--svg", flags.svg}, {"--html", flags.html}}) {
    if (file.empty()) continue;
    throw UsageError(
        fmt::format("{}: draws one prefill, and several are compared; take --csv", flag));
  }
  const std::vector<double> depths = parse_depths("--questions", flags.questions);
  const ModelConfig config = ModelConfig::load(flags.model.directory);
  PrefillFlags prefill = flags.prefill;
  prefill.dtype = flags.dtypes.front();
  const RetrievalFlags& retrieval = flags.compared.retrieval;
  const std::vector<PrefillAttention> given = ways_of(flags.prefills, prefill, retrieval);
  prefill.mode = "dense";
  const PrefillOptions options = prefill_options(prefill, retrieval);
  check_rows(config.attention, 2 * flags.context, options);
  check_output(flags);
  const ThreadLimit threads(flags.model);
  const Device device = open_device(flags.model);
  ProgressBar progress = stderr_progress();
  const Model model = load_model(flags.model, device, prefill, retrieval, progress);
  const FidelityText text =
      make_fidelity_text(model.tokenizer(), model.tokenizer().beginning_tokens(), flags.context,
                         depths, flags.haystack, flags.seed);
  const std::vector<PrefillAttention> ways =
      resolved_ways(model, given, options, std::ssize(text.context), progress);
  const std::vector<Json> lines = compare_prefills(model, text, ways, options,
                                                   {.context_tokens = std::ssize(text.context),
                                                    .haystack = printable(flags.haystack),
                                                    .prefill = "",
                                                    .weights = flags.model.weights,
                                                    .device = device.name(),
                                                    .version = version()},
                                                   flags.json, progress);
  if (!flags.csv.empty()) write_file(flags.csv, csv_lines(lines));
  return 0;
}

int run_fidelity(FidelityFlags flags) {
  catch_interrupts();
  check_haystack_flag(flags.haystack);
  if (flags.prefills.several()) return run_prefills(flags);
  flags.prefill.mode = flags.prefills.modes.front();
  flags.prefill.keys = flags.prefills.keys.front();
  flags.prefill.mass = flags.prefills.masses.front();
  const std::vector<double> depths = parse_depths("--questions", flags.questions);
  const ModelConfig config = ModelConfig::load(flags.model.directory);
  const std::vector<RetrievalFlags> chosen = grid_points(flags.compared, flags.model, config);
  constexpr std::int64_t probe_room = 512;  // tokens, with those of the sessions beside
  const std::vector<std::string> dtypes = with_reference(flags.dtypes);
  flags.prefill.dtype = dtypes.front();
  const auto sessions = static_cast<std::int64_t>(dtypes.size() * (chosen.size() + 1));
  check_rows(config.attention, flags.context * std::ssize(dtypes) + 2 * probe_room * sessions,
             prefill_options(flags.prefill, flags.compared.retrieval));
  check_output(flags);
  const ThreadLimit threads(flags.model);
  const Device device = open_device(flags.model);
  ProgressBar progress = stderr_progress();
  const Model model = load_model(flags.model, device, flags.prefill, chosen.front(), progress);
  check_indices(device, config.attention, flags.compared.retrieval, flags.context);
  const FidelityText text =
      make_fidelity_text(model.tokenizer(), model.tokenizer().beginning_tokens(), flags.context,
                         depths, flags.haystack, flags.seed);
  const auto tokens = static_cast<std::int64_t>(text.context.size());
  const PrefillOptions reading = prefill_options(flags.prefill, flags.compared.retrieval);
  flags.prefill.mode = name_of(model.prefill_attention(reading, tokens).mode);
  std::shared_ptr<const Context> dense;  // what all are compared with
  std::vector<Fidelity> settings;
  for (const std::string& dtype : dtypes) {
    flags.prefill.dtype = dtype;
    std::shared_ptr<const Context> context =
        model.prefill(text.context, prefill_options(flags.prefill, flags.compared.retrieval),
                      progress.callback("prefill"));
    if (!dense) dense = context;
    if (std::ranges::find(flags.dtypes, dtype) == flags.dtypes.end()) continue;
    const std::size_t first = settings.size();
    for (const RetrievalFlags& retrieval : chosen) {
      context = with_retrieval(context, retrieval, model, progress);
      settings.push_back({.options = retrieval_options(retrieval, config.attention.layers,
                                                       retrieval.indices.front(), 1),
                          .k = retrieval.k});
    }
    for (std::size_t s = first; s < settings.size(); ++s) settings[s].context = context;
  }
  const FidelityReport report = measure_fidelity(model, dense, text.probes, std::move(settings),
                                                 progress.callback("compare"));
  progress.finish();
  const std::vector<Json> lines = fidelity_json(report, {.context_tokens = tokens,
                                                         .haystack = printable(flags.haystack),
                                                         .prefill = flags.prefill.mode,
                                                         .weights = flags.model.weights,
                                                         .device = device.name(),
                                                         .version = version()});
  if (flags.json) {
    for (const Json& line : lines) {
      fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
  } else {
    print_report(report, tokens, flags.prefill.mode);
  }
  std::fflush(stdout);  // what was measured comes before what is wrong with a file
  write_output(flags, report, lines);
  return 0;
}

}  // namespace

Run add_fidelity(CLI::App& app) {
  const auto flags = std::make_shared<FidelityFlags>();
  FlagBinder bind(*add_command(app, "fidelity"));
  bind.all(flags->model, flags->compared, flags->prefill);
  bind("--indexer", flags->compared.retrieval.indexer);
  bind("--kv-dtype", flags->dtypes);
  bind.all(flags->prefills);
  bind("--ctx", flags->context);
  bind("--questions", flags->questions);
  bind("--haystack", flags->haystack);
  bind("--seed", flags->seed);
  bind("--json", flags->json);
  bind("--csv", flags->csv);
  bind("--svg", flags->svg);
  bind("--html", flags->html);
  return [flags] { return run_fidelity(*flags); };
}

}  // namespace topkv::cli
