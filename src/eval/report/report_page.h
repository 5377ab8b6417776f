// A run's results as one page for a browser: the picture, tables and settings in one file, which
// loads nothing and needs no network.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace topkv {

/// Cells of text under headings.
struct ResultTable {
  std::vector<std::string> headings;
  std::vector<std::vector<std::string>> rows;  ///< each as long as headings
  std::vector<bool> right;                     ///< of each column: aligned at the right
};

/// All texts are plain UTF-8.
struct ReportPage {
  std::string title;
  std::string subtitle = {};  ///< beyond what the picture says; empty: none
  std::string picture = {};   ///< an SVG document; empty: none
  struct Part {
    std::string title;
    ResultTable table;
    std::string note = {};
  };
  std::vector<Part> parts = {};  ///< those without rows are left out
};

/// A self-contained HTML document, light or dark as the reader prefers. settings: an object whose
/// members are listed, in their order.
std::string html_page(const ReportPage& page, const nlohmann::ordered_json& settings);

}  // namespace topkv
