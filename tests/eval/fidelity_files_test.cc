// What is written of a fidelity measurement: CSV and the picture.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "src/core/format/csv.h"
#include "src/eval/report/fidelity_chart.h"
#include "src/eval/report/fidelity_lines.h"
#include "src/eval/report/log_axis.h"
#include "tests/eval/svg.h"

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

Fidelity setting(const std::string& index, const std::string& tail, const std::string& k,
                 double error, double kl, std::int64_t bytes_read) {
  Fidelity made;
  made.options.index = index;
  made.options.tail = tail;
  made.k = k;
  made.error_mean = error;
  made.kl.mean = kl;
  made.layer_error = {error, error};
  made.bytes_read = bytes_read;
  return made;
}

constexpr std::int64_t mib = 1 << 20;

std::vector<Fidelity> some_settings() {
  return {setting("exact", "none", "256", 0.4, 0.03, 20 * mib),
          setting("codes:k=16,v=8", "codes:k=16,v=8", "256", 0.05, 1e-3, 7 * mib),
          setting("codes:k=16,v=8", "codes:k=16,v=8", "64", 0.06, 2e-3, 5 * mib)};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Undoes RFC 4180.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[i++];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(FidelityCsv, HasTheFieldsOfJsonButLists) {
  FidelityReport report{1.9, some_settings()};
  report.settings[0].recall = 0.25;
  report.settings[1].options.host_search = true;
  const std::vector<Json> json =
      fidelity_json(report, {8169, "a \"b\", c", "window", "stored", "NVIDIA H200", "0.1.0"});
  const std::vector<std::string> lines = lines_of(csv_lines(json));
  ASSERT_EQ(lines.size(), 4U);
  std::vector<std::string> names;
  for (const auto& [name, value] : json.front().items()) {
    if (!name.starts_with("layer_")) names.push_back(name);
  }
  EXPECT_EQ(fields_of(lines[0]), names);
  for (std::size_t i = 0; i < json.size(); ++i) {
    const std::vector<std::string> fields = fields_of(lines[i + 1]);
    ASSERT_EQ(fields.size(), names.size()) << lines[i + 1];
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const Json& value = json[i].at(names[f]);
      if (value.is_null()) {
        EXPECT_EQ(fields[f], "") << names[f];
      } else if (value.is_string()) {
        EXPECT_EQ(fields[f], value.get<std::string>()) << names[f];
      } else if (value.is_boolean()) {
        EXPECT_EQ(fields[f], value.get<bool>() ? "true" : "false") << names[f];
      } else {
        EXPECT_EQ(std::stod(fields[f]), value.get<double>()) << names[f];
      }
    }
  }
}

TEST(FidelityCsv, QuotesWhatNeedsItAndLeavesEmptyWhatIsNotKnown) {
  FidelityReport report{1, {setting("hnsw:M=16,ef=64", "none", "64", 0.1, 0.1, 0)}};
  report.settings[0].kl.mean = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Json> json =
      fidelity_json(report, {1, "x\"y", "dense", "stored", "host", "0.1.0"});
  const std::string line = lines_of(csv_lines(json)).at(1);
  EXPECT_TRUE(line.starts_with("\"hnsw:M=16,ef=64, top 64, tail none\",\"hnsw:M=16,ef=64\",64,"))
      << line;
  EXPECT_NE(line.find(",\"x\"\"y\",dense,"), line.npos) << line;
  EXPECT_EQ(line.find("null"), line.npos) << line;
  const std::vector<std::string> names = fields_of(lines_of(csv_lines(json)).at(0));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::set<std::string> none{"kl_mean",   "bytes_read",  "recall",          "mass",
                                     "mass_p10",  "mass_recall", "mass_recall_p10", "error_told",
                                     "mass_told", "kv_mass",     "kv_error",        "kv_guarantee"};
    const bool unknown = none.contains(names[i]);
    EXPECT_EQ(fields_of(line)[i].empty(), unknown) << names[i];
  }
}

TEST(FidelityChart, HasEverySettingInBothPanelsAndALinePerIndexAndTail) {
  const std::vector<Fidelity> settings = some_settings();
  const std::string svg = fidelity_svg(settings, "title", "subtitle");
  expect_well_formed(svg);
  for (const Fidelity& one : settings) {
    EXPECT_EQ(count(svg, "<title>" + setting_text(one) + ":"), 2U) << setting_text(one);
  }
  EXPECT_EQ(count(svg, ">exact, tail none</text>"), 1U);
  EXPECT_EQ(count(svg, ">codes:k=16,v=8, tail codes:k=16,v=8</text>"), 1U);
  EXPECT_EQ(count(svg, "class='line'"), 2U + 2U);  // one has a single point; two in the legend
  EXPECT_EQ(count(svg, "bytes read per token<"), 2U);
  EXPECT_EQ(count(svg, ">8 MiB<"), 2U);
  EXPECT_EQ(count(svg, ">256<"), 4U);
  EXPECT_EQ(count(svg, "Not shown"), 0U);
  EXPECT_EQ(count(svg, ">&lt; "), 0U);
}

