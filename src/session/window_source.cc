#include "src/session/window_source.h"

namespace topkv {

void WindowSource::contribute(Step& step) {
  const std::int64_t layer = step.layer();
  for (const Segment& segment : session_.segments) {
    const PositionRange range = session_.seen_of(segment, layer);
    spans_.clear();
    for (std::int64_t head = 0; head < session_.shape.kv_heads_of(layer); ++head)
      spans_.push_back({segment.rows(layer, head).part(range), segment.first + range.begin});
    session_.backend.window->attend(layer, spans_);
  }
}

}  // namespace topkv
