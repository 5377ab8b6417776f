#include "gpu/entries/cuda_summaries.h"

#include <algorithm>
#include <utility>

#include "gpu/device.h"
#include "gpu/entries/entry_checks.h"
#include "gpu/entries/entry_scores.h"
#include "gpu/entries/score_masks.h"
#include "gpu/entries/top_entries.h"
#include "gpu/long_work.h"
#include "gpu/network/elementwise.h"
#include "src/device/pieces.h"

namespace topkv::gpu {
namespace {

/// Of an entry. Where importances decide, scores are as the host's: in float32.
std::int64_t entry_bytes(const KeySummaries& of) {
  const std::int64_t elements = of.kind == KeySummaryKind::bounds ? 2 * of.dim : of.dim;
  return elements * bytes_of(of.weighed ? DType::f32 : DType::bf16);
}
/// What they are, without them.
KeySummaries described(const KeySummaries& of) {
  return {.kind = of.kind,
          .count = of.count,
          .dim = of.dim,
          .page = of.page,
          .read = of.read,
          .block = of.block,
          .weighed = of.weighed};
}
/// Room for entries: whole blocks of components.
std::int64_t slots_of(const KeySummaries& of) {
  return of.block > 0 ? (of.count + of.block - 1) / of.block * of.block : of.count;
}
/// Blocks of components that are on their way at a time.
std::int64_t blocks_at_once(const KeySummaries& of) {
  const std::int64_t bytes = of.block * entry_bytes(of);
  if (bytes == 0) return 0;
  return std::clamp<std::int64_t>(LongWork::piece_bytes / bytes, 1,
                                  std::max<std::int64_t>(1, slots_of(of) / of.block));
}

/// What is in memory behind the entries that a head has scores as no number.
constexpr int no_number_byte = 0xff;

}  // namespace

/// Where everything lies.
struct CudaSummaries::Layout {
  struct Layer {
    std::int64_t entries, sizes, spans;
  };
  std::vector<Layer> layers;
  std::int64_t queries, counts, shares, bytes;
  std::int64_t scores;  // of a choice; before there is one, components on their way

