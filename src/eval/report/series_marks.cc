#include "src/eval/report/series_marks.h"

#include <fmt/format.h>

#include <array>

#include "src/eval/report/svg.h"

namespace topkv {
namespace {

// Around (0, 0).
constexpr std::array<const char*, 5> marks = {"m-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
                                              "m-5 -5h10v10h-10z", "m0 -7l7 7l-7 7l-7 -7z",
                                              "m0 -6l7 11h-14z", "m0 6l7 -11h-14z"};

}  // namespace

const char* const series_style = R"(
  .grid { stroke: #d8dee4 } .frame { fill: none; stroke: #9aa4ae }
  .line { fill: none; stroke: currentColor; stroke-width: 2; stroke-opacity: 0.6 }
  .mark { fill: currentColor; stroke: #ffffff; stroke-width: 1.5 }
  .near { font-size: 12px; paint-order: stroke; stroke: #ffffff; stroke-width: 3px; stroke-linejoin: round }
  .s0 { color: #0072b2 } .s1 { color: #d55e00 } .s2 { color: #008f68 }
  .s3 { color: #aa3377 } .s4 { color: #8c6d00 } .s5 { color: #56606b }
  @media (prefers-color-scheme: dark) {
    .grid { stroke: #30363d } .frame { stroke: #59636e } .mark, .near { stroke: #0d1117 }
    .s0 { color: #4aa3df } .s1 { color: #ff8a3c } .s2 { color: #2fc79b }
    .s3 { color: #d97bb0 } .s4 { color: #d0b040 } .s5 { color: #a5afba }
  })";

std::string mark_svg(std::size_t series, double x, double y, const std::string& title) {
  return fmt::format("<path class='mark' d='M{:.1f} {:.1f}{}'>{}</path>\n", x, y,
                     marks[series % marks.size()],
                     title.empty() ? "" : fmt::format("<title>{}</title>", svg_escaped(title)));
}

}  // namespace topkv
