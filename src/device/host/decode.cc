#include "src/device/host/decode.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "index/codes/code_pass.h"
#include "index/common/scratch.h"
#include "src/core/io/faults.h"
#include "src/core/threads/threads.h"
#include "src/device/host/codes.h"
#include "src/device/tail_figures.h"
#include "topkv/error.h"

namespace topkv {
namespace {

class HostDecode final : public DecodeInputs, public ResidentWindow, public CodeScanner {
 public:
  explicit HostDecode(const SessionShape& shape)
      : CodeScanner(std::clamp<std::int64_t>(most_lists / shape.attention.kv_heads, 1, 8)),
        shape_(shape),
        figures_(static_cast<std::size_t>(shape.attention.layers)) {}

  void load(std::int64_t /*first_layer*/, std::span<const RowSpan> /*rows*/) override {}

  void begin(const AttentionStep& step, std::int64_t first,
             const PositionRange& /*sees*/) override {
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
    scanned_ = false;
    scanned_tail_ = false;
  }

  StepInputs wait_for_inputs() override { return given_; }

  void scan_own(std::shared_ptr<const DeviceCodes> codes) override {
    own_codes_ = std::move(codes);
  }

  void scan(std::int64_t layer, std::span<const ScanOf> parts) override {
    reach_fault("session.scan");
    for (const ScanOf& part : parts) session(part).begin_scan(part.scan);
    scan(codes_of(shape_.codes), layer, parts, &HostDecode::of_context_);
    for (const ScanOf& part : parts) {
      const HostDecode& of = session(part);
      if (!part.scan.own.empty())
        scan(codes_of(of.own_codes_), layer, {&part, 1}, &HostDecode::of_own_);
    }
    for (const ScanOf& part : parts) session(part).end_scan(part.scan);
  }

  std::int64_t scan_tokens(std::int64_t /*rows*/) const override { return shape_.max_tokens; }
  TailParts scanned() override { return of_context_.parts(); }

  /// Each an equal part.
  void drain_list(const List& list, Wait /*wait*/, const std::function<void(std::int32_t)>& on_row,
                  const std::function<bool()>& /*while_waiting*/) override {
    const auto& rows = (list.own ? of_own_ : of_context_)
                           .listed[static_cast<std::size_t>(list.token * shape_.attention.kv_heads +
                                                            list.kv_head)];
    const std::int64_t count = std::ssize(rows);
    const std::int64_t end = count * (list.number + 1) / lists();
    for (std::int64_t i = count * list.number / lists(); i < end; ++i)
      on_row(static_cast<std::int32_t>(rows[static_cast<std::size_t>(i)]));
  }

  void attend(std::int64_t layer, std::span<const RowSpan> rows) override {
    if (rows[0].rows.count() == 0) return;
    reach_fault("session.window");
    part_.reset(queries_.tokens * shape_.attention.q_heads, shape_.attention.head_dim);
    attend_tokens(shape_.attention, queries_, shape_.always_attended(layer), rows.data(),
                  part_.view());
    merge(out_.view(), part_.view());
  }

  PartialView partial() override {
    reach_fault("session.exact_part");
    return out_.view();
  }

  PartialView host_partial_buffer() override {
    room_.reset(queries_.tokens * shape_.attention.q_heads, shape_.attention.head_dim);
    return room_.view();
  }

  TailFigures tail_figures(std::int64_t layer) const override {
    return figures_[static_cast<std::size_t>(layer)];
  }

  void finish(const AttentionStep& step, const HostPartials& host) override {
    if (host.found.heads > 0) merge(out_.view(), host.found);
    if (host.estimate.heads > 0) add_tail(host.estimate, host.noise);
    if (scanned_tail_) add_tail(of_context_.estimate.view(), of_context_.noise.data());
    std::ranges::copy(out_.out(), step.out);
    if (step.lse != nullptr) std::ranges::copy(out_.lse(), step.lse);
    figures_[static_cast<std::size_t>(step.layer)] += tail_;
  }

 private:
  static HostDecode& session(const ScanOf& part) { return static_cast<HostDecode&>(*part.scanner); }

  void add_tail(PartialView estimate, const TailNoise* noise) {
    merge(out_.view(), estimate);
    for (std::int64_t h = 0; h < estimate.heads; ++h)
      add_head(out_.view().part(h), estimate.part(h), noise[h], tail_);
  }

  /// What scans over some codes give the tokens of a step.
  struct Found {
    Partial rare;
    Partial estimate;
    std::vector<TailNoise> noise;
    std::vector<std::vector<std::int64_t>> listed;  // by the last scan, [tokens, kv_heads]

    TailParts parts() { return {estimate.view(), rare.view(), noise.data()}; }
    void reset(std::int64_t heads, std::int64_t head_dim) {
      estimate.reset(heads, head_dim);
      noise.assign(static_cast<std::size_t>(heads), {});
      rare.reset(heads, head_dim);
    }
    void reset_lists(std::int64_t count) {
      if (std::ssize(listed) < count) listed.resize(static_cast<std::size_t>(count));
    }
  };

