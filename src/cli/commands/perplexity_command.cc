// `topkv perplexity`: how well a text is predicted with retrieval, beside dense attention.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/commands/device_report.h"
#include "src/cli/commands/input.h"
#include "src/cli/commands/load_model.h"
#include "src/cli/flags/bind.h"
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
#include "src/eval/report/perplexity_lines.h"
#include "src/eval/run/retrieval_setting.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

struct PerplexityFlags {
  ModelFlags model;
  GridFlags compared;
  PrefillFlags prefill;
  std::vector<std::string> files;
  std::int64_t context = 0;
  std::int64_t score = 0;
  bool json = false;
  std::string output;  ///< empty: none
};

constexpr const char* of_settings = "perplexity.csv";
constexpr const char* of_tokens = "tokens.csv";

void check_output(const PerplexityFlags& flags) {
  if (flags.output.empty()) return;
  std::vector<Input> inputs = inputs_of(flags.model.directory);
  for (const std::string& file : flags.files) inputs.push_back({"-f", file});
  check_output_directory(flags.output, {of_settings, of_tokens}, inputs);
}

/// Before the long run rather than behind it.
void make_output(const PerplexityFlags& flags) {
  if (flags.output.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(flags.output, error);
  if (error)
    throw FileError(fmt::format("{}: cannot be made a directory: {}", printable(flags.output),
                                error.message()));
  for (const char* name : {of_settings, of_tokens})
    check_writable(std::filesystem::path(flags.output) / name);
}

/// A text's tokens in pieces of one length, each with what a text begins with in front.
std::vector<std::vector<Token>> pieces_of(const Model& model, const std::string& text,
                                          std::int64_t length) {
  const std::vector<Token> beginning = model.tokenizer().beginning_tokens();
  const std::vector<Token> tokens = model.tokenizer().encode(text);
  const std::int64_t each = length - std::ssize(beginning);
  std::vector<std::vector<Token>> pieces;
  for (auto at = tokens.begin(); tokens.end() - at >= each; at += each) {
    pieces.push_back(beginning);
    pieces.back().insert(pieces.back().end(), at, at + each);
  }
  if (pieces.empty())
    throw Error(
        fmt::format("-f: the text has {} tokens, and a piece takes {}; give more text, or "
                    "a smaller -c",
                    tokens.size(), each));
  return pieces;
}

std::string difference_text(const PerplexityDifference& worse) {
  if (!worse.interval) return fmt::format("{:+.4f}", worse.mean);
  return fmt::format("{:+.4f} [{:+.4f}, {:+.4f}]", worse.mean, worse.interval->low,
                     worse.interval->high);
}

std::string table(const PerplexityReport& report, std::size_t width) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const Perplexity& of, std::vector<std::string> row,
                       const std::string& worse) {
    const std::vector<std::string> figures = {
        fmt::format("{:.4f}", of.mean()), fmt::format("{:.4f}", of.perplexity()), worse,
        of.bytes_read ? byte_text(*of.bytes_read) : "-",
        fmt::format("{:.1f}", static_cast<double>(of.nats.size()) / of.seconds)};
    row.insert(row.end(), figures.begin(), figures.end());
    rows.push_back(std::move(row));
  };
  add(report.dense, {"dense", "-", "-", "-", "all"}, "-");
  for (const Perplexity& of : report.settings) {
    add(of,
        {index_text(of.options), of.k, of.options.tail, rule_cell(of.options),
         fmt::format("{:.0f}", of.rows)},
        difference_text(difference(of, report)));
  }
  return format_table({{"index", "top k", "tail", "rule", "rows", "nats/token", "perplexity",
                        "worse by", "read/token", "tokens/s"},
                       rows,
                       {false, true, false, false, true, true, true, true, true, true}},
                      {.width = width, .keys = 4U});
}

/// How the predictions of each setting differ from those of dense attention.
std::string prediction_table(const PerplexityReport& report, std::size_t width) {
  std::vector<std::vector<std::string>> rows;
  for (const Perplexity& of : report.settings) {
    const PredictionDifference& differs = of.predictions;
    const Spread kl = spread_of(differs.kl);
    std::vector<std::string> row = {index_text(of.options), of.k, of.options.tail,
                                    rule_cell(of.options)};
    for (const double figure : {kl.mean, kl.median, kl.p90, kl.p95, kl.p99, kl.most})
      row.push_back(fmt::format("{:.5f}", figure));
    row.push_back(fmt::format("{:+.3f} %", 100 * differs.mean_delta_p()));
    row.push_back(fmt::format("{:.3f} %", 100 * differs.rms_delta_p()));
    row.push_back(fmt::format("{:.2f} %", 100 * differs.agreement()));
    rows.push_back(std::move(row));
  }
  return format_table(
      {{"index", "top k", "tail", "rule", "KL mean", "median", "90 %", "95 %", "99 %", "most",
        "Δp mean", "Δp RMS", "same top"},
       rows,
       {false, true, false, false, true, true, true, true, true, true, true, true, true}},
      {.width = width, .keys = 4U});
}

bool has_indexer(const PerplexityReport& report) {
  return std::ranges::any_of(
      report.settings, [](const Perplexity& of) { return of.options.indexer_top.has_value(); });
}

