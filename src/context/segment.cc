#include "src/context/segment.h"

#include <fmt/format.h>

#include <algorithm>

#include "index/common/index_factory.h"
#include "index/exact/exact_index.h"
#include "topkv/error.h"

namespace topkv {

SegmentIndex::SegmentIndex(const IndexSpec& of, const AttentionShape& shape)
    : spec(of), layers(static_cast<std::size_t>(shape.layers)), row_layer(shape.row_layer) {
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    if (!shape.has_index(layer)) continue;
    LayerIndex& index = layers[static_cast<std::size_t>(layer)];
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) index.heads.push_back(spec.factory().make());
    index.tails.resize(index.heads.size());
  }
}

std::int64_t SegmentIndex::inserted() const {
  std::int64_t sum = 0;
  for (const LayerIndex& layer : layers) {
    for (const auto& head : layer.heads) sum += head->inserted();
  }
  return sum;
}

std::int64_t SegmentIndex::keys(std::int64_t tokens) const {
  std::int64_t sum = 0;
  for (const LayerIndex& layer : layers) sum += std::ssize(layer.heads) * tokens;
  return sum;
}

std::int64_t SegmentIndex::memory(bool heads) const {
  std::int64_t sum = 0;
  for (const LayerIndex& layer : layers) {
    for (const auto& tail : layer.tails) sum += tail ? tail->memory() : 0;
    for (const auto& head : layer.heads) sum += heads ? head->memory() : 0;
  }
  return sum;
}

std::vector<std::string> Segment::specs() const {
  std::vector<std::string> specs;
  for (const auto& index : indices) specs.push_back(index->spec.text());
  return specs;
}

const SegmentIndex* Segment::find(std::string_view normal) const {
  const auto found = std::ranges::find_if(
      indices, [&](const auto& index) { return index->spec.text() == normal; });
  return found == indices.end() ? nullptr : found->get();
}

const SegmentIndex& Segment::index(std::string_view spec) const {
  const SegmentIndex* index = find(spec);  // a spec in normal form costs nothing more
  if (index == nullptr) index = find(IndexSpec(spec).text());
  if (index != nullptr) return *index;
  throw InvalidArgument(
      fmt::format("the context has no index '{}', only {}; add it with with_index", spec,
                  fmt::join(specs(), ", ")));
}

void Segment::search(const SegmentIndex* index, std::int64_t layer, std::int64_t kv_head,
                     const QueryBlock& queries, std::int64_t k, const CandidateEntries* given,
                     SearchResult& result) const {
  result.reset(queries.count, 1);
  if (std::ranges::none_of(queries.allowed, [](const auto& range) { return range.size() > 0; }))
    return;
  if (index != nullptr) {
    const HeadIndex& head = *index->layer(layer).heads[static_cast<std::size_t>(kv_head)];
    if (given == nullptr) return head.search(queries, k, result);
    return head.search_given(queries, k, *given, result);
  }
  ExactIndex in_place;  // holds nothing but where the keys are
  in_place.build({});
  in_place.add(rows(layer, kv_head).keys, {});
  in_place.search(queries, k, result);
}

}  // namespace topkv
