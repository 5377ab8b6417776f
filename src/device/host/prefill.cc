#include "src/device/host/prefill.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "src/attention/chunk_passes.h"
#include "src/attention/sparse_attention.h"
#include "src/core/io/faults.h"
#include "src/core/math/convert.h"
#include "src/core/threads/threads.h"
#include "src/device/host/indexer_attention.h"
#include "src/store/row_store.h"
#include "topkv/context.h"
#include "topkv/error.h"

namespace topkv {
namespace {

class HostPrefill final : public DevicePrefill {
 public:
  HostPrefill(AttentionShape shape, PrefillVisibility visible, const PrefillRows& rows)
      : shape_(std::move(shape)),
        visible_(std::move(visible)),
        store_(rows.store),
        before_(rows.before),
        tokens_before_(before_ == nullptr ? 0 : before_->size(shape_.first_attention())),
        means_(static_cast<std::size_t>(shape_.layers)),
        shares_(static_cast<std::size_t>(shape_.layers)),
        own_indexer_(rows.indexer == nullptr ? std::make_unique<IndexerAttention>(shape_)
                                             : nullptr),
        indexer_(rows.indexer == nullptr ? *own_indexer_ : *rows.indexer) {}
  HostPrefill(const HostPrefill&) = delete;  // its indexer points to its shape
  HostPrefill& operator=(const HostPrefill&) = delete;

  void attend(const AttentionStep& step) override {
    const std::int64_t stored = store_.size(step.layer);
    const std::int64_t first = tokens_before_ + stored;
    check_queries(step, first);
    PrefillShare& share = shares_[static_cast<std::size_t>(step.layer)];
    const PrefillShare before = share;
    try {
      append_and_attend(step, first);
    } catch (...) {
      store_.shrink(step.layer, stored);
      share = before;  // chunks of the step may have been counted
      for (std::vector<float>& means : means_[static_cast<std::size_t>(step.layer)]) {
        const std::int64_t whole = first / key_block * shape_.head_dim_of(step.layer);
        if (std::ssize(means) > whole) means.resize(static_cast<std::size_t>(whole));
      }
      throw;
    }
  }

  void finish() override {}

  PrefillShare share(std::int64_t layer) override {
    return shares_[static_cast<std::size_t>(layer)];
  }

 private:
  void check_queries(const AttentionStep& step, std::int64_t first) const {
    const std::int64_t d = shape_.head_dim_of(step.layer);
    for (const float* q : {step.q, step.q_next, step.q_far}) {
      if (q == nullptr) continue;
      const std::int64_t bad = first_not_finite(q, step.tokens * shape_.q_heads * d);
      if (bad < 0) continue;
      throw InvalidArgument(fmt::format("q of layer {}, query head {}, position {} is not finite",
                                        step.layer, bad / d % shape_.q_heads,
                                        first + bad / d / shape_.q_heads));
    }
    if (shape_.has_index_keys(step.layer)) check_index_queries(shape_, step, first);
  }

  void append_and_attend(const AttentionStep& step, std::int64_t first) {
    const std::int64_t d = shape_.head_dim_of(step.layer);
    const std::int64_t kv_heads = shape_.kv_heads_of(step.layer);
    const std::int64_t heads = step.tokens * shape_.q_heads;
    const std::int64_t kept = step.kv_count();
    if (shape_.has_index_keys(step.layer)) {
      store_.check_room(step.layer, kept);
      store_.index_keys().write(step.layer, store_.size(step.layer), kept, step.index_k);
    }
    if (!store_.has_rows(step.layer)) {
      store_.extend(step.layer, kept);  // the layer whose rows it attends has them
    } else if (kept > 0) {
      store_.append(step.layer, TensorView::tokens_first(step.k, DType::f32, kept, kv_heads, d),
                    TensorView::tokens_first(step.v, DType::f32, kept, kv_heads, d));
    }
    const TokenQueries queries{step.q, step.tokens, shape_.q_heads, d, first};
    lse_.reset(heads, 0);
    const PartialView out{step.out, step.lse != nullptr ? step.lse : lse_.view().lse, heads, d};
    reach_fault("prefill.attend");
    if (shape_.has_indexer(step.layer) && shape_.indexer->top < every_index_block) {
      indexer_.attend(step, queries, {.before = before_, .store = store_}, out);
      return;
    }
    if (step.kv_first == 0 && kept == step.tokens) {
      each_chunk(shape_, step, first,
                 [&](std::int64_t begin, std::int64_t count, const ChunkPasses& passes) {
                   attend_chunk(step, passes, queries.part(begin, count), first + kept,
                                out.part(begin * shape_.q_heads, count * shape_.q_heads));
                 });
      return;
    }
    // Rows of some of the tokens: those before lie where all tokens see them, the new ones where
    // the tokens are that they belong to. out may be q, so it is written last.
    if (kept > 0) {
      part_.reset(heads, d);
      attend_span(step.layer, queries, {first, first + kept}, first + step.kv_first, part_.view());
    }
    attend_span(step.layer, queries, {0, first}, 0, out);
    if (kept > 0) merge(out, part_.view());
  }

