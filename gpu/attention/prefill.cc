#include "gpu/attention/prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "gpu/attention/attention.h"
#include "gpu/attention/block_choice.h"
#include "gpu/attention/cudnn_attention.h"
#include "gpu/attention/layer_rows.h"
#include "gpu/attention/row_blocks.h"
#include "gpu/attention/row_stream.h"
#include "gpu/device.h"
#include "gpu/network/elementwise.h"
#include "gpu/runtime/faults.h"
#include "gpu/runtime/page_lock.h"
#include "src/attention/block_choice.h"
#include "src/attention/chunk_passes.h"
#include "src/core/io/faults.h"
#include "src/core/math/row_format.h"
#include "src/device/pieces.h"
#include "src/store/row_store.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr std::int64_t largest_tile = 32768;        // rows
constexpr std::int64_t cudnn_workspace = 32 << 20;  // bytes; shapes that want more are not for it
constexpr std::int64_t cudnn_chunk = 1024;  // tokens from which on its launches and merges pay
constexpr std::int64_t cudnn_dims = 256;    // of a head, at most
constexpr std::int64_t in_flight = 2;       // chunks whose rows are on their way at a time

/// What tokens see that do not choose, or not yet: everything, if they may choose.
CausalWindow seen_without_choice(const LayerVisibility& layer) {
  return layer.chooses() ? CausalWindow() : layer.window;
}

/// The window and the sinks of tokens that choose.
DeviceVisibility always_seen(const LayerVisibility& layer) {
  return {true, layer.window.window, layer.window.sinks};
}

/// Rows of a tile: large enough that a copy takes less time than the chunk's attention over it.
std::int64_t tile_rows(const PrefillVisibility& visible, std::int64_t chunk) {
  std::int64_t longest = 64;
  for (const LayerVisibility& layer : visible) {
    const CausalWindow window = seen_without_choice(layer);
    longest = std::max(longest,
                       window.window == 0 ? largest_tile : std::max(window.window, window.sinks));
  }
  return std::min({longest, largest_tile, std::max<std::int64_t>(1024, 4 * chunk)});
}

/// Whether cuDNN is for these sizes; it does not cap scores, and is not tested with wider heads.
bool for_cudnn(const AttentionShape& shape, std::int64_t chunk) {
  return chunk >= cudnn_chunk && shape.softcap == 0 && shape.head_dim <= cudnn_dims &&
         !shape.keys_are_values;
}

/// The heads of each layer.
std::vector<LayerHeads> all_heads(const AttentionShape& shape) {
  std::vector<LayerHeads> heads;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    heads.push_back(heads_of(shape, layer));
  return heads;
}

/// The number of queries that each token has: several with dual chunk attention.
std::int64_t query_form_count(const AttentionShape& shape) {
  return shape.chunk_len > 0 ? query_forms : 1;
}

/// The tokens of the rows before a prefill's own.
std::int64_t tokens_before(const AttentionShape& shape, const PrefillRows& rows) {
  return rows.before == nullptr ? 0 : rows.before->size(shape.first_attention());
}

/// The most tokens of all rows.
std::int64_t most_tokens(const AttentionShape& shape, const PrefillRows& rows) {
  return rows.tokens > 0 ? rows.tokens : tokens_before(shape, rows) + rows.store.capacity();
}

/// The number of 64-bit flags of a chunk: for each layer one for K and V, and one for q.
std::int64_t nonfinite_flags(const AttentionShape& shape) { return 2 * shape.layers; }

/// The bytes of one sum for each layer.
std::int64_t sums_bytes(const AttentionShape& shape) {
  return shape.layers * static_cast<std::int64_t>(sizeof(ShareSums));
}

/// Pieces of device memory, one behind the other.
struct Layout {
  std::int64_t queries, lse, packed, blocks, channels, bias, tiles, nonfinite, cudnn_out, cudnn_lse,
      workspace, layer_rows, choice, shares, total;

