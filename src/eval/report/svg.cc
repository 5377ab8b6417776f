#include "src/eval/report/svg.h"

#include <fmt/format.h>

#include <algorithm>

namespace topkv {

std::string svg_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&apos;";
        break;
      default:
        // XML knows no control characters.
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string svg_head(int width, int height, const std::string& title, const std::string& subtitle,
                     std::string_view style) {
  std::string text = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' viewBox='0 0 {0} {1}' "
      "role='img' aria-label='{2}'>\n",
      width, height, svg_escaped(title));
  text += R"(<style>
  .paper { fill: #ffffff } .ink { fill: #1f2328 } .faint { fill: #59636e }
  text { font-family: system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; font-size: 13px }
  .title { font-size: 17px; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } .ink { fill: #e6edf3 } .faint { fill: #9198a1 }
  })";
  text += style;
  text += "\n</style>\n";
  text += fmt::format("<rect class='paper' width='{}' height='{}'/>\n", width, height);
  text += fmt::format("<text class='ink title' x='20' y='34'>{}</text>\n", svg_escaped(title));
  return text + fmt::format("<text class='faint' x='20' y='56'>{}</text>\n", svg_escaped(subtitle));
}

int svg_text_width(const std::string& text) {
  const auto continues = [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U;
  };
  return 8 * static_cast<int>(text.size() - static_cast<std::size_t>(std::count_if(
                                                text.begin(), text.end(), continues)));
}

}  // namespace topkv