  /// Tokens of one chunk, whose q `queries` has, over all rows before `end` and themselves. What
  /// their own chunk gives is written first: out may be q.
  void attend_chunk(const AttentionStep& step, const ChunkPasses& passes,
                    const TokenQueries& queries, std::int64_t end, PartialView out) {
    if (const LayerVisibility& visible = this->visible(step.layer); visible.chooses()) {
      const ForcedBlocks last(queries.first + queries.tokens - 1, visible.window.window,
                              visible.window.sinks);
      if (last.candidates() * key_block > visible.blocks.without_choice())
        return attend_chosen(step, passes, queries, end, out);
      shares_[static_cast<std::size_t>(step.layer)] +=
          dense_share(shape_.kv_heads_of(step.layer), queries.first, queries.tokens);
    }
    const std::int64_t skipped = queries.data - step.q;
    for (const ChunkPass& pass : passes) {
      TokenQueries with = queries;
      with.data = pass.queries(step) + skipped;
      const PositionRange rows = pass.sees.within({0, end});
      if (&pass == passes.begin()) {
        attend_span(step.layer, with, rows, rows.begin, out);
        continue;
      }
      part_.reset(out.heads, out.head_dim);
      attend_span(step.layer, with, rows, rows.begin, part_.view());
      merge(out, part_.view());
    }
  }

  /// The same where tokens choose what they attend.
  void attend_chosen(const AttentionStep& step, const ChunkPasses& passes,
                     const TokenQueries& queries, std::int64_t end, PartialView out) {
    const std::int64_t skipped = queries.data - step.q;
    std::vector<PassQueries> with;
    for (const ChunkPass& pass : passes) {
      with.push_back({queries, pass.sees});
      with.back().queries.data = pass.queries(step) + skipped;
    }
    // A layer that attends the rows of another layer shares their means.
    auto& means = means_[static_cast<std::size_t>(shape_.row_layer_of(step.layer))];
    const std::int64_t heads = shape_.kv_heads_of(step.layer);
    means.resize(static_cast<std::size_t>(heads));
    set_spans(step.layer, {0, end});
    parallel_for(heads, 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t head = from; head < to; ++head) {
        const auto h = static_cast<std::size_t>(head);
        extend_means(spans_[h], end, means[h]);
      }
    });
    const LayerVisibility& visible = this->visible(step.layer);
    shares_[static_cast<std::size_t>(step.layer)] +=
        attend_sparse(shape_, with, visible.window, visible.blocks, spans_, means, out);
  }

  const LayerVisibility& visible(std::int64_t layer) const {
    return visible_[static_cast<std::size_t>(layer)];
  }

  /// Sets spans_ to the rows of these positions of a layer.
  void set_spans(std::int64_t layer, PositionRange positions) {
    spans_.clear();
    for (std::int64_t head = 0; head < shape_.kv_heads_of(layer); ++head) {
      const RowsView stored = store_.rows(layer, head);
      const RowSpan all =
          before_ == nullptr ? RowSpan{stored} : RowSpan{before_->rows(layer, head), 0, stored};
      spans_.push_back(all.part(positions));
    }
  }

  /// Attends the rows `range` of a layer as those of positions from `position` on.
  void attend_span(std::int64_t layer, const TokenQueries& queries, PositionRange range,
                   std::int64_t position, PartialView out) {
    set_spans(layer, range);
    for (RowSpan& span : spans_) span.first = position;
    const LayerVisibility& visible = this->visible(layer);
    attend_tokens(shape_, queries, visible.chooses() ? CausalWindow() : visible.window, spans_,
                  out);
  }

  AttentionShape shape_;
  PrefillVisibility visible_;
  RowStore& store_;
  const RowStore* before_;  // rows of the tokens before the store's; null: there are none
  std::int64_t tokens_before_;
  std::vector<std::vector<std::vector<float>>> means_;  // of blocks of keys, per layer and KV head
  std::vector<PrefillShare> shares_;                    // per layer
  std::unique_ptr<IndexerAttention> own_indexer_;       // null: it has another owner
  IndexerAttention& indexer_;
  std::vector<RowSpan> spans_;  // per KV head
  Partial lse_;                 // where the step wants none
  Partial part_;                // of some rows, before it is merged
};

}  // namespace

std::unique_ptr<DevicePrefill> make_host_prefill(const AttentionShape& shape,
                                                 const PrefillVisibility& visible,
                                                 const PrefillRows& rows) {
  return std::make_unique<HostPrefill>(shape, visible, rows);
}

}  // namespace topkv
