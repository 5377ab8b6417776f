// How the lines of a picture tell each other apart: a colour and a shape of marks for each.
#pragma once

#include <cstddef>
#include <string>

namespace topkv {

/// For svg_head: colours that every kind of colour vision tells apart, in light and dark. Classes
/// grid and frame of axes; line, mark and near (text beside a mark) inside a group of class s0 to
/// s5.
extern const char* const series_style;
inline constexpr std::size_t series_colours = 6;

/// How far a mark reaches around its point, in pixels.
inline constexpr int mark_reach = 7;

/// The mark of the series-th line around (x, y); title is what pointing at it tells, or empty.
std::string mark_svg(std::size_t series, double x, double y, const std::string& title);

}  // namespace topkv