  Layout(const AttentionShape& shape, const PrefillVisibility& visible, KvDType rows,
         std::int64_t chunk, std::int64_t tokens) {
    const std::int64_t tile = tile_rows(visible, chunk);
    Pieces pieces;
    const std::int64_t row = shape.widest_head() * bytes_of(DType::bf16);
    queries = pieces.place(query_form_count(shape) * chunk * shape.q_heads * row);
    lse = pieces.place(chunk * shape.q_heads * bytes_of(DType::f32));
    packed = pieces.place(in_flight * chunk * widest_rows(shape, DType::bf16));
    const bool blocked = in_blocks(rows.keys);
    blocks = pieces.place(blocked ? in_flight * chunk * widest_rows(shape, rows) : 0);
    const std::int64_t scales = RowStore::has_channels(shape, rows)
                                    ? shape.layers * shape.widest_kv() * bytes_of(DType::f32)
                                    : 0;
    channels = pieces.place(scales);
    bias = pieces.place(3 * scales);
    tiles = pieces.place(RowStream::bytes(shape, rows, tile));
    nonfinite = pieces.place(in_flight * nonfinite_flags(shape) * 8);
    const bool cudnn = for_cudnn(shape, chunk);
    cudnn_out = pieces.place(cudnn ? chunk * shape.q_heads * row : 0);
    cudnn_lse = pieces.place(cudnn ? chunk * shape.q_heads * bytes_of(DType::f32) : 0);
    workspace = pieces.place(cudnn ? cudnn_workspace : 0);
    std::int64_t chosen = 0;  // in the layer that takes most
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const LayerVisibility& seen = visible[static_cast<std::size_t>(layer)];
      if (!seen.chooses()) continue;
      chosen = std::max(chosen, choice_bytes(heads_of(shape, layer), shape.q_heads,
                                             always_seen(seen), seen.blocks, chunk, tokens));
    }
    layer_rows = pieces.place(chosen > 0 ? LayerRows::bytes(shape, rows, tokens) : 0);
    choice = pieces.place(chosen);
    shares = pieces.place(chosen > 0 ? 2 * sums_bytes(shape) : 0);
    total = pieces.used();
  }
};

