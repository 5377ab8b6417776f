#include "src/context/prefill_query_sample.h"

#include <algorithm>

namespace topkv {

PrefillQuerySample::PrefillQuerySample(const AttentionShape& shape)
    : width_(shape.q_heads * shape.head_dim), layers_(static_cast<std::size_t>(shape.layers)) {}

void PrefillQuerySample::take(
    std::int64_t layer, std::int64_t first, std::int64_t tokens,
    const std::function<void(std::int64_t token, std::int64_t count, float* to)>& read) {
  if (layers_.empty()) return;
  Layer& of = layers_[static_cast<std::size_t>(layer)];
  if (of.lost) return;
  const std::int64_t end = first + tokens;
  while (end / of.stride > most_spread) of.stride *= 2;
  thin(of, end);
  const auto add = [&](std::int64_t position, std::int64_t count) {
    const std::size_t before = of.data.size();
    for (std::int64_t i = 0; i < count; ++i) of.positions.push_back(position + i);
    of.data.resize(of.positions.size() * static_cast<std::size_t>(width_));
    read(position - first, count, &of.data[before]);
  };
  const std::int64_t whole = std::max(first, end - last);
  const std::int64_t spread = (first + of.stride - 1) / of.stride * of.stride;
  for (std::int64_t position = spread; position < whole; position += of.stride) add(position, 1);
  add(whole, end - whole);
}

/// Drops what is neither spread nor of the last tokens before `end`.
void PrefillQuerySample::thin(Layer& layer, std::int64_t end) {
  std::size_t kept = 0;
  const auto width = static_cast<std::size_t>(width_);
  for (std::size_t i = 0; i < layer.positions.size(); ++i) {
    if (layer.positions[i] % layer.stride != 0 && layer.positions[i] < end - last) continue;
    layer.positions[kept] = layer.positions[i];
    if (kept != i) std::copy_n(&layer.data[i * width], width, &layer.data[kept * width]);
    ++kept;
  }
  layer.positions.resize(kept);
  layer.data.resize(kept * width);
}

void PrefillQuerySample::truncate(std::int64_t tokens) {
  for (Layer& layer : layers_) {
    const auto end = std::lower_bound(layer.positions.begin(), layer.positions.end(), tokens);
    layer.positions.erase(end, layer.positions.end());
    layer.data.resize(layer.positions.size() * static_cast<std::size_t>(width_));
  }
}

void PrefillQuerySample::lose(std::int64_t layer) {
  if (layers_.empty()) return;
  layers_[static_cast<std::size_t>(layer)] = {.lost = true};
}

void PrefillQuerySample::fields(std::int64_t layer, std::int64_t tokens, Archive& archive) {
  Layer& of = layers_[static_cast<std::size_t>(layer)];
  std::int64_t lost = of.lost ? 1 : 0;
  archive.value(lost);
  archive.value(of.stride);
  archive.array(of.positions);
  archive.array(of.data);
  if (!archive.reading()) return;
  of.lost = lost != 0;
  const std::int64_t kept = std::ssize(of.positions);
  archive.check(lost >= 0 && lost <= 1 && of.stride > 0, "its stride is not above 0");
  archive.check(kept <= most_spread + 1 + last && of.stride <= std::int64_t{1} << 40,
                "it has more queries than any context keeps");
  archive.check(kept == 0 || width_ <= std::ssize(of.data) / kept, "queries are missing");
  archive.check(kept * width_ == std::ssize(of.data) && (kept == 0 || !of.lost),
                "it has not one query for each position");
  for (std::int64_t i = 0; i < kept; ++i) {
    const std::int64_t position = of.positions[static_cast<std::size_t>(i)];
    const std::int64_t before = i == 0 ? -1 : of.positions[static_cast<std::size_t>(i - 1)];
    archive.check(position > before && position < tokens,
                  "positions do not ascend within the context");
  }
}

std::int64_t PrefillQuerySample::memory() const {
  std::size_t bytes = layers_.capacity() * sizeof(Layer);
  for (const Layer& layer : layers_) {
    bytes += layer.positions.capacity() * sizeof(layer.positions[0]) +
             layer.data.capacity() * sizeof(layer.data[0]);
  }
  return static_cast<std::int64_t>(bytes);
}

PrefillQueries PrefillQuerySample::of(const AttentionShape& shape, std::int64_t layer,
                                      std::int64_t kv_head, std::int64_t tokens,
                                      std::vector<float>& gathered,
                                      std::vector<std::int64_t>& positions) const {
  positions.clear();
  gathered.clear();
  const std::int64_t group = shape.group();
  const std::int64_t row = group * shape.head_dim;
  PrefillQueries out{.group = group,
                     .dim = shape.head_dim,
                     .scale = shape.softmax_scale(),
                     .softcap = shape.softcap};
  if (layers_.empty()) return out;
  const Layer& of = layers_[static_cast<std::size_t>(layer)];
  const auto gather = [&](std::size_t i) {
    positions.push_back(of.positions[i]);
    const float* from = &of.data[i * static_cast<std::size_t>(width_)] + kv_head * row;
    gathered.insert(gathered.end(), from, from + row);
  };
  for (std::size_t i = 0; i < of.positions.size(); ++i) {
    if (of.positions[i] % of.stride == 0) gather(i);
  }
  out.spread = std::ssize(positions);
  std::size_t first = of.positions.size();  // of the last tokens, without a gap
  for (std::int64_t position = tokens - 1; first > 0 && position >= tokens - last; --position) {
    if (of.positions[first - 1] != position) break;
    --first;
  }
  for (std::size_t i = first; i < of.positions.size(); ++i) gather(i);
  out.positions = positions;
  out.data = gathered.data();
  return out;
}

}  // namespace topkv