  Layout(const AttentionShape& shape, std::span<const KeySummaries> of_layers) {
    const std::int64_t f32 = bytes_of(DType::f32);
    Pieces pieces;
    std::int64_t most = 0;
    std::int64_t staged = 0;
    for (const KeySummaries& of : of_layers) {
      const std::int64_t slots = shape.kv_heads * slots_of(of);
      Layer layer{};
      const bool grouped = of.kind == KeySummaryKind::centroids;
      layer.entries = pieces.place(slots * entry_bytes(of));
      layer.sizes = pieces.place(of.weighed ? slots * f32 : 0);
      layer.spans = pieces.place(grouped ? slots * 2 * std::int64_t{sizeof(int)} : 0);
      layers.push_back(layer);
      most = std::max(most, of.count);
      staged = std::max(staged, blocks_at_once(of) * of.block * entry_bytes(of));
    }
    queries = pieces.place(shape.q_heads * shape.head_dim * bytes_of(DType::bf16));
    scores = pieces.place(std::max(shape.q_heads * most * f32, staged));
    counts = pieces.place(shape.q_heads * std::int64_t{sizeof(int)});
    shares = pieces.place(shape.q_heads * f32);
    bytes = pieces.used();
  }
};

bool CudaSummaries::supports(const AttentionShape& shape, std::int64_t entries,
                             std::int64_t most_candidates) {
  return (shape.head_dim == 64 || shape.head_dim == 128) && shape.group() <= most_group &&
         entries <= most_candidates;
}

CudaSummaries::CudaSummaries(CudaDevice& device, const AttentionShape& shape,
                             std::span<const KeySummaries> heads)
    : shape_(shape) {
  for (std::size_t l = 0; l < static_cast<std::size_t>(shape.layers); ++l) {
    const auto of = heads.subspan(l * static_cast<std::size_t>(shape.kv_heads),
                                  static_cast<std::size_t>(shape.kv_heads));
    layers_.push_back(described(*std::ranges::max_element(of, {}, &KeySummaries::count)));
  }
  layout_ = std::make_unique<const Layout>(shape, layers_);
  memory_ = device.allocate(layout_->bytes, "index of a context");
  LongWork work(device);
  work.give([&] {
    TOPKV_CUDA(cudaMemsetAsync(memory_.data(), no_number_byte,
                               static_cast<std::size_t>(layout_->bytes), device.compute_stream()));
  });
  for (std::int64_t i = 0; i < std::ssize(heads); ++i)
    place(device, work, i, heads[static_cast<std::size_t>(i)]);
  work.wait();
}

CudaSummaries::~CudaSummaries() = default;

std::int64_t CudaSummaries::bytes(const AttentionShape& shape, const KeySummaries& head) {
  std::vector<KeySummaries> layers;
  for (std::int64_t l = 0; l < shape.layers; ++l)
    layers.push_back(shape.has_index(l) ? head : KeySummaries{});
  return Layout(shape, layers).bytes;
}

std::int64_t CudaSummaries::most_entries(std::int64_t layer, std::int64_t k) const {
  const KeySummaries& of = layers_[own_layer(layer)];
  const PositionRange most =  // of which most are chosen: of clusters a narrow one
      of.kind == KeySummaryKind::centroids ? PositionRange{0, 1}
                                           : PositionRange{0, of.count * of.page};
  return entry_choice(of, most, k).count;
}

/// Those of a head: bounds as they are, centroids rounded unless importances decide, components of
/// all blocks beside each other.
void CudaSummaries::place(CudaDevice& device, const LongWork& work, std::int64_t number,
                          const KeySummaries& head) {
  const auto layer = static_cast<std::size_t>(number / shape_.kv_heads);
  const Layout::Layer& to = layout_->layers[layer];
  const std::int64_t slots = slots_of(layers_[layer]);
  const std::int64_t before = number % shape_.kv_heads * slots;
  std::byte* const entries = memory_.data() + to.entries + before * entry_bytes(layers_[layer]);
  const auto copy = [&](const auto& from, std::int64_t offset, std::int64_t each) {
    const std::int64_t size = each * std::int64_t{sizeof(from[0])};
    work.copy_in(from.data(), head.count * size, memory_.data() + offset + before * size);
  };
  switch (head.kind) {
    case KeySummaryKind::none:
      return;
    case KeySummaryKind::bounds:
      return work.copy_in(head.data, head.count * entry_bytes(head), entries);
    case KeySummaryKind::centroids:
      copy(head.spans, to.spans, 2);
      if (!head.weighed) return work.upload({head.data, DType::f32, head.count, head.dim}, entries);
      copy(head.sizes, to.sizes, 1);
      return work.copy_in(head.data, head.count * entry_bytes(head), entries);
    case KeySummaryKind::components:
      break;
  }
  const std::int64_t block_bytes = head.block * entry_bytes(head);
  const std::int64_t blocks = slots_of(head) / head.block;
  const std::int64_t at_once = blocks_at_once(head);
  for (std::int64_t first = 0; first < blocks; first += at_once) {
    const std::int64_t some = std::min(at_once, blocks - first);
    work.give([&] {
      std::byte* const staged = at<std::byte>(layout_->scores);
      device.copy_in(head.data + first * block_bytes, some * block_bytes, staged);
      join_blocks(reinterpret_cast<const __nv_bfloat16*>(staged), some, head.dim, head.block,
                  first * head.block, slots, reinterpret_cast<__nv_bfloat16*>(entries),
                  device.compute_stream());
    });
  }
}

CandidateEntries CudaSummaries::choose(std::int64_t layer, const float* queries,
                                       PositionRange allowed, std::int64_t k,
                                       const ChoiceOutput& output, cudaStream_t stream) const {
  const KeySummaries& of = layers_[own_layer(layer)];
  const Layout::Layer& from = layout_->layers[own_layer(layer)];
  const std::int64_t slots = slots_of(of);
  auto [among, wanted] = entry_choice(of, allowed, k);
  const auto* entries = at<const __nv_bfloat16>(from.entries);
  auto* scores = at<float>(layout_->scores);
  auto* rounded = at<__nv_bfloat16>(layout_->queries);
  const HeadStepQueries groups{rounded, shape_.kv_heads, shape_.group(), shape_.head_dim,
                               shape_.softmax_scale()};
  to_bf16(queries, shape_.q_heads * shape_.head_dim, rounded, stream);
  if (of.kind == KeySummaryKind::components) {
    // Loads are of eight keys that lie together.
    const std::int64_t left_out = among.begin % 8;
    among.begin -= left_out;
    score_components(groups, entries + among.begin, slots, among.size(), of.read, scores, stream);
    leave_out_first(left_out, shape_.q_heads, among.size(), scores, stream);
    choose_heaviest(scores, groups, among.size(), wanted,
                    {output.entries, at<int>(layout_->counts), wanted}, at<float>(layout_->shares),
                    stream);
    return {
        {output.entries, static_cast<std::size_t>(shape_.kv_heads * wanted)}, wanted, among.begin};
  }
  CandidateEntries given{
      {output.entries, static_cast<std::size_t>(shape_.q_heads * wanted)}, wanted, among.begin};
  if (of.kind == KeySummaryKind::bounds) {
    score_pages(groups, entries + among.begin * 2 * of.dim, slots, among.size(), scores, stream);
  } else {
    if (of.weighed) {
      score_centroids(groups, queries, at<const float>(from.entries), slots, among.size(), scores,
                      stream);
      sum_weights(scores, at<const float>(from.sizes), shape_.q_heads, shape_.group(), among.size(),
                  slots, output.log_sums, stream);
      given.log_sums = {output.log_sums, static_cast<std::size_t>(shape_.q_heads)};
    } else {
      score_centroids(groups, entries, slots, among.size(), scores, stream);
    }
    leave_out_elsewhere(at<const int>(from.spans), allowed, shape_.q_heads, shape_.group(),
                        among.size(), slots, scores, stream);
  }
  // Each query head by itself: as if it were a group.
  HeadStepQueries heads = groups;
  heads.head_steps = shape_.q_heads;
  heads.group = 1;
  choose_best(scores, heads, among.size(), wanted,
              {output.entries, at<int>(layout_->counts), wanted}, stream);
  return given;
}

}  // namespace topkv::gpu