TEST(FidelityChart, IsWellFormedWhateverTheNames) {
  const std::string svg = fidelity_svg({setting("<&\"'>", "a & b", "<64>", 0.1, 0.1, mib)},
                                       "A & <B>", "it's \x01 \"so\"");
  expect_well_formed(svg);
  EXPECT_TRUE(svg.starts_with("<svg xmlns='http://www.w3.org/2000/svg'"));
}

TEST(FidelityChart, ZeroAndNearlyZeroStandInARowBelowTheAxis) {
  std::vector<Fidelity> settings = some_settings();
  settings[0].kl.mean = 0;
  settings[1].kl.mean = 1e-14;
  const std::string svg = fidelity_svg(settings, "", "");
  expect_well_formed(svg);
  EXPECT_EQ(count(svg, ">&lt; 5e-9<"), 1U);
  EXPECT_EQ(count(svg, "nan"), 0U);
  EXPECT_EQ(count(svg, "inf"), 0U);
  for (Fidelity& one : settings) one.error_mean = one.kl.mean = 0;
  const std::string zero = fidelity_svg(settings, "", "");
  expect_well_formed(zero);
  EXPECT_EQ(count(zero, ">&lt; "), 2U);
  EXPECT_EQ(count(zero, "nan"), 0U);
  EXPECT_EQ(count(zero, "inf"), 0U);
}

TEST(FidelityChart, NamesTheSettingsWithoutAPlace) {
  std::vector<Fidelity> settings = some_settings();
  settings.push_back(setting("hnsw:M=16", "none", "64", 0.1, 0.1, 0));
  settings.push_back(setting("hnsw:M=16", "none", "256", 0.1, 0.1, 0));
  settings.push_back(setting("exact", "none", "8", 0.1, std::nan(""), mib));
  for (const std::size_t i : {3U, 4U, 5U}) EXPECT_FALSE(has_place(settings[i])) << i;
  EXPECT_TRUE(has_place(settings[0]));
  const std::string svg = fidelity_svg(settings, "", "");
  expect_well_formed(svg);
  EXPECT_EQ(count(svg, "<title>hnsw"), 0U);
  EXPECT_EQ(count(svg, "known: hnsw:M=16, tail none, top 64, 256<"), 1U);
  EXPECT_EQ(count(svg, "known: exact, tail none, top 8<"), 1U);
}

TEST(LogAxis, EndsAndTicksAreRoundNumbersAroundTheValues) {
  const LogAxis near = decimal_axis(std::vector{0.03, 0.2});
  EXPECT_DOUBLE_EQ(near.low, 0.02);
  EXPECT_DOUBLE_EQ(near.high, 0.2);
  ASSERT_EQ(near.ticks.size(), 4U);
  EXPECT_DOUBLE_EQ(near.ticks[1], 0.05);
  EXPECT_DOUBLE_EQ(near.at(0.02), 0);
  EXPECT_DOUBLE_EQ(near.at(0.2), 1);
  const LogAxis far = decimal_axis(std::vector{3e-5, 0.7});
  EXPECT_DOUBLE_EQ(far.low, 2e-5);
  EXPECT_DOUBLE_EQ(far.high, 1);
  ASSERT_EQ(far.ticks.size(), 5U);
  EXPECT_DOUBLE_EQ(far.ticks[0], 1e-4);
  EXPECT_DOUBLE_EQ(far.ticks[4], 1);
}

TEST(LogAxis, OneValueOrNoneHasAnAxisToo) {
  for (const double value : {0.0, 1e-9, 0.02, 1.0, 5.0, 1e300}) {
    const LogAxis axis = decimal_axis(std::vector{value});
    EXPECT_LT(axis.low, axis.high) << value;
    EXPECT_GE(axis.ticks.size(), 2U) << value;
    EXPECT_TRUE(value == 0 || (axis.low <= value && value <= axis.high)) << value;
  }
}

TEST(LogAxis, ValuesFarBelowTheLargestAreNotCovered) {
  const LogAxis axis = decimal_axis(std::vector{0.0, 1e-15, 2e-3, 0.5});
  EXPECT_DOUBLE_EQ(axis.low, 2e-3);
  EXPECT_DOUBLE_EQ(axis.high, 0.5);
}

TEST(LogAxis, OfBytesEndsAtPowersOfTwo) {
  const LogAxis axis = binary_axis(std::vector{5.0 * mib, 40.0 * mib});
  EXPECT_EQ(axis.ticks,
            (std::vector<double>{4.0 * mib, 8.0 * mib, 16.0 * mib, 32.0 * mib, 64.0 * mib}));
  EXPECT_EQ(binary_axis(std::vector{1.0 * mib}).ticks, (std::vector<double>{1.0 * mib, 2.0 * mib}));
  EXPECT_LE(binary_axis(std::vector{1.0, 1e15}).ticks.size(), 9U);
}

}  // namespace
}  // namespace topkv
