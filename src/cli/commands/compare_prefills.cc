#include "src/cli/commands/compare_prefills.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/report.h"
#include "src/cli/terminal/terminal.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/text/format_numbers.h"
#include "src/eval/report/prefill_lines.h"

namespace topkv::cli {
namespace {

/// The mean over the layers that chose: "0.987".
std::string mass_text(const PrefillFidelity& of) {
  PrefillShare all;
  for (const PrefillShare& share : of.shares) all += share;
  return all.queries > 0 ? fmt::format("{:.4f}", all.mean_mass()) : "-";
}

std::string table(std::span<const PrefillFidelity> results, std::size_t width) {
  std::vector<std::vector<std::string>> rows;
  for (const PrefillFidelity& of : results) {
    rows.push_back({way_text(of.attention), fmt::format("{:.1f}%", 100 * of.keys), mass_text(of),
                    fmt::format("{:.4f}", of.perplexity), fmt::format("{:.5f}", of.text_kl),
                    fmt::format("{:.3f}", of.text_agreement), fmt::format("{:.5f}", of.answer_kl),
                    fmt::format("{:.3f}", of.answer_agreement), fmt::format("{:.4f}", of.key_error),
                    fmt::format("{:.4f}", of.value_error), fmt::format("{:.1f}", of.seconds)});
  }
  return format_table({{"prefill", "keys", "mass", "perplexity", "KL", "agree", "KL answers",
                        "agree answers", "K error", "V error", "seconds"},
                       std::move(rows),
                       {false, true, true, true, true, true, true, true, true, true, true}},
                      {.width = width, .keys = 1U});
}

/// Whether both let tokens attend the same keys.
bool same_way(const PrefillAttention& a, const PrefillAttention& b) {
  if (a.mode != b.mode) return false;
  if (a.mode == Prefill::dense) return true;
  if (a.window != b.window || a.sinks != b.sinks) return false;
  if (a.mode == Prefill::window) return true;
  return a.keys == b.keys && a.mass == b.mass && (a.mass == 1 || a.least_keys == b.least_keys);
}

}  // namespace

std::vector<PrefillAttention> resolved_ways(const Model& model,
                                            std::span<const PrefillAttention> given,
                                            const PrefillOptions& options, std::int64_t tokens,
                                            ProgressBar& progress) {
  std::vector<PrefillAttention> ways = {{}};  // the dense one, which all are compared with
  std::vector<std::string> asked_as = {way_text(ways.front())};
  for (const PrefillAttention& asked : given) {
    PrefillOptions with = options;
    with.attention = asked;
    const PrefillAttention way = model.prefill_attention(with, tokens);
    const std::string name = way_text(asked);
    const auto equal = std::ranges::find_if(
        ways, [&](const PrefillAttention& other) { return same_way(way, other); });
    if (equal == ways.end()) {
      ways.push_back(way);
      asked_as.push_back(name);
      continue;
    }
    // One of the two has the name of the row.
    const std::string row = way_text(*equal);
    const std::string& other =
        name == row ? asked_as[static_cast<std::size_t>(equal - ways.begin())] : name;
    progress.note(other == row ? fmt::format("{}: is given in two forms, and is measured once", row)
                               : fmt::format("{}: reads this text as {}, which is measured once",
                                             other, row));
  }
  ways.erase(ways.begin());
  return ways;
}

std::vector<PrefillAttention> ways_of(const ComparedPrefills& compared, const PrefillFlags& shared,
                                      const RetrievalFlags& retrieval) {
  std::vector<std::string> masses;
  for (const std::optional<double> mass : compared.masses)
    masses.push_back(mass ? fmt::format("{}", *mass) : "none");
  check_differ("--prefill", compared.modes);
  check_differ("--prefill-keys", compared.keys);
  check_differ("--prefill-mass", masses);
  const auto chooses = [](const std::string& mode) { return mode != "dense" && mode != "window"; };
  std::vector<PrefillAttention> ways;
  PrefillFlags way = shared;
  for (const std::string& mode : compared.modes) {
    if (mode == "dense") continue;
    way.mode = mode;
    for (const std::int64_t keys : compared.keys) {
      for (const std::optional<double> mass : compared.masses) {
        const bool first = keys == compared.keys.front() && mass == compared.masses.front();
        if (!chooses(mode) && !first) continue;
        way.keys = keys;
        way.mass = mass;
        ways.push_back(prefill_options(way, retrieval).attention);
      }
    }
  }
  return ways;
}

std::vector<Json> compare_prefills(const Model& model, const FidelityText& text,
                                   std::span<const PrefillAttention> ways,
                                   const PrefillOptions& options, const FidelityRun& run, bool json,
                                   ProgressBar& progress) {
  const std::vector<PrefillFidelity> results = measure_prefills(
      model, text.context, text.probes, ways, options, progress.callback("prefill"));
  progress.finish();
  const std::vector<Json> lines = prefill_json(results, run);
  if (json) {
    for (const Json& line : lines)
      fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
  } else {
    const std::size_t width = line_width(stdout);
    fmt::print("{}\n", table(results, width));
    fmt::print("{}", labelled("",
                              fmt::format("Against a dense prefill of {} tokens; all contexts are "
                                          "decoded with dense attention. keys: "
                                          "attended while reading, beside dense attention; mass: "
                                          "the share of dense attention that "
                                          "these hold, as blocks of tokens estimate it; "
                                          "perplexity: of the text; KL: of the next "
                                          "token in the text; answers: of the next token in "
                                          "questions and answers; error: |row - "
                                          "dense| / |dense| of the last layer's rows; seconds: "
                                          "with the logits of all tokens.",
                                          format_grouped(run.context_tokens)),
                              width, 0));
  }
  std::fflush(stdout);
  return lines;
}

}  // namespace topkv::cli
