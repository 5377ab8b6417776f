// Results as a page for a browser.

#include "src/eval/report/report_page.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/eval/svg.h"

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

std::string body_of(const std::string& page) {
  const std::size_t begin = page.find("<body>");
  return page.substr(begin, page.find("</html>") - begin);
}

TEST(ReportPage, IsOneFileThatRunsAndLoadsNothingWhateverTheTexts) {
  const std::string nasty = "<script>alert(\"x\")</script>&'";
  const std::string page = html_page(
      {.title = nasty, .subtitle = nasty, .parts = {{nasty, {{nasty}, {{nasty}}, {true}}, nasty}}},
      Json{{nasty, nasty}, {"list", {nasty, 1}}});
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_EQ(page.find("<script"), page.npos);
  for (const char* loads : {"http://", "https://", " src=", " href=", "url(", "@import"})
    EXPECT_EQ(page.find(loads), page.npos) << loads;
  EXPECT_NE(page.find("default-src 'none'"), page.npos);
  expect_well_formed(body_of(page));
}

TEST(ReportPage, HasThePictureTheTablesWithRowsAndEverySetting) {
  const std::string page = html_page(
      {.title = "title",
       .picture = "<svg></svg>\n",
       .parts = {{"Scores", {{"name", "score"}, {{"a", "1"}, {"b", "2"}}, {false, true}}},
                 {"Nothing", {{"name"}, {}, {false}}}}},
      Json{{"kv_topk", 64}, {"lengths", {4096, 8192}}, {"model", "a b"}, {"share", nullptr}});
  expect_well_formed(body_of(page));
  for (const char* part : {"<svg></svg>", "<h2>Scores</h2>", "<td>b</td><td class=\"right\">2</td>",
                           "<td>kv_topk</td><td>64</td>", "<td>lengths</td><td>4096, 8192</td>",
                           "<td>model</td><td>a b</td>", "<td>share</td><td>null</td>"})
    EXPECT_NE(page.find(part), page.npos) << part;
  EXPECT_EQ(page.find("Nothing"), page.npos);
}

}  // namespace
}  // namespace topkv
