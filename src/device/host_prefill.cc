#include "src/device/host_prefill.h"

#include <utility>

#include "src/store/row_store.h"

namespace topkv {
namespace {

class HostPrefill final : public DevicePrefill {
 public:
  HostPrefill(AttentionShape shape, PrefillVisibility visible, RowStore& store)
      : shape_(std::move(shape)), visible_(std::move(visible)), store_(store) {}

  void attend(std::int64_t layer, const float* q, const float* k, const float* v,
              std::int64_t tokens, float* out) override {
    const std::int64_t d = shape_.head_dim;
    const std::int64_t first = store_.size(layer);
    store_.append(layer, TensorView::tokens_first(k, DType::f32, tokens, shape_.kv_heads, d),
                  TensorView::tokens_first(v, DType::f32, tokens, shape_.kv_heads, d));
    spans_.clear();
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      spans_.push_back({store_.rows(layer, head), 0});
    }
    lse_.reset(tokens * shape_.q_heads, 0);
    attend_tokens(shape_, {q, tokens, shape_.q_heads * d, d, first},
                  visible_[static_cast<std::size_t>(layer)], spans_.data(),
                  {out, lse_.view().lse, tokens * shape_.q_heads, d});
  }

  void finish() override {}

  std::int64_t arrived(std::int64_t layer) const override { return store_.size(layer); }

 private:
  AttentionShape shape_;
  PrefillVisibility visible_;
  RowStore& store_;
  std::vector<RowSpan> spans_;  // per KV head
  Partial lse_;                 // written, not used
};

}  // namespace

std::unique_ptr<DevicePrefill> make_host_prefill(const AttentionShape& shape,
                                                 const PrefillVisibility& visible,
                                                 RowStore& store) {
  return std::make_unique<HostPrefill>(shape, visible, store);
}

}  // namespace topkv
