#include "src/eval/report/report_page.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/eval/report/chart_writer.h"

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

// No script, and a policy that lets none run and nothing be loaded, whatever the texts say.
constexpr const char* head = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
)";

constexpr const char* page_style = R"(<style>
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1f2328; --faint: #59636e; --line: #d1d9e0 }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e6edf3; --faint: #9198a1; --line: #3d444d } }
body { margin: 2rem auto; padding: 0 1rem; max-width: 84rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 0.5rem }
.faint { color: var(--faint) }
.wide { overflow-x: auto } .wide svg { max-width: 100%; height: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: 0.25rem 0.75rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
td { overflow-wrap: anywhere } .right { text-align: right; white-space: nowrap; overflow-wrap: normal }
th { font-weight: 600 } th.right { white-space: normal }
@media (max-width: 75rem) { table { font-size: 12.5px } th, td { padding: 0.2rem } .right { white-space: normal } }
</style>
)";

std::string row_of(const std::vector<std::string>& cells, const std::vector<bool>& right,
                   const char* element) {
  std::string text = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    text += fmt::format("<{0}{1}>{2}</{0}>", element, right[i] ? " class=\"right\"" : "",
                        svg_escaped(cells[i]));
  }
  return text + "</tr>\n";
}

std::string table_of(const ResultTable& table) {
  std::string text = "<div class=\"wide\"><table>\n<thead>" +
                     row_of(table.headings, table.right, "th") + "</thead>\n<tbody>\n";
  for (const std::vector<std::string>& row : table.rows) text += row_of(row, table.right, "td");
  return text + "</tbody>\n</table></div>\n";
}

std::string value_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    std::string text;
    for (const Json& one : value) text += (text.empty() ? "" : ", ") + value_text(one);
    return text;
  }
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string html_page(const ReportPage& page, const Json& settings) {
  std::string text = head;
  text += fmt::format("<title>{}</title>\n", svg_escaped(page.title));
  text += page_style;
  text += fmt::format("</head>\n<body>\n<h1>{}</h1>\n", svg_escaped(page.title));
  if (!page.subtitle.empty())
    text += fmt::format("<p class=\"faint\">{}</p>\n", svg_escaped(page.subtitle));
  if (!page.picture.empty()) text += "<div class=\"wide\">\n" + page.picture + "</div>\n";
  for (const ReportPage::Part& part : page.parts) {
    if (part.table.rows.empty()) continue;
    text += fmt::format("<h2>{}</h2>\n", svg_escaped(part.title)) + table_of(part.table);
    if (!part.note.empty())
      text += fmt::format("<p class=\"faint\">{}</p>\n", svg_escaped(part.note));
  }
  ResultTable listed{{"setting", "value"}, {}, {false, false}};
  for (const auto& [name, value] : settings.items())
    listed.rows.push_back({name, value_text(value)});
  return text + "<h2>Settings</h2>\n" + table_of(listed) + "</body>\n</html>\n";
}

}  // namespace topkv
