#include "src/cli/terminal/profile.h"

#include <fmt/format.h>

#include <array>

#include "src/cli/terminal/report.h"
#include "src/cli/terminal/text_layout.h"

namespace topkv::cli {
namespace {

struct Column {
  const char* name;
  double StepTimes::*seconds;
};

constexpr std::array columns = {
    Column{"q out", &StepTimes::q_out},   Column{"append", &StepTimes::append},
    Column{"window", &StepTimes::window}, Column{"search", &StepTimes::search},
    Column{"attend", &StepTimes::attend}, Column{"tail", &StepTimes::tail},
    Column{"merge", &StepTimes::merge}};

}  // namespace

void add_difference(std::vector<StepTimes>& total, const std::vector<StepTimes>& after,
                    const std::vector<StepTimes>& before) {
  total.resize(after.size());
  for (std::size_t layer = 0; layer < after.size(); ++layer) {
    for (const Column& column : columns) {
      const double start = before.empty() ? 0 : before[layer].*column.seconds;
      total[layer].*column.seconds += after[layer].*column.seconds - start;
    }
  }
}

std::string profile_table(const std::vector<StepTimes>& layers, std::int64_t steps,
                          double whole_seconds, std::size_t width) {
  StepTimes all;
  for (const StepTimes& layer : layers) {
    for (const Column& column : columns) all.*column.seconds += layer.*column.seconds;
  }
  const double to_ms = steps > 0 ? 1e3 / static_cast<double>(steps) : 0;
  std::vector<std::string> header = {"layer"};
  std::vector<bool> right = {true};
  const auto row = [&](std::string name, const StepTimes& times) {
    std::vector<std::string> cells = {std::move(name)};
    for (const Column& column : columns) {
      if (all.*column.seconds > 0)
        cells.push_back(fmt::format("{:.3f}", times.*column.seconds * to_ms));
    }
    cells.push_back(fmt::format("{:.3f}", times.total() * to_ms));
    return cells;
  };
  for (const Column& column : columns) {
    if (all.*column.seconds > 0) header.emplace_back(column.name);
  }
  header.emplace_back("sum");
  right.resize(header.size(), true);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    rows.push_back(row(std::to_string(layer), layers[layer]));
  }
  rows.push_back(row("all", all));
  std::string text =
      fmt::format("milliseconds per step, mean of {} steps\n{}", steps,
                  format_table({header, rows, right}, {.width = width, .keys = 1, .cut = {}}));
  if (whole_seconds > 0) {
    text += labelled(
        "",
        fmt::format(
            "the whole step takes {:.3f} ms: {:.3f} in attention as above, the rest in the network",
            whole_seconds * to_ms, all.total() * to_ms),
        width, 0);
  }
  return text;
}

}  // namespace topkv::cli
