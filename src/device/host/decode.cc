#include "src/device/host/decode.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "src/core/io/faults.h"
#include "src/device/host/scanner.h"
#include "src/device/host/step.h"
#include "src/device/tail_figures.h"

namespace topkv {
namespace {

/// The frame of a session's steps on the host, and its window.
class HostDecode final : public DecodeInputs, public ResidentWindow {
 public:
  explicit HostDecode(const SessionShape& shape)
      : step_(shape),
        scanner_(shape.scans() ? std::make_unique<HostScanner>(step_) : nullptr),
        figures_(static_cast<std::size_t>(shape.attention.layers)) {}
  HostDecode(const HostDecode&) = delete;  // its scanner points to its step
  HostDecode& operator=(const HostDecode&) = delete;

  CodeScanner* scanner() { return scanner_.get(); }

  void begin(const AttentionStep& step, std::int64_t first,
             const PositionRange& /*sees*/) override {
    const AttentionShape& a = step_.shape.attention;
    const std::int64_t d = a.head_dim;
    step_.queries = {step.q, step.tokens, a.q_heads * d, d, first};
    step_.out.reset(step.tokens * a.q_heads, d);
    const auto rows = [&](const float* x) {
      return TensorView::tokens_first(x, DType::f32, step.kv_count(), a.kv_heads, d);
    };
    given_ = {step.q, rows(step.k), rows(step.v)};
    if (scanner_) scanner_->begin_step();
  }

  StepInputs wait_for_inputs() override { return given_; }

  PartialView host_partial_buffer() override {
    const AttentionShape& a = step_.shape.attention;
    buffer_.reset(step_.queries.tokens * a.q_heads, a.head_dim);
    return buffer_.view();
  }

  void finish(const AttentionStep& step, const TailParts& host) override {
    const PartialView out = step_.out.view();
    TailFigures figures;
    const auto add_tail = [&](PartialView estimate, const TailNoise* noise) {
      merge(out, estimate);
      for (std::int64_t h = 0; h < estimate.heads; ++h)
        add_head(out.part(h), estimate.part(h), noise[h], figures);
    };
    if (host.exact.heads > 0) merge(out, host.exact);
    if (host.estimate.heads > 0) add_tail(host.estimate, host.noise);
    if (scanner_ && scanner_->has_estimate()) {
      const TailParts scanned = scanner_->scanned();
      add_tail(scanned.estimate, scanned.noise);
    }
    std::ranges::copy(step_.out.out(), step.out);
    if (step.lse != nullptr) std::ranges::copy(step_.out.lse(), step.lse);
    figures_[static_cast<std::size_t>(step.layer)] += figures;
  }

  TailFigures tail_figures(std::int64_t layer) const override {
    return figures_[static_cast<std::size_t>(layer)];
  }

  void load(std::int64_t /*first_layer*/, std::span<const RowSpan> /*rows*/) override {}

  void attend(std::int64_t layer, std::span<const RowSpan> rows) override {
    if (rows[0].rows.count() == 0) return;
    reach_fault("session.window");
    const AttentionShape& a = step_.shape.attention;
    part_.reset(step_.queries.tokens * a.q_heads, a.head_dim);
    attend_tokens(a, step_.queries, step_.shape.always_attended(layer), rows.data(), part_.view());
    merge(step_.out.view(), part_.view());
  }

  PartialView partial() override {
    reach_fault("session.exact_part");
    return step_.out.view();
  }

 private:
  HostStep step_;
  std::unique_ptr<HostScanner> scanner_;  // null: nothing is scanned
  StepInputs given_;
  Partial part_;  // of one segment
  Partial buffer_;
  std::vector<TailFigures> figures_;  // per layer
};

}  // namespace

DecodeBackend make_host_decode(const SessionShape& shape) {
  const auto decode = std::make_shared<HostDecode>(shape);
  return {.owner = decode,
          .inputs = decode.get(),
          .window = decode.get(),
          .scanner = decode->scanner()};
}

}  // namespace topkv
