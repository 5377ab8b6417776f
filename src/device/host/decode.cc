#include "src/device/host/decode.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "src/core/io/faults.h"
#include "src/device/host/scanner.h"
#include "src/device/tail_figures.h"

namespace topkv {
namespace {

/// The frame of a session's steps on the host, and its window.
class HostDecode final : public DecodeInputs, public ResidentWindow {
 public:
  explicit HostDecode(const SessionShape& shape)
      : shape_(shape),
        scanner_(shape.scans() ? std::make_unique<HostScanner>(shape_) : nullptr),
        figures_(static_cast<std::size_t>(shape_.attention.layers)) {}
  HostDecode(const HostDecode&) = delete;  // its scanner points to its shape
  HostDecode& operator=(const HostDecode&) = delete;

  CodeScanner* scanner() { return scanner_.get(); }

  void begin(const AttentionStep& step, std::int64_t first,
             const ChunkPasses& /*passes*/) override {
    const AttentionShape& a = shape_.attention;
    given_ = step;
    queries_ = {step.q, step.tokens, a.q_heads, a.head_dim_of(step.layer), first};
    out_.reset(step.tokens * a.q_heads, queries_.head_dim);
    if (scanner_) scanner_->begin_step(queries_, out_.view());
  }

  AttentionStep wait_for_inputs() override { return given_; }

  PartialView host_partial_buffer() override {
    buffer_.reset(queries_.tokens * queries_.heads, queries_.head_dim);
    return buffer_.view();
  }

  void finish(const AttentionStep& step, const TailParts& host) override {
    const PartialView out = out_.view();
    TailFigures figures;
    const auto add_tail = [&](const TailParts& tail) {
      merge(out, tail.estimate);
      for (std::int64_t h = 0; h < tail.estimate.heads; ++h)
        add_head(out.part(h), tail.estimate.part(h), tail.noise[h], figures);
    };
    if (host.exact.heads > 0) merge(out, host.exact);
    if (host.estimate.heads > 0) add_tail(host);
    if (scanner_ && scanner_->has_estimate()) add_tail(scanner_->scanned());
    std::ranges::copy(out_.out(), step.out);
    if (step.lse != nullptr) std::ranges::copy(out_.lse(), step.lse);
    figures_[static_cast<std::size_t>(step.layer)] += figures;
  }

  TailFigures tail_figures(std::int64_t layer) const override {
    return figures_[static_cast<std::size_t>(layer)];
  }

  void load(std::int64_t /*first_layer*/, std::span<const RowSpan> /*rows*/) override {}

  void attend(std::int64_t layer, std::span<const RowSpan> rows) override {
    if (rows[0].rows.count() == 0) return;
    reach_fault("session.window");
    const AttentionShape& a = shape_.attention;
    part_.reset(queries_.tokens * a.q_heads, queries_.head_dim);
    const auto attend = queries_.tokens <= few_step_tokens ? attend_few_tokens : attend_tokens;
    attend(a, queries_, shape_.always_attended(layer), rows, part_.view());
    merge(out_.view(), part_.view());
  }

  PartialView partial() override {
    reach_fault("session.exact_part");
    return out_.view();
  }

 private:
  const SessionShape shape_;
  std::unique_ptr<HostScanner> scanner_;  // null: nothing is scanned
  AttentionStep given_;
  TokenQueries queries_;
  // The merged partials so far, [tokens x q_heads]. They are not in AttentionStep::out, which may
  // be q, and q is read to the end.
  Partial out_;
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