void print_report(const PerplexityReport& report, const PerplexityFacts& facts) {
  const std::size_t width = line_width(stdout);
  fmt::print("{}\n", table(report, width));
  if (!report.settings.empty()) fmt::print("{}\n", prediction_table(report, width));
  fmt::print(
      "{}",
      labelled("",
               fmt::format(
                   "{} tokens scored: the last {} of each of {} pieces of {} tokens ({} "
                   "prefill, rows {}), fed one by one. rows: mean rows that a query head "
                   "attended beyond window and sinks{}. worse by: nats per token above dense "
                   "attention, over these tokens{}. read: bytes of the context. KL: divergence of "
                   "the next token's distribution from dense attention's, in nats. Δp: "
                   "probability of the token that came, minus dense attention's. same top: tokens "
                   "with dense attention's most likely token.",
                   format_grouped(std::ssize(report.dense.nats)), report.scored, report.pieces,
                   format_grouped(facts.piece_tokens), facts.prefill, facts.kv_dtype,
                   has_indexer(report) ? ", in layers with an indexer the window's, too" : "",
                   report.pieces > 1 ? ", in brackets its 95 % interval over the pieces "
                                       "(Student's)"
                                     : ""),
               width, 0));
}

int run_perplexity(PerplexityFlags flags) {
  catch_interrupts();
  const std::int64_t length = flags.context;
  const std::int64_t scored = flags.score;
  const ModelConfig config = ModelConfig::load(flags.model.directory);
  const std::vector<RetrievalFlags> chosen = grid_points(flags.compared, flags.model, config);
  PrefillOptions options = prefill_options(flags.prefill, flags.compared.retrieval);
  check_rows(config.attention, length + scored, options);
  check_output(flags);
  const std::string text = text_of_files(flags.files);
  const ThreadLimit threads(flags.model);
  const Device device = open_device(flags.model);
  ProgressBar progress = stderr_progress();
  const Model model = load_model(flags.model, device, flags.prefill, chosen.front(), progress);
  check_indices(device, config.attention, flags.compared.retrieval, length);
  // Something must be there before the first token that is fed.
  const std::int64_t least = std::ssize(model.tokenizer().beginning_tokens()) + 2;
  if (scored > length - least)
    throw UsageError(
        fmt::format("--score: found {} of the {} tokens of a piece (-c); expected {} "
                    "or more before them",
                    scored, length, least));
  const std::vector<std::vector<Token>> pieces = pieces_of(model, text, length);
  make_output(flags);

  std::vector<Perplexity> settings;
  for (const RetrievalFlags& choice : chosen)
    settings.push_back(
        {.options = retrieval_options(choice, config.attention.layers, choice.indices.front(), 1),
         .k = choice.k});
  const auto per_piece = scored * (std::ssize(settings) + 1);
  PerplexityRun run(model, std::move(settings));
  const std::int64_t read = length - scored - 1;
  options.attention = model.prefill_attention(options, read);  // one mode for all pieces
  std::vector<Token> ids;                                      // that were scored
  std::int64_t done = 0;
  const ProgressFn progress_of_score = progress.callback("score");
  const std::int64_t total = std::ssize(pieces) * per_piece;
  for (const std::vector<Token>& piece : pieces) {
    const std::span<const Token> tokens(piece);
    const auto fed_from = static_cast<std::size_t>(read);
    std::shared_ptr<const Context> context =
        model.prefill(tokens.first(fed_from), options, progress.callback("prefill"));
    for (const RetrievalFlags& choice : chosen)
      context = with_retrieval(context, choice, model, progress);
    run.add(context, tokens.subspan(fed_from), [&](std::int64_t fed) {
      progress_of_score({"score", "tokens", done + fed, total});
    });
    done += per_piece;
    ids.insert(ids.end(), piece.end() - scored, piece.end());
  }
  progress_of_score({"score", "tokens", total, total});
  progress.finish();
  const PerplexityReport report = run.report();
  const PerplexityFacts facts{.piece_tokens = length,
                              .kv_dtype = flags.prefill.dtype,
                              .prefill = std::string(name_of(options.attention.mode)),
                              .weights = flags.model.weights,
                              .device = device.name(),
                              .version = version()};
  const std::vector<Json> lines = perplexity_json(report, facts);
  if (flags.json) {
    for (const Json& line : lines)
      fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
  } else {
    print_report(report, facts);
  }
  std::fflush(stdout);  // what was measured comes before what is wrong with a file
  if (flags.output.empty()) return 0;
  const std::filesystem::path folder = flags.output;
  write_file(folder / of_settings, csv_lines(lines));
  write_file(folder / of_tokens, token_csv(report, length, ids));
  return 0;
}

}  // namespace

Run add_perplexity(CLI::App& app) {
  const auto flags = std::make_shared<PerplexityFlags>();
  FlagBinder bind(*add_command(app, "perplexity"));
  bind.all(flags->model, flags->compared, flags->prefill);
  bind("--indexer", flags->compared.retrieval.indexer);
  bind("--file", flags->files);
  bind("--ctx", flags->context);
  bind("--score", flags->score);
  bind("--json", flags->json);
  bind("--output", flags->output);
  return [flags] { return run_perplexity(*flags); };
}

}  // namespace topkv::cli
