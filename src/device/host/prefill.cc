#include "src/device/host/prefill.h"

#include <fmt/format.h>

#include <utility>

#include "src/attention/chunk_passes.h"
#include "src/core/io/faults.h"
#include "src/core/math/convert.h"
#include "src/store/row_store.h"
#include "topkv/error.h"

namespace topkv {
namespace {

class HostPrefill final : public DevicePrefill {
 public:
  HostPrefill(AttentionShape shape, PrefillVisibility visible, RowStore& store)
      : shape_(std::move(shape)), visible_(std::move(visible)), store_(store) {}

  void attend(const AttentionStep& step) override {
    const std::int64_t first = store_.size(step.layer);
    check_queries(step, first);
    try {
      append_and_attend(step, first);
    } catch (...) {
      store_.shrink(step.layer, first);
      throw;
    }
  }

  void finish() override {}

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
  }

  void append_and_attend(const AttentionStep& step, std::int64_t first) {
    const std::int64_t d = shape_.head_dim_of(step.layer);
    const std::int64_t kv_heads = shape_.kv_heads_of(step.layer);
    const std::int64_t heads = step.tokens * shape_.q_heads;
    const std::int64_t kept = step.kv_count();
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

  /// Attends rows `range` of a layer as those of positions from `position` on.
  void attend_span(std::int64_t layer, const TokenQueries& queries, PositionRange range,
                   std::int64_t position, PartialView out) {
    spans_.clear();
    for (std::int64_t head = 0; head < shape_.kv_heads_of(layer); ++head) {
      spans_.push_back({store_.rows(layer, head).part(range), position});
    }
    attend_tokens(shape_, queries, visible_[static_cast<std::size_t>(layer)], spans_, out);
  }

  AttentionShape shape_;
  PrefillVisibility visible_;
  RowStore& store_;
  std::vector<RowSpan> spans_;  // per KV head
  Partial lse_;                 // where the step wants none
  Partial part_;                // of some rows, before it is merged
};

}  // namespace

std::unique_ptr<DevicePrefill> make_host_prefill(const AttentionShape& shape,
                                                 const PrefillVisibility& visible,
                                                 RowStore& store) {
  return std::make_unique<HostPrefill>(shape, visible, store);
}

}  // namespace topkv
