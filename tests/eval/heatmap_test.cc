// The needle grid and its picture.

#include "src/eval/report/heatmap.h"

#include <gtest/gtest.h>

#include "tests/eval/svg.h"
#include "tests/support/eval_cells.h"

namespace topkv {
namespace {

Grid sample_grid(const std::vector<std::string>& indices) {
  return make_grid(sample_cells(), {32768, 4096, 1048576}, {95, 5}, indices);
}

TEST(Heatmap, GridsAreSortedAndKnowWhatWasNotRun) {
  const Grid grid = sample_grid({"exact", "hnsw:M=16"});
  EXPECT_EQ(grid.lengths, (std::vector<std::int64_t>{4096, 32768, 1048576}));
  EXPECT_EQ(grid.depths, (std::vector<double>{5, 95}));
  EXPECT_EQ(grid.panels[0].found[0][0], std::optional<bool>(true));
  EXPECT_EQ(grid.panels[0].found[1][0], std::optional<bool>(false));
  EXPECT_EQ(grid.panels[0].found[0][2], std::nullopt);
  EXPECT_EQ(grid.panels[1].found[0][0], std::nullopt);
}

TEST(Heatmap, SvgIsWellFormedWhateverTheNames) {
  const std::string svg =
      svg_heatmap(sample_grid({"exact", "<&\"'>"}), "A & <B>", "it's \x01 \"so\"");
  expect_well_formed(svg);
  EXPECT_TRUE(svg.starts_with("<svg xmlns='http://www.w3.org/2000/svg'"));
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
}

TEST(Heatmap, SvgDrawsEveryCellOnceAndLabelsBothAxes) {
  const std::string svg = svg_heatmap(sample_grid({"exact"}), "title", "subtitle");
  const auto count = [&](const std::string& part) {
    std::size_t n = 0;
    for (auto at = svg.find(part); at != std::string::npos; at = svg.find(part, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("class='found'"), 3U + 1U);  // and one in the legend
  EXPECT_EQ(count("class='missed'"), 1U + 1U);
  EXPECT_EQ(count("class='open'"), 2U + 1U);
  for (const char* label : {">4K<", ">32K<", ">1M<", ">5 %<", ">95 %<", "context length (tokens)",
                            "depth of the needle", ">found<", ">missed<", ">not run<"}) {
    EXPECT_EQ(count(label), 1U) << label;
  }
}

/// Where a text stands: of the first element that ends with `>text<`.
int place(const std::string& svg, const std::string& text, const char* axis) {
  const std::size_t end = svg.find(">" + text + "<");
  EXPECT_NE(end, svg.npos) << text;
  const std::size_t begin = svg.rfind(std::string(" ") + axis + "='", end);
  return std::stoi(svg.substr(begin + 4));
}

TEST(Heatmap, IndicesHavePanelsBesideEachOtherWithWhatTheyFound) {
  const std::string two = svg_heatmap(sample_grid({"exact", "hnsw:M=16"}), "title", "subtitle");
  EXPECT_EQ(place(two, "exact", "y"), place(two, "hnsw:M=16", "y"));
  EXPECT_LT(place(two, "exact", "x"), place(two, "hnsw:M=16", "x"));
  // Of the six cells four were run with exact search.
  EXPECT_NE(two.find(">3 of 4 found<"), two.npos) << two;
  EXPECT_EQ(svg_heatmap(sample_grid({"exact"}), "t", "s").find(" found<"), std::string::npos);
  // Ten are no wider than a page: two rows of five.
  std::vector<std::string> names;
  for (int i = 0; i < 10; ++i) names.push_back("index" + std::to_string(i));
  const std::string ten = svg_heatmap(sample_grid(names), "title", "subtitle");
  expect_well_formed(ten);
  EXPECT_EQ(place(ten, "index0", "y"), place(ten, "index4", "y"));
  EXPECT_GT(place(ten, "index5", "y"), place(ten, "index4", "y"));
  EXPECT_EQ(place(ten, "index0", "x"), place(ten, "index5", "x"));
  EXPECT_EQ(place(ten, "index5", "y"), place(ten, "index9", "y"));
}

TEST(Heatmap, PanelsFillTheWidthThatTheTextTakes) {
  const auto right = [](const std::string& svg) {  // of the last cell of the first row
    const std::size_t mark = svg.find("class='missed'");
    const std::size_t x = svg.find("x='", mark);
    const std::size_t width = svg.find("width='", mark);
    return std::stoi(svg.substr(x + 3)) + std::stoi(svg.substr(width + 7));
  };
  const Grid grid = make_grid({sample_cells()[1]}, {sample_cells()[1].length},
                              {sample_cells()[1].depth.value()}, {sample_cells()[1].method});
  const auto picture = [&](std::size_t letters) {
    return svg_heatmap(grid, "title", std::string(letters, 's'));
  };
  ASSERT_FALSE(sample_cells()[1].found());
  EXPECT_GT(right(picture(34)), right(picture(4)));
  EXPECT_NEAR(right(picture(34)), 20 + 34 * 8 - 24, 4);
  EXPECT_EQ(right(picture(300)), right(picture(200)));  // a cell is no banner
}

}  // namespace
}  // namespace topkv
