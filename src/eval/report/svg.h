// What the SVG pictures of results have in common.
#pragma once

#include <string>
#include <string_view>

namespace topkv {

/// Plain text as it stands in an element or in a quoted attribute.
std::string svg_escaped(const std::string& text);

/// A self-contained document's beginning: its size in pixels, light or dark as the reader prefers,
/// with title and subtitle (plain text) in its first 60 pixels. It knows the classes ink, faint and
/// title of texts, and those that `style` adds. "</svg>" ends it.
std::string svg_head(int width, int height, const std::string& title, const std::string& subtitle,
                     std::string_view style);

/// About as wide as the text is drawn, in pixels; rather more.
int svg_text_width(const std::string& text);

}  // namespace topkv
