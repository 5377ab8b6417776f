// Where the panels of a chart lie in its picture, in pixels: what the charts have in common.
#pragma once

namespace topkv::chart {

inline constexpr int margin = 20;
inline constexpr int right = 48;
inline constexpr int least_plot_width = 620;
inline constexpr int inset = 16;         ///< of the ends of an axis from the frame
inline constexpr int first_panel = 104;  ///< below title and subtitle
inline constexpr int below_plot = 98;    ///< of ticks, axis title and the next panel's title
inline constexpr int legend_line = 22;

}  // namespace topkv::chart
