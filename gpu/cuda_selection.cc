#include "gpu/cuda_selection.h"

#include <algorithm>
#include <utility>

#include "gpu/cuda_device.h"
#include "gpu/elementwise.h"
#include "gpu/selection.h"
#include "gpu/selection_checks.h"
#include "gpu/selection_step.h"
#include "src/device/pieces.h"

namespace topkv::gpu {
namespace {

constexpr std::int64_t staged_bytes = 8 << 20;  // of components on their way

/// Elements of an entry.
std::int64_t width_of(const StandIns& of) {
  return of.kind == StandInKind::bounds ? 2 * of.dim : of.dim;
}
/// Room for entries: whole blocks of components.
std::int64_t slots_of(const StandIns& of) {
  return of.block > 0 ? (of.count + of.block - 1) / of.block * of.block : of.count;
}

/// What is in memory behind the entries that a head has scores as no number.
constexpr int no_number_byte = 0xff;

}  // namespace

/// Where everything lies.
struct CudaSelection::Layout {
  struct Layer {
    std::int64_t entries, sizes;
  };
  std::vector<Layer> layers;
  std::int64_t queries, scores, counts, shares, bytes;

  Layout(const AttentionShape& shape, std::span<const StandIns> of_layers) {
    const std::int64_t f32 = bytes_of(DType::f32);
    Pieces pieces;
    std::int64_t most = 0;
    for (const StandIns& of : of_layers) {
      const std::int64_t slots = shape.kv_heads * slots_of(of);
      Layer layer{};
      layer.entries = pieces.place(slots * width_of(of) * bytes_of(DType::bf16));
      layer.sizes = pieces.place(of.weighed ? slots * f32 : 0);
      layers.push_back(layer);
      most = std::max(most, of.count);
    }
    queries = pieces.place(shape.q_heads * shape.head_dim * bytes_of(DType::bf16));
    scores = pieces.place(shape.q_heads * most * f32);
    counts = pieces.place(shape.q_heads * std::int64_t{sizeof(int)});
    shares = pieces.place(shape.q_heads * f32);
    bytes = pieces.used();
  }
};

bool CudaSelection::supports(const AttentionShape& shape, std::int64_t entries,
                             std::int64_t most_candidates) {
  return (shape.head_dim == 64 || shape.head_dim == 128) && shape.group() <= most_group &&
         entries <= most_candidates;
}

CudaSelection::CudaSelection(CudaDevice& device, const AttentionShape& shape,
                             std::span<const StandIns> heads)
    : shape_(shape) {
  for (std::size_t l = 0; l < static_cast<std::size_t>(shape.layers); ++l) {
    const auto of = heads.subspan(l * static_cast<std::size_t>(shape.kv_heads),
                                  static_cast<std::size_t>(shape.kv_heads));
    layers_.push_back(*std::ranges::max_element(of, {}, &StandIns::count));
    layers_.back().data = nullptr;
    layers_.back().sizes = {};
  }
  layout_ = std::make_unique<const Layout>(shape, layers_);
  memory_ = device.allocate(layout_->bytes, "index of a context");
  Buffer staged;
  if (std::ranges::any_of(layers_, [](const StandIns& of) { return of.block > 0; }))
    staged = device.allocate(staged_bytes, "index on its way");
  TOPKV_CUDA(cudaMemsetAsync(memory_.data(), no_number_byte,
                             static_cast<std::size_t>(layout_->bytes), device.compute_stream()));
  for (std::int64_t i = 0; i < std::ssize(heads); ++i) {
    const auto layer = static_cast<std::size_t>(i / shape.kv_heads);
    const std::int64_t slots = slots_of(layers_[layer]);
    const std::int64_t before = i % shape.kv_heads * slots;
    place(
        device, heads[static_cast<std::size_t>(i)],
        layout_->layers[layer].entries + before * width_of(layers_[layer]) * bytes_of(DType::bf16),
        layout_->layers[layer].sizes + before * bytes_of(DType::f32), slots, staged);
  }
  device.synchronize();
}

CudaSelection::~CudaSelection() = default;

std::int64_t CudaSelection::bytes(const AttentionShape& shape, const StandIns& head) {
  std::vector<StandIns> layers;
  for (std::int64_t l = 0; l < shape.layers; ++l)
    layers.push_back(shape.window_of(l) == 0 ? head : StandIns{});
  return Layout(shape, layers).bytes;
}

std::int64_t CudaSelection::most_entries(std::int64_t layer, std::int64_t k) const {
  const StandIns& of = layers_[static_cast<std::size_t>(layer)];
  return entry_choice(of, {0, of.count * of.page}, k).count;
}

/// One head's: bounds as they are, centroids rounded, components of all blocks beside each other.
void CudaSelection::place(CudaDevice& device, const StandIns& head, std::int64_t to,
                          std::int64_t sizes, std::int64_t slots, const Buffer& staged) {
  const std::int64_t bf16 = bytes_of(DType::bf16);
  std::byte* const entries = memory_.data() + to;
  switch (head.kind) {
    case StandInKind::none:
      return;
    case StandInKind::bounds:
      return device.copy_in(head.data, head.count * width_of(head) * bf16, entries);
    case StandInKind::centroids:
      device.upload({head.data, DType::f32, head.count, head.dim}, entries);
      if (head.weighed)
        device.copy_in(head.sizes.data(), head.count * bytes_of(DType::f32),
                       memory_.data() + sizes);
      return;
    case StandInKind::components:
      break;
  }
  const std::int64_t block_bytes = head.dim * head.block * bf16;
  const std::int64_t blocks = slots_of(head) / head.block;
  const std::int64_t at_once = std::max<std::int64_t>(1, staged.bytes() / block_bytes);
  for (std::int64_t first = 0; first < blocks; first += at_once) {
    const std::int64_t some = std::min(at_once, blocks - first);
    device.copy_in(head.data + first * block_bytes, some * block_bytes, staged.data());
    join_blocks(reinterpret_cast<const __nv_bfloat16*>(staged.data()), some, head.dim, head.block,
                first * head.block, slots, reinterpret_cast<__nv_bfloat16*>(entries),
                device.compute_stream());
  }
}

GivenEntries CudaSelection::choose(std::int64_t layer, const float* queries, PositionRange allowed,
                                   std::int64_t k, const ChoiceRoom& room,
                                   cudaStream_t stream) const {
  const StandIns& of = layers_[static_cast<std::size_t>(layer)];
  const Layout::Layer& from = layout_->layers[static_cast<std::size_t>(layer)];
  const std::int64_t slots = slots_of(of);
  auto [among, wanted] = entry_choice(of, allowed, k);
  const auto* entries = at<const __nv_bfloat16>(from.entries);
  auto* scores = at<float>(layout_->scores);
  auto* rounded = at<__nv_bfloat16>(layout_->queries);
  const MeetingQueries groups{rounded, shape_.kv_heads, shape_.group(), shape_.head_dim,
                              shape_.softmax_scale()};
  to_bf16(queries, shape_.q_heads * shape_.head_dim, rounded, stream);
  if (of.kind == StandInKind::components) {
    // Loads are of eight keys that lie together.
    const std::int64_t left_out = among.begin % 8;
    among.begin -= left_out;
    score_components(groups, entries + among.begin, slots, among.size(), of.read, scores, stream);
    leave_out_first(left_out, shape_.q_heads, among.size(), scores, stream);
    choose_heaviest(scores, groups, among.size(), wanted,
                    {room.entries, at<int>(layout_->counts), wanted}, at<float>(layout_->shares),
                    stream);
    return {
        {room.entries, static_cast<std::size_t>(shape_.kv_heads * wanted)}, wanted, among.begin};
  }
  if (of.kind == StandInKind::bounds) {
    score_pages(groups, entries + among.begin * width_of(of), slots, among.size(), scores, stream);
  } else {
    score_centroids(groups, entries, slots, among.size(), scores, stream);
  }
  // Each query head by itself: as if it were a group.
  MeetingQueries heads = groups;
  heads.meetings = shape_.q_heads;
  heads.group = 1;
  choose_best(scores, heads, among.size(), wanted, {room.entries, at<int>(layout_->counts), wanted},
              stream);
  GivenEntries given{
      {room.entries, static_cast<std::size_t>(shape_.q_heads * wanted)}, wanted, among.begin};
  if (of.weighed) {
    sum_weights(scores, at<const float>(from.sizes), shape_.q_heads, shape_.group(), among.size(),
                slots, room.log_sums, stream);
    given.log_sums = {room.log_sums, static_cast<std::size_t>(shape_.q_heads)};
  }
  return given;
}

}  // namespace topkv::gpu