class CudaPrefill final : public DevicePrefill {
 public:
  CudaPrefill(CudaDevice& device, const AttentionShape& shape, const PrefillVisibility& visible,
              std::int64_t chunk, const PrefillRows& rows)
      : compute_(device.compute_stream()),
        shape_(shape),
        heads_(all_heads(shape)),
        visible_(visible),
        first_layer_(shape.first_attention()),
        chunk_(chunk),
        store_(rows.store),
        before_(rows.before),
        tokens_before_(tokens_before(shape, rows)),
        most_tokens_(most_tokens(shape, rows)),
        tile_(tile_rows(visible, chunk)),
        layout_(shape, visible, store_.dtype(), chunk, most_tokens_),
        memory_(device.allocate(layout_.total, "prefill")),
        cudnn_(for_cudnn(shape, chunk) ? device.cudnn() : nullptr),
        tiles_(shape, store_.dtype(), tile_, memory_.data() + layout_.tiles),
        layer_rows_(shape, store_.dtype(), most_tokens_, memory_.data() + layout_.layer_rows),
        counted_(static_cast<std::size_t>(shape.layers)),
        nonfinite_(in_flight * nonfinite_flags(shape) * 8),
        given_(static_cast<std::size_t>(shape.layers), 0),
        rows_out_(static_cast<std::size_t>(shape.layers)) {
    check_supported(shape);
    if (!device.takes_rows(store_.dtype())) {
      throw Unsupported(
          fmt::format("rows in {} on a CUDA device; it takes bf16, q8 and q4, the host others too",
                      store_.dtype().name()));
    }
    const std::int64_t scales = shape.layers * shape.widest_kv() * bytes_of(DType::f32);
    if (store_.channels(0) != nullptr)
      device.copy_in(store_.channels(0), scales, memory_.data() + layout_.channels);
    if (store_.bias(0) != nullptr)
      device.copy_in(store_.bias(0), 3 * scales, memory_.data() + layout_.bias);
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      given_[static_cast<std::size_t>(layer)] = tokens_before_ + store_.size(layer);
      if (shape.is_attention(layer)) last_layer_ = layer;
    }
    make_plans();
    if (layout_.choice < layout_.shares) {
      TOPKV_CUDA(cudaMemsetAsync(memory_.data() + layout_.shares, 0,
                                 static_cast<std::size_t>(2 * sums_bytes(shape)), compute_));
    }
    // Few of the rows that a session has room for come in turns: locking commits them all.
    if (before_ == nullptr)
      store_.lock_pages([](std::byte* data, std::int64_t bytes) { return page_lock(data, bytes); });
  }

  ~CudaPrefill() override { wait_for_streams(); }  // copies into the store may be under way

  void attend(const AttentionStep& step) override {
    if (reinterpret_cast<std::uintptr_t>(step.out) % alignof(float2) != 0) {
      throw InvalidArgument("attend: the address of out must be a multiple of 8 bytes");
    }
    Counted& counted = counted_[static_cast<std::size_t>(step.layer)];
    const Counted before = counted;
    try {
      run_chunk(step);
    } catch (...) {
      counted = before;
      // What was begun for this layer goes for nothing once it has ended: its rows are beyond those
      // that count. A device that fails here has lost what it was given.
      if (!wait_for_streams()) lost_ = true;
      throw;
    }
    given_[static_cast<std::size_t>(step.layer)] += step.kv_count();
  }

  void finish() override {
    for (std::int64_t i = 0; i < in_flight; ++i) {
      settle(static_cast<std::size_t>((chunks_ + i) % in_flight));
    }
  }

  bool lost() const override { return lost_; }

  PrefillShare share(std::int64_t layer) override {
    PrefillShare share = counted_[static_cast<std::size_t>(layer)].share;
    if (!visible_[static_cast<std::size_t>(layer)].chooses()) return share;
    ShareSums of_choices{};
    TOPKV_CUDA(cudaMemcpyAsync(&of_choices, sums(layer), sizeof(of_choices), cudaMemcpyDeviceToHost,
                               compute_));
    TOPKV_CUDA(cudaStreamSynchronize(compute_));
    share.mass += of_choices.mass;
    share.keys += static_cast<double>(of_choices.keys);
    return share;
  }

 private:
  /// True when all that was begun has ended well.
  bool wait_for_streams() {
    const bool copied = tiles_.wait() & layer_rows_.wait();
    const bool computed = cudaStreamSynchronize(compute_) == cudaSuccess;
    return cudaStreamSynchronize(out_) == cudaSuccess && computed && copied;
  }

  void run_chunk(const AttentionStep& step) {
    const auto user = static_cast<cudaStream_t>(step.stream);
    if (by_layer() || step.layer == first_layer_) begin_chunk(step);
    const auto l = static_cast<std::size_t>(step.layer);
    const std::int64_t first = given_[l];
    if (user != nullptr) {
      handed_over_.record(user);
      handed_over_.block(compute_);
    }
    // Of the chunk before: earlier rows are in the store. A layer without rows of its own waits for
    // rows of this chunk.
    const Event& rows_out = rows_out_[static_cast<std::size_t>(shape_.row_layer_of(step.layer))];
    const bool chooses = has_choice(step.layer, first + step.tokens - 1);
    if (chooses) {
      layer_rows_.after(rows_out);
    } else {
      tiles_.after(rows_out);
    }
    reach_fault("prefill.rows");
    const DeviceRows own = shape_.has_rows(step.layer) ? pack(step) : rows_behind(step);
    round_queries(step);
    const PartialView partial{
        step.out,
        step.lse != nullptr ? step.lse : reinterpret_cast<float*>(memory_.data() + layout_.lse),
        step.tokens * shape_.q_heads, heads(step.layer).head_dim};
    reach_fault("prefill.attend");
    if (visible_[l].chooses()) count_share(step, first, chooses);
    if (chooses) {
      StepQueries queries{queries_of(step.layer, {}, first, 0, step.tokens)};
      queries.form_stride = form_elements();
      queries.chunk_len = shape_.chunk_len;
      queries.has_far = step.q_next != step.q_far;
      attend_chosen(step.layer, queries, own, partial);
    } else {
      attend_seen(step, own, first, partial);
    }
    if (user != nullptr) {
      handed_over_.record(compute_);
      handed_over_.block(user);
    }
    reach_fault("prefill.end");
    if (by_layer() || step.layer == last_layer_) end_chunk();
    if (by_layer()) finish();
  }

  /// Whether a token chooses among the keys before its window.
  bool has_choice(std::int64_t layer, std::int64_t position) const {
    const LayerVisibility& seen = visible_[static_cast<std::size_t>(layer)];
    const ForcedBlocks forced(position, seen.window.window, seen.window.sinks);
    return seen.chooses() && forced.candidates() * key_block > seen.blocks.without_choice();
  }

  /// What is known here of what the tokens of a step attend.
  void count_share(const AttentionStep& step, std::int64_t first, bool chooses) {
    PrefillShare share = dense_share(heads(step.layer).kv_heads, first, step.tokens);
    if (chooses) share.mass = share.keys = 0;
    counted_[static_cast<std::size_t>(step.layer)].share += share;
  }

  /// What tokens of a layer attended. A step adds to a copy of the device's sums, so that a step
  /// that fails can be forgotten.
  struct Counted {
    PrefillShare share;  // beside what the device's sums have
    int slot = 0;        // of the two, the one that has the sums
  };

  /// The sums of a layer, of all steps that count.
  ShareSums* sums(std::int64_t layer) const {
    const std::int64_t slot = counted_[static_cast<std::size_t>(layer)].slot;
    return reinterpret_cast<ShareSums*>(memory_.data() + layout_.shares) + slot * shape_.layers +
           layer;
  }

  /// A copy of these sums that counts from now on.
  ShareSums* next_sums(std::int64_t layer) {
    const ShareSums* of_steps_before = sums(layer);
    counted_[static_cast<std::size_t>(layer)].slot ^= 1;
    TOPKV_CUDA(cudaMemcpyAsync(sums(layer), of_steps_before, sizeof(ShareSums),
                               cudaMemcpyDeviceToDevice, compute_));
    return sums(layer);
  }

  /// Of tokens that choose, over all rows before them and their own.
  void attend_chosen(std::int64_t layer, const StepQueries& queries, const DeviceRows& own,
                     const PartialView& partial) {
    const LayerVisibility& seen = visible_[static_cast<std::size_t>(layer)];
    const bool stored = own.keys == nullptr;  // the store has them
    DeviceRows rows =
        layer_rows_.load(heads(layer), spans(layer), queries.own.first + (stored ? own.count : 0),
                         stored_keys(layer), compute_);
    if (!stored) layer_rows_.add(heads(layer), own, rows, compute_);
    choose_and_attend(heads(layer), queries, rows, always_seen(seen), seen.blocks,
                      {memory_.data() + layout_.choice, chunk_, most_tokens_}, partial,
                      next_sums(layer), compute_);
    layer_rows_.release(compute_);
  }

  /// Of tokens that do not choose.
  void attend_seen(const AttentionStep& step, const DeviceRows& own, std::int64_t first,
                   const PartialView& partial) {
    each_chunk(
        shape_, step, first,
        [&](std::int64_t begin, std::int64_t count, const ChunkPasses& passes) {
          const PartialView to = partial.part(begin * shape_.q_heads, count * shape_.q_heads);
          for (const ChunkPass& pass : passes) {
            attend_pass(step.layer, queries_of(step.layer, pass, first, begin, count), pass.sees,
                        own, first, to, &pass == passes.begin() ? Into::overwrite : Into::merge);
          }
        });
  }

  /// Of one query of some tokens over the positions that it meets: of the step's own rows and of
  /// those before `first`, which were there before.
  void attend_pass(std::int64_t layer, const QueryView<__nv_bfloat16>& queries,
                   const PositionRange& sees, const DeviceRows& own, std::int64_t first,
                   const PartialView& partial, Into into) {
    const CausalWindow visible = seen_without_choice(visible_[static_cast<std::size_t>(layer)]);
    const PositionRange of_own = sees.within({own.first, own.first + own.count});
    const bool streamed = own.keys == nullptr;  // the store has them
    if ((of_own.size() > 0 && !streamed) || into == Into::overwrite) {
      DeviceRows rows = own;
      rows.first = of_own.begin;
      rows.count = streamed ? 0 : of_own.size();
      if (!streamed) {
        rows.keys += (of_own.begin - own.first) * queries.head_dim;
        rows.values += (of_own.begin - own.first) * queries.head_dim;
      }
      attend_rows(layer, queries, rows, {true, visible.window, visible.sinks}, partial, into);
    }
    if (streamed) stream(layer, queries, of_own, true, partial);
    for (const PositionRange& range : earlier(visible, first))
      stream(layer, queries, sees.within(range), false, partial);
  }

  /// Merges attention over rows of host memory. causal: they are rows of the step's own tokens.
  void stream(std::int64_t layer, const QueryView<__nv_bfloat16>& queries,
              const PositionRange& range, bool causal, const PartialView& partial) {
    if (range.size() == 0) return;
    const CausalWindow visible = seen_without_choice(visible_[static_cast<std::size_t>(layer)]);
    tiles_.stream(heads(layer), spans(layer), range, stored_keys(layer), compute_,
                  [&](const DeviceRows& tile) {
                    attend_rows(layer, queries, tile, {causal, visible.window, visible.sinks},
                                partial, Into::merge);
                  });
  }

  /// A chunk whose rows are on their way.
  struct Flight {
    bool under_way = false;     // all its layers are given
    PositionRange layers = {};  // from the first to the last
    std::int64_t rows = 0;      // of each KV head and layer; there may be none
    std::int64_t first = 0;     // position
    Event computed;
    Event copied;
  };

  const LayerHeads& heads(std::int64_t layer) const {
    return heads_[static_cast<std::size_t>(layer)];
  }
  /// One of in_flight equal parts of a piece of memory, which ends where the next begins.
  std::byte* part_of(std::int64_t begin, std::int64_t end, std::size_t slot) const {
    return memory_.data() + begin + static_cast<std::int64_t>(slot) * ((end - begin) / in_flight);
  }
  bool blocked() const { return in_blocks(store_.dtype().keys); }
  /// Of the keys of a layer, [kv_heads, head_dim]; null: they have none.
  float* channels(std::int64_t layer) const {
    if (!RowStore::has_channels(shape_, store_.dtype())) return nullptr;
    return reinterpret_cast<float*>(memory_.data() + layout_.channels) +
           shape_.row_layer_of(layer) * shape_.widest_kv();
  }
  /// What a layer's keys are stored with, from RoPE position 0 on.
  StoredKeys stored_keys(std::int64_t layer) const {
    StoredKeys stored;
    stored.channels = channels(layer);
    if (store_.bias(layer) != nullptr)
      stored.bias = reinterpret_cast<const float*>(memory_.data() + layout_.bias) +
                    shape_.row_layer_of(layer) * 3 * shape_.widest_kv();
    stored.chunk_len = shape_.chunk_len;
    return stored;
  }
  /// Of a chunk: [2, layers], K and V, then q.
  unsigned long long* nonfinite_on_device(std::size_t slot) const {
    return reinterpret_cast<unsigned long long*>(memory_.data() + layout_.nonfinite) +
           static_cast<std::int64_t>(slot) * nonfinite_flags(shape_);
  }
  unsigned long long* nonfinite_on_host(std::size_t slot) const {
    return nonfinite_.as<unsigned long long>() +
           static_cast<std::int64_t>(slot) * nonfinite_flags(shape_);
  }
  std::size_t chunk_slot() const { return static_cast<std::size_t>(chunks_ % in_flight); }

  /// Rows that tokens from `first` on may attend of those before `first`.
  static std::vector<PositionRange> earlier(const CausalWindow& visible, std::int64_t first) {
    if (visible.window == 0) return {{0, first}};
    const std::int64_t begin = visible.begin(first);
    std::vector<PositionRange> ranges;
    const std::int64_t sinks = std::min(visible.sinks, begin);
    if (sinks > 0) ranges.push_back({0, sinks});
    if (begin < first) ranges.push_back({begin, first});
    return ranges;
  }

  /// Of layers that attend all rows.
  CudnnShape cudnn_shape(std::int64_t rows, std::int64_t head_stride, bool causal) const {
    return {shape_.head_dim, shape_.q_heads, shape_.kv_heads,       chunk_, rows,
            head_stride,     causal,         shape_.softmax_scale()};
  }

  /// cuDNN's plans take a while to make: now, rather than in the middle of a prefill.
  void make_plans() {
    const auto dense = [](const LayerVisibility& layer) {
      return seen_without_choice(layer).window == 0;
    };
    if (cudnn_ == nullptr || std::none_of(visible_.begin(), visible_.end(), dense)) return;
    if (most_tokens_ < chunk_) return;
    cudnn_->supports(cudnn_shape(chunk_, 2 * chunk_ * shape_.head_dim, true));
    const std::int64_t longest = std::min(tile_, most_tokens_ - chunk_);
    for (std::int64_t rows = 1; rows <= longest; ++rows) {
      if (is_planned(rows)) cudnn_->supports(cudnn_shape(rows, 2 * tile_ * shape_.head_dim, false));
    }
  }

  /// Tiles of these sizes are for cuDNN: a chunk may be as long as a caller's prompt, so that tiles
  /// could come in any size.
  bool is_planned(std::int64_t rows) const { return rows == tile_ || rows % chunk_ == 0; }

  /// A full chunk that sees its own rows, or all of a tile, goes through cuDNN where it is, all
  /// else through our kernel.
  void attend_rows(std::int64_t layer, const QueryView<__nv_bfloat16>& queries,
                   const DeviceRows& rows, const DeviceVisibility& visible,
                   const PartialView& partial, Into into) {
    // With rows of some tokens only, the causal edge is not where cuDNN has it.
    const bool fits = visible.causal ? rows.count == queries.tokens : is_planned(rows.count);
    if (cudnn_ != nullptr && visible.window == 0 && shape_.window_of(layer) == 0 &&
        queries.tokens == chunk_ && fits) {
      const CudnnShape shape = cudnn_shape(rows.count, rows.head_stride, visible.causal);
      if (cudnn_->supports(shape) && cudnn_->workspace_bytes(shape) <= cudnn_workspace) {
        const CudnnPartial out{reinterpret_cast<__nv_bfloat16*>(memory_.data() + layout_.cudnn_out),
                               reinterpret_cast<float*>(memory_.data() + layout_.cudnn_lse)};
        cudnn_->attend(shape, queries.data, rows.keys, rows.values, out,
                       memory_.data() + layout_.workspace, compute_);
        store_cudnn_partial(out, queries.tokens, queries.heads, queries.head_dim, partial, into,
                            compute_);
        return;
      }
    }
    gpu::attend(heads(layer), queries, rows, visible, partial, into, compute_);
  }

  /// The rows before, and the store's arrays of a layer, whatever has arrived: copies wait for
  /// their rows.
  std::span<const RowSpan> spans(std::int64_t layer) {
    spans_.clear();
    for (std::int64_t head = 0; head < heads(layer).kv_heads; ++head) {
      RowsView rows = store_.rows(layer, head);
      rows.keys.count = store_.capacity();
      rows.values.count = store_.capacity();
      spans_.push_back(before_ == nullptr ? RowSpan{rows}
                                          : RowSpan{before_->rows(layer, head), 0, rows});
    }
    return spans_;
  }

  /// Behind rows of another store each layer is a flight of its own, which its call waits for.
  bool by_layer() const { return before_ != nullptr; }

  void begin_chunk(const AttentionStep& step) {
    const std::size_t slot = chunk_slot();
    settle(slot);
    Flight& flight = flights_[slot];
    flight.layers = {step.layer, by_layer() ? step.layer + 1 : shape_.layers};
    flight.rows = step.kv_count();
    flight.first = given_[static_cast<std::size_t>(step.layer)];
    if (by_layer()) store_.choose_pages(flight.first + flight.rows - tokens_before_);
    if (!store_.has_memory_to(flight.first + flight.rows - tokens_before_)) {
      finish();  // rows that are on their way, or read, must not move
      store_.slide();
    }
    TOPKV_CUDA(cudaMemsetAsync(nonfinite_on_device(slot), 0xff,
                               static_cast<std::size_t>(nonfinite_flags(shape_)) * 8, compute_));
  }

  /// From the queries of a form to those of the next.
  std::int64_t form_elements() const { return chunk_ * shape_.q_heads * shape_.widest_head(); }
  __nv_bfloat16* bf16_queries(QueryForm form) const {
    return reinterpret_cast<__nv_bfloat16*>(memory_.data() + layout_.queries) +
           static_cast<std::int64_t>(form) * form_elements();
  }

  /// All that a step has, before anything is written: out may be q.
  void round_queries(const AttentionStep& step) {
    for (std::int64_t i = 0; i < query_form_count(shape_); ++i) {
      const ChunkPass of{static_cast<QueryForm>(i)};
      if (of.queries(step) == nullptr) continue;
      to_finite_bf16(of.queries(step), step.tokens * shape_.q_heads * heads(step.layer).head_dim,
                     bf16_queries(of.form),
                     nonfinite_on_device(chunk_slot()) + shape_.layers + step.layer, compute_);
    }
  }

  /// Of `count` of the step's tokens from number `begin` on; first: the position of number 0.
  QueryView<__nv_bfloat16> queries_of(std::int64_t layer, const ChunkPass& pass, std::int64_t first,
                                      std::int64_t begin, std::int64_t count) const {
    return QueryView<__nv_bfloat16>{bf16_queries(pass.form), begin + count, shape_.q_heads,
                                    heads(layer).head_dim, first}
        .part(begin, count);
  }

  /// The rows of a step whose layer attends the rows of another layer: they are on their way to the
  /// store, or there, and have no memory here.
  DeviceRows rows_behind(const AttentionStep& step) const {
    DeviceRows own;
    own.first = given_[static_cast<std::size_t>(step.layer)] + step.kv_first;
    own.count = step.kv_count();
    return own;
  }

  /// Rounds k and v to rows, and begins their way to the store. Two slots take turns by layer.
  DeviceRows pack(const AttentionStep& step) {
    const auto l = static_cast<std::size_t>(step.layer);
    DeviceRows own;
    own.first = given_[l] + step.kv_first;
    own.count = step.kv_count();
    if (own.count == 0) return own;
    const std::size_t slot = turn_++ % in_flight;
    const LayerHeads& heads = this->heads(step.layer);
    const bool has_values = !heads.keys_are_values;
    const std::int64_t d = heads.head_dim;
    const std::int64_t half = chunk_ * d;
    auto* to = reinterpret_cast<__nv_bfloat16*>(part_of(layout_.packed, layout_.blocks, slot));
    slot_free_[slot].block(compute_);
    PackTarget target;
    target.keys = to;
    target.values = has_values ? to + half : to;
    target.head_stride = heads.vectors() * half;
    unsigned long long* nonfinite = nonfinite_on_device(chunk_slot()) + step.layer;
    const KvDType dtype = store_.dtype();
    const std::int64_t key = vector_bytes(dtype.keys, d);
    const std::int64_t value = vector_bytes(dtype.values, d);
    const bool choose =
        channels(step.layer) != nullptr && given_[l] == 0 && store_.chooses_channels();
    BlockTarget out{reinterpret_cast<std::byte*>(to), reinterpret_cast<std::byte*>(to + half),
                    chunk_ * shape_.row_bytes_of(step.layer, dtype)};
    if (blocked()) {
      out.keys = part_of(layout_.blocks, layout_.channels, slot);
      out.values = out.keys + chunk_ * key;
      const StoredKeys stored = stored_keys(step.layer).from(given_[l]);
      if (choose)
        choose_channels(step.k, own.count, heads.kv_heads, d, stored, channels(step.layer),
                        compute_);
      pack_blocks(step.k, step.v, own.count, heads.kv_heads, d, dtype, stored, out, target,
                  nonfinite, compute_);
    } else {
      pack_rows(step.k, step.v, own.count, heads.kv_heads, d, target, nonfinite, compute_);
    }
    slot_full_[slot].record(compute_);
    slot_full_[slot].block(out_);
    inject_copy_delay(out_);
    const auto copy = [&](void* host, const void* from, std::int64_t bytes) {
      TOPKV_CUDA(cudaMemcpyAsync(host, from, static_cast<std::size_t>(bytes),
                                 cudaMemcpyDeviceToHost, out_));
    };
    if (choose) {
      copy(store_.channels(step.layer), channels(step.layer),
           heads.kv_heads * d * bytes_of(DType::f32));
    }
    for (std::int64_t head = 0; head < heads.kv_heads; ++head) {
      const RowStore::Arrays arrays = store_.arrays(step.layer, head, given_[l] - tokens_before_);
      copy(arrays.keys, out.keys + head * out.head_bytes, own.count * key);
      if (has_values) copy(arrays.values, out.values + head * out.head_bytes, own.count * value);
    }
    slot_free_[slot].record(out_);
    rows_out_[l].record(out_);
    own.keys = to;
    own.values = target.values;
    own.head_stride = target.head_stride;
    return own;
  }

  void end_chunk() {
    const std::size_t slot = chunk_slot();
    TOPKV_CUDA(cudaMemcpyAsync(nonfinite_on_host(slot), nonfinite_on_device(slot),
                               static_cast<std::size_t>(nonfinite_flags(shape_)) * 8,
                               cudaMemcpyDeviceToHost, compute_));
    flights_[slot].computed.record(compute_);
    flights_[slot].copied.record(out_);
    flights_[slot].under_way = true;
    ++chunks_;
  }

  /// Waits for a chunk and hands its rows over to the store. When it throws they are lost.
  void settle(std::size_t slot) {
    Flight& flight = flights_[slot];
    if (!std::exchange(flight.under_way, false)) return;
    lost_ = true;
    flight.computed.synchronize();
    flight.copied.synchronize();
    lost_ = !by_layer();  // the rows of earlier calls are in the store
    const unsigned long long* nonfinite = nonfinite_on_host(slot);
    for (std::int64_t layer = flight.layers.begin; layer < flight.layers.end; ++layer) {
      check_rows(layer, nonfinite[layer], flight.first);
      check_queries(layer, nonfinite[shape_.layers + layer], flight.first);
    }
    lost_ = false;
    for (std::int64_t layer = flight.layers.begin; layer < flight.layers.end; ++layer) {
      if (shape_.is_attention(layer)) store_.extend(layer, flight.rows);
    }
  }

  void check_rows(std::int64_t layer, unsigned long long word, std::int64_t first) const {
    if (word == all_finite) return;
    const auto element = static_cast<std::int64_t>(word / 2);
    const std::int64_t d = heads(layer).head_dim;
    const std::int64_t kv_heads = heads(layer).kv_heads;
    throw InvalidArgument(fmt::format(
        "{} of layer {}, KV head {}, position {} is not finite at element {}; values must be "
        "finite in bf16",
        word % 2 == 0 ? "K" : "V", layer, element / d % kv_heads, first + element / d / kv_heads,
        element % d));
  }

  void check_queries(std::int64_t layer, unsigned long long word, std::int64_t first) const {
    if (word == all_finite) return;
    const std::int64_t head = static_cast<std::int64_t>(word) / heads(layer).head_dim;
    throw InvalidArgument(fmt::format(
        "q of layer {}, query head {}, position {} is not finite; values must be finite in bf16",
        layer, head % shape_.q_heads, first + head / shape_.q_heads));
  }

  const Stream& compute_;
  AttentionShape shape_;
  std::vector<LayerHeads> heads_;  // per layer
  PrefillVisibility visible_;
  std::int64_t first_layer_, last_layer_ = 0;  // of attention
  std::int64_t chunk_;
  RowStore& store_;
  const RowStore* before_;  // rows of the tokens before the store's; null: there are none
  std::int64_t tokens_before_;
  std::int64_t most_tokens_;  // of all rows
  std::int64_t tile_;
  Layout layout_;
  Buffer memory_;
  CudnnAttention* cudnn_;  // null: our kernel does it all
  Stream out_;             // rows to the host
  RowStream tiles_;
  LayerRows layer_rows_;             // of a layer whose tokens choose
  std::vector<Counted> counted_;     // per layer
  PinnedBuffer nonfinite_;           // host copies of the words
  std::vector<std::int64_t> given_;  // per layer, the position of the next row
  std::vector<Event> rows_out_;      // per layer: its last rows have left
  Event slot_full_[in_flight];       // packed rows are there
  Event slot_free_[in_flight];       // and have left
  Flight flights_[in_flight];
  Event handed_over_;  // tensors by the caller's stream, results to it
  bool lost_ = false;
  std::int64_t chunks_ = 0;
  std::size_t turn_ = 0;
  std::vector<RowSpan> spans_;  // per KV head
};

}  // namespace

std::unique_ptr<DevicePrefill> make_prefill_attention(CudaDevice& device,
                                                      const AttentionShape& shape,
                                                      const PrefillVisibility& visible,
                                                      std::int64_t chunk, const PrefillRows& rows) {
  return std::make_unique<CudaPrefill>(device, shape, visible, chunk, rows);
}

std::int64_t prefill_attention_bytes(const AttentionShape& shape, const PrefillVisibility& visible,
                                     KvDType rows, std::int64_t chunk, std::int64_t tokens) {
  return Layout(shape, visible, rows, chunk, tokens).total;
}

}  // namespace topkv::gpu
