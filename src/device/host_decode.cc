#include "src/device/host_decode.h"

#include <algorithm>
#include <vector>

#include "src/core/faults.h"
#include "src/device/tail_figures.h"
#include "topkv/error.h"

namespace topkv {
namespace {

class HostDecode final : public DecodeBackend {
 public:
  explicit HostDecode(const SessionShape& shape)
      : shape_(shape), figures_(static_cast<std::size_t>(shape.attention.layers)) {}

  void load(std::int64_t /*layer*/, std::span<const RowSpan> /*rows*/,
            std::int64_t /*end*/) override {}

  void begin(const AttentionStep& step, std::int64_t first) override {
    const AttentionShape& a = shape_.attention;
    const std::int64_t d = a.head_dim;
    queries_ = {step.q, step.tokens, a.q_heads * d, d, first};
    out_.reset(step.tokens * a.q_heads,
               d);  // not step.out, which may be q: that is read to the end
    const auto rows = [&](const float* x) {
      return TensorView::tokens_first(x, DType::f32, step.kv_count(), a.kv_heads, d);
    };
    given_ = {step.q, rows(step.k), rows(step.v)};
    tail_ = {};
  }

  Step given() override { return given_; }

  void attend(std::int64_t layer, std::span<const RowSpan> rows) override {
    if (rows[0].rows.count == 0) return;
    reach_fault("session.window");
    part_.reset(queries_.tokens * shape_.attention.q_heads, shape_.attention.head_dim);
    attend_tokens(shape_.attention, queries_, shape_.exact(layer), rows.data(), part_.view());
    merge(out_.view(), part_.view());
  }

  PartialView exact_part() override {
    reach_fault("session.exact_part");
    return out_.view();
  }

  PartialView room() override {
    room_.reset(queries_.tokens * shape_.attention.q_heads, shape_.attention.head_dim);
    return room_.view();
  }

  void add(PartialView partial) override { merge(out_.view(), partial); }

  void add_tail(PartialView estimate, const TailNoise* noise) override {
    merge(out_.view(), estimate);
    for (std::int64_t h = 0; h < estimate.heads; ++h)
      add_head(out_.view().part(h), estimate.part(h), noise[h], tail_);
  }

  TailFigures tail_figures(std::int64_t layer) const override {
    return figures_[static_cast<std::size_t>(layer)];
  }

  void finish(const AttentionStep& step) override {
    std::ranges::copy(out_.out(), step.out);
    if (step.lse != nullptr) std::ranges::copy(out_.lse(), step.lse);
    figures_[static_cast<std::size_t>(step.layer)] += tail_;
  }

 private:
  SessionShape shape_;
  TokenQueries queries_;  // of this step
  Step given_;
  Partial out_;
  Partial part_;  // of one segment
  Partial room_;
  TailFigures tail_;                  // of this step
  std::vector<TailFigures> figures_;  // per layer
};

}  // namespace

void DecodeBackend::scan(std::int64_t /*layer*/, std::span<const ScanOf> /*parts*/) {
  throw Error("this device keeps no codes to scan");
}
std::int64_t DecodeBackend::scan_tokens() const { return 0; }
std::int64_t DecodeBackend::scan_lists() const { return 0; }
void DecodeBackend::read_list(const List& /*list*/,
                              const std::function<void(std::int32_t)>& /*met*/) {}

std::unique_ptr<DecodeBackend> make_host_decode(const SessionShape& shape) {
  return std::make_unique<HostDecode>(shape);
}

}  // namespace topkv