  static const HostCodes& codes_of(const std::shared_ptr<const DeviceCodes>& codes) {
    return static_cast<const HostCodes&>(*codes);
  }

  /// to: where it goes, of each session.
  void scan(const HostCodes& codes, std::int64_t layer, std::span<const ScanOf> parts,
            Found HostDecode::*to) const {
    const AttentionShape& a = shape_.attention;
    parallel_for(a.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
      const Scratch<std::vector<PassToken>> tokens;
      for (std::int64_t head = begin; head < end; ++head) {
        const HostCodes::Head& of = codes.head(layer, head);
        CodePass pass{.index = of.index,
                      .rows = of.rows,
                      .group = a.group(),
                      .scale = a.softmax_scale(),
                      .softcap = a.softcap};
        // Those that want the same, together.
        for (std::size_t first = 0; first < parts.size();) {
          const auto wanted = [&](const ScanOf& part) {
            return listed_per_row * std::min(part.scan.rows, of.rows.count());
          };
          pass.wanted = wanted(parts[first]);
          const auto tail = [&](const ScanOf& part) { return part.scan.tail ? of.tail : nullptr; };
          pass.tail = tail(parts[first]);
          tokens->clear();
          for (; first < parts.size() && wanted(parts[first]) == pass.wanted &&
                 tail(parts[first]) == pass.tail;
               ++first) {
            session(parts[first]).add_tokens(parts[first].scan, head, to, *tokens);
          }
          pass.run(*tokens);
        }
      }
    });
  }

  /// Room for what a scan of some tokens of the step gives.
  void begin_scan(const Scan& scan) {
    const AttentionShape& a = shape_.attention;
    const std::int64_t head_steps = std::ssize(scan.allowed);
    const std::int64_t heads = queries_.tokens * a.q_heads;
    const bool own = !scan.own.empty();
    if (!std::exchange(scanned_, true)) {
      of_context_.reset(heads, a.head_dim);
      if (own) of_own_.reset(heads, a.head_dim);
    }
    scanned_tail_ = scan.tail && !shape_.has_row_rules;
    of_context_.reset_lists(head_steps);
    if (own) of_own_.reset_lists(head_steps);
  }

  void add_tokens(const Scan& scan, std::int64_t head, Found HostDecode::*to,
                  std::vector<PassToken>& tokens) {
    const AttentionShape& a = shape_.attention;
    Found& found = this->*to;
    const TailParts parts = found.parts();
    const auto allowed = to == &HostDecode::of_own_ ? scan.own : scan.allowed;
    for (std::int64_t head_step = head; head_step < std::ssize(allowed); head_step += a.kv_heads) {
      const std::int64_t token = scan.token + head_step / a.kv_heads;
      const std::int64_t at = token * a.q_heads + head * a.group();
      tokens.push_back({.queries = queries_.data + at * a.head_dim,
                        .allowed = allowed[static_cast<std::size_t>(head_step)],
                        .listed = &found.listed[static_cast<std::size_t>(head_step)],
                        .parts = {parts.estimate.part(at, a.group()),
                                  parts.exact.part(at, a.group()), parts.noise + at}});
    }
  }

  /// Rare rows join what is attended exactly; the tail of the session's own rows, the context's.
  void end_scan(const Scan& scan) {
    if (shape_.has_row_rules) return;
    const std::int64_t first = scan.token * shape_.attention.q_heads;
    const std::int64_t heads = std::ssize(scan.allowed) * shape_.attention.group();
    const PartialView out = out_.view().part(first, heads);
    merge(out, of_context_.rare.view().part(first, heads));
    if (scan.own.empty()) return;
    merge(out, of_own_.rare.view().part(first, heads));
    if (!scan.tail) return;
    const TailParts to = of_context_.parts();
    const TailParts own = of_own_.parts();
    for (std::int64_t head = first; head < first + heads; ++head)
      join_tails(to.estimate.part(head), to.noise[head], own.estimate.part(head), own.noise[head]);
  }

  static constexpr std::int64_t most_lists = 16;  // of a token: work for that many threads

  SessionShape shape_;
  std::shared_ptr<const DeviceCodes> own_codes_;  // null: there are none
  TokenQueries queries_;                          // of this step
  StepInputs given_;
  Partial out_;
  Partial part_;  // of one segment
  Found of_context_;
  Found of_own_;
  bool scanned_ = false;       // in this step
  bool scanned_tail_ = false;  // to be added in the end
  Partial room_;
  TailFigures tail_;                  // of this step
  std::vector<TailFigures> figures_;  // per layer
};

}  // namespace

DecodeBackend make_host_decode(const SessionShape& shape) {
  const auto decode = std::make_shared<HostDecode>(shape);
  return {.owner = decode,
          .inputs = decode.get(),
          .window = decode.get(),
          .scanner = shape.codes ? decode.get() : nullptr};
}

}  // namespace topkv
