#include "src/cli/bench/bench_report.h"

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "src/cli/terminal/profile.h"
#include "src/cli/terminal/report.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "src/eval/run/retrieval_setting.h"

namespace topkv::cli {
namespace {

std::string milliseconds(double seconds) { return fmt::format("{:.3f}", seconds * 1000); }
std::string exact_seconds(double seconds) { return fmt::format("{:.3f} s", seconds); }
std::string seconds_or_dash(double seconds) { return seconds > 0 ? format_seconds(seconds) : "-"; }
std::string bytes_or_dash(double bytes) {
  return bytes > 0 ? byte_text(static_cast<std::int64_t>(bytes)) : "-";
}
std::string ms_or_dash(double seconds) { return seconds > 0 ? milliseconds(seconds) : "-"; }

/// One figure of a result: its heading in the table, its name in JSON, and how people read it.
template <class Result>
struct Column {
  const char* heading;
  const char* name;
  std::function<double(const Result&, const BenchReport&)> value;
  std::function<std::string(double)> text;
  bool only_if_used = false;   ///< left out of the table when it is 0 in all rows
  bool counts = false;         ///< a whole number in JSON
  bool may_not_apply = false;  ///< null in JSON when it is 0
};

double per_second(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

double floor_seconds(std::int64_t bytes, const BenchReport& report) {
  return per_second(static_cast<double>(bytes), report.read_bandwidth);
}

Column<DecodeResult> phase(const char* heading, const char* name, double StepTimes::*member) {
  return {
      heading, name,
      [member](const DecodeResult& result, const BenchReport&) { return result.mean_of(member); },
      milliseconds, true};
}

double unaccounted(const DecodeResult& result) {
  double accounted = 0;
  for (const StepTimes& layer : result.layer_times) accounted += layer.total();
  return result.mean() - accounted / static_cast<double>(result.token_seconds.size());
}

const std::vector<Column<DecodeResult>>& decode_columns() {
  using R = DecodeResult;
  using B = BenchReport;
  static const std::vector<Column<R>> columns = {
      {"build", "index_build_seconds", [](const R& r, const B&) { return r.build_seconds; },
       seconds_or_dash, true},
      {"open", "open_seconds", [](const R& r, const B&) { return r.open_seconds; }, exact_seconds},
      {"size", "index_bytes",
       [](const R& r, const B&) { return static_cast<double>(r.index_bytes); }, bytes_or_dash, true,
       true},
      {"sessions", "sessions", [](const R& r, const B&) { return static_cast<double>(r.sessions); },
       [](double sessions) { return fmt::format("{:.0f}", sessions); }, false, true},
      {"rows/head", "rows_per_head", [](const R& r, const B&) { return r.rows_per_head; },
       [](double rows) { return fmt::format("{:.0f}", rows); }},
      {"coded", "coded_tokens",
       [](const R& r, const B&) { return static_cast<double>(r.coded_tokens); },
       [](double tokens) { return fmt::format("{:.0f}", tokens); }, true, true},
      {"ms", "median_seconds", [](const R& r, const B&) { return r.median(); }, milliseconds},
      {"p90", "p90_seconds", [](const R& r, const B&) { return r.p90(); }, milliseconds},
      {"tokens/s", "tokens_per_second",
       [](const R& r, const B&) { return per_second(static_cast<double>(r.sessions), r.median()); },
       format_rate},
      phase("q out", "q_out_seconds", &StepTimes::q_out),
      phase("append", "append_seconds", &StepTimes::append),
      phase("window", "window_seconds", &StepTimes::window),
      phase("search", "search_seconds", &StepTimes::search),
      phase("attend", "attend_seconds", &StepTimes::attend),
      phase("tail", "tail_seconds", &StepTimes::tail),
      phase("merge", "merge_seconds", &StepTimes::merge),
      {"other", "other_seconds", [](const R& r, const B&) { return unaccounted(r); }, milliseconds},
      {"keys floor", "key_floor_seconds",
       [](const R& r, const B& b) { return floor_seconds(r.key_bytes, b); }, ms_or_dash, false,
       false, true},
      {"rows floor", "row_floor_seconds",
       [](const R& r, const B& b) { return floor_seconds(r.row_bytes, b); }, ms_or_dash},
  };
  return columns;
}

const std::vector<Column<PrefillResult>>& prefill_columns() {
  using R = PrefillResult;
  using B = BenchReport;
  static const std::vector<Column<R>> columns = {
      {"tokens", "tokens", [](const R& r, const B&) { return static_cast<double>(r.tokens); },
       [](double tokens) { return format_grouped(static_cast<std::int64_t>(tokens)); }, false,
       true},
      {"attend", "attend_seconds", [](const R& r, const B&) { return r.attend_seconds; },
       exact_seconds},
      {"tokens/s", "tokens_per_second",
       [](const R& r, const B&) {
         return per_second(static_cast<double>(r.tokens), r.attend_seconds);
       },
       format_rate},
      {"TFLOP/s", "attend_tflops",
       [](const R& r, const B&) { return per_second(r.flop / 1e12, r.attend_seconds); },
       format_rate},
  };
  return columns;
}

std::vector<std::string> names_of(const DecodeResult& result) { return {result.index, result.k}; }
std::vector<std::string> names_of(const PrefillResult& result) {
  return {std::string(name_of(result.mode))};
}

template <class Result>
std::string table(std::vector<std::string> headings, const std::vector<Column<Result>>& columns,
                  const std::vector<Result>& results, const BenchReport& report,
                  std::size_t width) {
  const TableFit fit{.width = width, .keys = headings.size(), .cut = {}};
  std::vector<bool> right(headings.size(), false);
  std::vector<std::vector<std::string>> rows;
  for (const Result& result : results) rows.push_back(names_of(result));
  for (const Column<Result>& column : columns) {
    bool used = !column.only_if_used;
    for (const Result& result : results) used = used || column.value(result, report) != 0;
    if (!used) continue;
    headings.emplace_back(column.heading);
    right.push_back(true);
    for (std::size_t i = 0; i < results.size(); ++i) {
      rows[i].push_back(column.text(column.value(results[i], report)));
    }
  }
  return format_table({headings, rows, right}, fit);
}

std::string mass_table(const BenchReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const AttentionMass& mass : report.mass) {
    rows.push_back({std::string(name_of(mass.kind)), std::to_string(mass.layer),
                    std::to_string(mass.k), fmt::format("{:.1f} %", 100 * mass.share)});
  }
  return format_table(
      {{"layer kind", "layer", "best rows", "of the attention"}, rows, {false, true, true, true}});
}

// Seconds of a token's mean in one layer.
Json layer_json(const StepTimes& times, std::int64_t tokens) {
  const auto mean = [&](double seconds) { return seconds / static_cast<double>(tokens); };
  return {{"q_out", mean(times.q_out)},   {"append", mean(times.append)},
          {"window", mean(times.window)}, {"search", mean(times.search)},
          {"attend", mean(times.attend)}, {"tail", mean(times.tail)},
          {"merge", mean(times.merge)}};
}

Json common_json(const BenchReport& report) {
  const BenchOptions& bench_options = report.bench_options;
  Json json;
  json["bench"] = report.what;
  json["shape"] = bench_options.name;
  json["layers"] = bench_options.all_layers;
  json["measured_layers"] = bench_options.shape.layers;
  json["q_heads"] = bench_options.shape.q_heads;
  json["kv_heads"] = bench_options.shape.kv_heads;
  json["head_dim"] = bench_options.shape.head_dim;
  json["context_tokens"] = bench_options.context;
  json["device"] = report.device.name();
  if (report.device.is_cuda()) json["device_peak_bytes"] = report.device.memory().peak;
  json["seed"] = bench_options.seed;
  json["rows_bytes"] = report.rows_bytes;
  json["rows_seconds"] = report.rows_seconds;
  json["read_bytes_per_second"] = report.read_bandwidth;
  json["version"] = version();
  return json;
}

template <class Result>
void add_columns(Json& json, const std::vector<Column<Result>>& columns, const Result& result,
                 const BenchReport& report) {
  for (const Column<Result>& column : columns) {
    const double value = column.value(result, report);
    if (column.may_not_apply && value == 0) {
      json[column.name] = nullptr;
    } else if (column.counts) {
      json[column.name] = static_cast<std::int64_t>(value);
    } else {
      json[column.name] = value;
    }
  }
}

std::string heading(const BenchReport& report, std::size_t width) {
  const BenchOptions& bench_options = report.bench_options;
  const auto paragraph = [&](const std::string& line) { return labelled("", line, width, 0); };
  std::string text = paragraph(fmt::format(
      "{}: {} layers, {} query heads, {} KV heads, head dim {}; {} tokens", bench_options.name,
      bench_options.all_layers, bench_options.shape.q_heads, bench_options.shape.kv_heads,
      bench_options.shape.head_dim, format_grouped(bench_options.context)));
  if (bench_options.shape.layers < bench_options.all_layers) {
    text += paragraph(
        fmt::format("only the first {} of {} layers are measured: all figures are of these",
                    bench_options.shape.layers, bench_options.all_layers));
  }
  text += paragraph(fmt::format("{}; host memory is read at {:.1f} GB/s", report.device.name(),
                                report.read_bandwidth / 1e9));
  return text +
         paragraph(fmt::format("{} of generated rows, made in {}", byte_text(report.rows_bytes),
                               format_seconds(report.rows_seconds))) +
         "\n";
}

/// What a table does not show, of all its rows.
std::string asked_for(const RetrievalOptions& options) {
  std::string text;
  if (!options.tail.empty()) text += ", tail " + options.tail;
  if (options.mass) text += fmt::format(", mass {}", *options.mass);
  if (options.error) text += fmt::format(", error {}", *options.error);
  if (options.guarantee) text += ", guarantee " + *guarantee_text(options);
  return text.empty() ? text : ". Asked for:" + text.substr(1);
}

}  // namespace

std::string bench_text(const BenchReport& report, bool profile, std::size_t width) {
  std::string text = heading(report, width);
  if (report.what == "prefill") {
    return text + table({"prefill"}, prefill_columns(), report.prefill, report, width);
  }
  if (!report.mass.empty()) text += mass_table(report) + "\n";
  text += table({"index", "top k"}, decode_columns(), report.decode, report, width);
  const std::string note = fmt::format(
      "ms per step: the median of {} steps after {}, and what their mean consists of. Floors: "
      "bytes "
      "of keys that exact search reads, and of rows that query heads attend, at the rate above",
      report.bench_options.tokens, report.bench_options.after);
  text += "\n" + labelled("", note + asked_for(report.bench_options.rows.front()), width, 0);
  for (const DecodeResult& result : report.decode) {
    if (!profile) continue;
    text += fmt::format("\n{}, top {}: {}", result.index, result.k,
                        profile_table(result.layer_times, report.bench_options.tokens, 0, width));
  }
  return text;
}

std::vector<Json> bench_json(const BenchReport& report, bool profile) {
  std::vector<Json> lines;
  for (const PrefillResult& result : report.prefill) {
    Json json = common_json(report);
    json["prefill"] = names_of(result).front();
    json["chunk"] = report.bench_options.chunk;
    add_columns(json, prefill_columns(), result, report);
    lines.push_back(std::move(json));
  }
  for (std::size_t i = 0; i < report.decode.size(); ++i) {
    const DecodeResult& result = report.decode[i];
    const RetrievalOptions& options = report.bench_options.rows[i];
    Json json = common_json(report);
    json["index"] = result.index;
    json["kv_topk"] = result.k;
    json["kv_window"] = options.window;
    json["kv_sinks"] = options.sinks;
    if (!options.tail.empty()) json["kv_tail"] = options.tail;
    if (options.mass) json["kv_mass"] = *options.mass;
    if (options.error) json["kv_error"] = *options.error;
    if (options.guarantee) json["kv_guarantee"] = *guarantee_text(options);
    json["kv_select"] = options.select_by == SelectBy::group ? "group" : "query_head";
    if (options.host_search) json["kv_host_search"] = true;
    if (options.device_rows > 0) json["kv_gpu_rows"] = options.device_rows;
    json["kv_dense_layers"] = options.dense_layers;
    add_columns(json, decode_columns(), result, report);
    json["after"] = report.bench_options.after;
    json["token_seconds"] = result.token_seconds;
    for (const AttentionMass& mass : report.mass) {
      json["attention_mass"].push_back({{"kind", name_of(mass.kind)},
                                        {"layer", mass.layer},
                                        {"k", mass.k},
                                        {"share", mass.share}});
    }
    if (profile) {
      for (const StepTimes& times : result.layer_times) {
        json["layer_seconds"].push_back(layer_json(times, report.bench_options.tokens));
      }
    }
    lines.push_back(std::move(json));
  }
  return lines;
}

}  // namespace topkv::cli
