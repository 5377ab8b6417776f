#include "gpu/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "gpu/attention.h"
#include "gpu/cuda_codes.h"
#include "gpu/cuda_device.h"
#include "gpu/cuda_selection.h"
#include "gpu/faults.h"
#include "gpu/resident_rows.h"
#include "gpu/row_stream.h"
#include "gpu/scan_progress.h"
#include "gpu/session_layout.h"
#include "gpu/step_io.h"
#include "src/core/faults.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

/// Scans over codes of a session's own rows, beside those of the context.
struct OwnScan {
  OwnScan(CudaDevice& device, const SessionShape& shape, const ScanLayout& layout)
      : memory(device.allocate(layout.device_bytes, "session")),
        host(layout.host_bytes),
        room(shape, layout, memory.data(), host.data()) {}

  std::shared_ptr<const DeviceCodes> codes;
  Buffer memory;
  PinnedBuffer host;
  ScanRoom room;
  Stream stream;
  Event done;
};

class CudaDecode final : public DecodeBackend {
 public:
  CudaDecode(CudaDevice& device, const SessionShape& shape)
      : device_(device),
        compute_(device.compute_stream()),
        shape_(shape),
        attention_(shape_.attention),
        layout_(shape),
        memory_(device.allocate(layout_.device_bytes, "session")),
        host_(layout_.host_bytes),
        room_(shape_, layout_.scan, memory_.data() + layout_.scan_at,
              host_.data() + layout_.host_scan),
        resident_(attention_, layout_, memory_.data()),
        estimated_(static_cast<std::size_t>(shape.attention.layers)) {
    if (!attention_supports(attention_.head_dim)) {
      throw Unsupported(fmt::format("head_dim {} on a CUDA device; known are 64, 80, 96, 128, 256",
                                    attention_.head_dim));
    }
    TOPKV_CUDA(cudaMemsetAsync(memory_.data() + layout_.bad, 0xff, 8, compute_));
    TOPKV_CUDA(cudaMemsetAsync(figures_of(0), 0,
                               static_cast<std::size_t>(shape_.attention.layers) * figure_bytes,
                               compute_));
    for (const std::int64_t turn : {layout_.host_begun, layout_.host_taken, layout_.host_ready})
      *host<int>(turn) = 0;
    if (layout_.has_tiles()) {
      tiles_ =
          std::make_unique<RowStream>(attention_.kv_heads, attention_.head_dim, shape_.rows,
                                      SessionLayout::dense_tile, memory_.data() + layout_.tiles);
    }
  }

  ~CudaDecode() override {
    if (own_) cudaStreamSynchronize(own_->stream);
    cudaStreamSynchronize(beside_);
    cudaStreamSynchronize(compute_);
  }

  void load(std::int64_t layer, std::span<const RowSpan> rows, std::int64_t end) override {
    beside_.synchronize();  // of a step that failed
    if (unread_ > 0) {
      compute_.synchronize();
      room_.empty_all();
      if (own_) {
        own_->stream.synchronize();
        own_->room.empty_all();
      }
      unread_ = 0;
    }
    resident_.load(layer, rows, end, compute_);
    compute_.synchronize();
  }

  void begin(const AttentionStep& given, std::int64_t first, const PositionRange& sees) override {
    if (const auto user = static_cast<cudaStream_t>(given.stream); user != nullptr) {
      handed_over_.record(user);
      handed_over_.block(compute_);
    }
    given_ = given;
    sees_ = sees;
    turn_ = turn_ == std::numeric_limits<int>::max() ? 1 : turn_ + 1;
    added_ = false;
    copied_by_scan_ = false;
    of_context_ = {};
    of_own_ = {};
    to_judge_ = {};
    sums_ = nullptr;
    exact_begun_ = false;
    queries_.data = at<__nv_bfloat16>(layout_.queries);
    queries_.tokens = given.tokens;
    queries_.q_heads = attention_.q_heads;
    queries_.kv_heads = attention_.kv_heads;
    queries_.head_dim = attention_.head_dim;
    queries_.first = first;
    queries_.scale = attention_.softmax_scale();
    queries_.softcap = attention_.softcap;
  }

  Step given() override {
    if (!copied_by_scan_) begin_exact(compute_);
    reach_fault("session.host_copies");
    if (copied_by_scan_) {
      wait_for_turn(layout_.host_taken, turn_, Asks::device);
    } else {
      on_host_.synchronize();
    }
    const std::int64_t d = attention_.head_dim;
    const std::int64_t rows = given_.kv_count();
    Step step;
    step.q = host<float>(layout_.host_q);
    step.k = TensorView::tokens_first(host<float>(layout_.host_k), DType::f32, rows,
                                      attention_.kv_heads, d);
    step.v = TensorView::tokens_first(host<float>(layout_.host_v), DType::f32, rows,
                                      attention_.kv_heads, d);
    return step;
  }

  /// What is resident is attended beside it.
  void choose(std::int64_t layer, PositionRange allowed, std::int64_t k) override {
    reach_fault("session.choose");
    begun_.record(compute_);
    begin_beside();
    inject_choice_delay(compute_);
    const auto& selection = static_cast<const CudaSelection&>(*shape_.selection);
    chosen_ = selection.choose(
        layer, given_.q, allowed, k,
        {host<int>(layout_.host_entries), host<float>(layout_.host_log_sums)}, compute_);
    choice_made_.record(compute_);
  }

  GivenEntries chosen() override {
    reach_fault("session.chosen");
    if (!Faults::drop_choice_waits.load(std::memory_order_relaxed)) choice_made_.synchronize();
    return chosen_;
  }

  void scan_own(std::shared_ptr<const DeviceCodes> codes) override {
    if (!own_) own_ = std::make_unique<OwnScan>(device_, shape_, layout_.scan);
    compute_.synchronize();
    own_->codes = std::move(codes);
  }

  void scan(std::int64_t layer, std::span<const ScanOf> parts) override {
    reach_fault("session.scan");
    const bool one = parts.size() == 1 && given_.tokens == 1;
    for (const ScanOf& part : parts) {
      CudaDecode& of = session(part);
      of.begin_lists(layer, part.scan);
      of.begun_.record(compute_);
      // What is resident is attended beside the scan: before it where that is for several tokens,
      // each session's beside the others'. A scan for one token takes the whole device, and gives
      // the host its copies: there it is attended where the pass leaves room (attend).
      if (!one) of.begin_beside();
    }
    StepInput copied;
    if (one && !exact_begun_) {
      copied_by_scan_ = true;
      inject_copy_delay(compute_);
      copied = input();
    }
    scan_for(codes_of(shape_.codes), layer, parts, &CudaDecode::context_room, &Scan::allowed,
             copied, compute_);
    for (const ScanOf& part : parts) {
      CudaDecode& of = session(part);
      if (!part.scan.own.empty()) of.scan_own_rows(layer, part);
      of.progress_.end(compute_);
    }
  }

  std::int64_t scan_tokens(std::int64_t rows) const override {
    return layout_.scan.scan_tokens(rows);
  }
  std::int64_t scan_lists() const override { return layout_.scan.lists; }

  void read_list(const List& list, Asks asks, const std::function<void(std::int32_t)>& met,
                 const std::function<bool()>& meanwhile) override {
    const ScanRoom& room = list.own ? own_->room : room_;
    int* const rows = room.list(list);
    progress_.read_list(rows, layout_.scan.list_rows(list.rows), asks, met, meanwhile);
    ScanRoom::empty(rows);  // by who has it near
    --unread_;
  }

  /// What is resident, if that has not begun; in dense layers, the rows before it, streamed.
  void attend(std::int64_t layer, std::span<const RowSpan> rows) override {
    attend_resident();
    if (!resident_.dense(layer)) return;
    const std::int64_t count =
        std::min(rows[0].end(), resident_.window_begin(layer, queries_.first)) - rows[0].first;
    if (count <= 0) return;
    views_.clear();
    for (const RowSpan& span : rows) views_.push_back(span.rows);
    tiles_->stream(views_, {0, count}, resident_.channels(layer), compute_, [&](const DeviceRows& tile) {
      gpu::attend(queries_, tile, {}, exact(), Into::merge, compute_);
    });
  }

  PartialView exact_part() override {
    reach_fault("session.exact_part");
    copy_out(exact(), layout_.host_exact);
    copy_scanned();
    wait_for_copies();
    return in_memory(layout_.host_exact);
  }

  TailParts scanned() override {
    if (!scanned_copied_) {
      copy_scanned();
      wait_for_copies();
    }
    return {in_memory(layout_.host_tail), in_memory(layout_.host_rare),
            host<TailNoise>(layout_.host_tail_noise)};
  }

  bool goes_ahead() const override { return true; }
  int turn() const override { return turn_; }

  void await_scan(int turn) override { wait_for_turn(layout_.host_begun, turn, Asks::nobody); }

  const float* await_queries(int turn) override {
    wait_for_turn(layout_.host_taken, turn, Asks::nobody);
    return host<float>(layout_.host_q);
  }

  void ready(int turn) override {
    std::atomic_ref(*host<int>(layout_.host_ready)).store(turn, std::memory_order_release);
  }

  void watch() override { progress_.watch(); }

  PartialView room() override { return in_memory(layout_.host_found); }

  void add(PartialView partial) override {
    const std::int64_t values = partial.heads * partial.head_dim;
    if (added_) {  // the one before; that of the step before was given when `given` waited
      StepParts some;
      some.exact = exact();
      some.found = found();
      give(some, exact().out, exact().lse);
      wait_for_copies();
    }
    const DevicePartial staged = found();
    if (partial.out != staged.out) {
      std::copy_n(partial.out, values, staged.out);
      std::copy_n(partial.lse, partial.heads, staged.lse);
    }
    added_ = true;
  }

  void add_tail(PartialView estimate, const TailNoise* noise) override {
    const std::int64_t values = estimate.heads * estimate.head_dim;
    of_context_ = {{}, in_host_memory(layout_.host_estimate), host<TailNoise>(layout_.host_noise)};
    sums_ = figures_of(given_.layer);
    std::copy_n(estimate.out, values, of_context_.estimate.out);
    std::copy_n(estimate.lse, estimate.heads, of_context_.estimate.lse);
    std::copy_n(noise, estimate.heads, host<TailNoise>(layout_.host_noise));
  }

  TailFigures tail_figures(std::int64_t layer) const override {
    double sums[SessionLayout::figures_of_layer];
    TOPKV_CUDA(
        cudaMemcpyAsync(sums, figures_of(layer), figure_bytes, cudaMemcpyDeviceToHost, compute_));
    compute_.synchronize();
    return {estimated_[static_cast<std::size_t>(layer)], sums[0], sums[1]};
  }

  void finish(const AttentionStep& given) override { finish(given, parts()); }

  void finish_ahead(const AttentionStep& given) override {
    StepParts all = parts();
    all.found = found();
    all.ready = host<int>(layout_.host_ready);
    all.turn = turn_;
    finish(given, all);
  }

 private:
  StepParts parts() const {
    StepParts all;
    all.exact = exact();
    if (added_) all.found = found();
    all.of_context = of_context_;
    all.of_own = of_own_;
    all.sums = sums_;
    return all;
  }

  void finish(const AttentionStep& given, const StepParts& all) {
    give(all, given.out, given.lse);
    if (sums_ != nullptr)
      estimated_[static_cast<std::size_t>(given.layer)] += given.tokens * attention_.q_heads;
    if (const auto user = static_cast<cudaStream_t>(given.stream); user != nullptr) {
      handed_over_.record(compute_);
      handed_over_.block(user);
    }
  }

  static CudaDecode& session(const ScanOf& part) { return static_cast<CudaDecode&>(*part.backend); }
  static const CudaCodes& codes_of(const std::shared_ptr<const DeviceCodes>& codes) {
    return static_cast<const CudaCodes&>(*codes);
  }
  const ScanRoom& context_room() const { return room_; }
  const ScanRoom& own_room() const { return own_->room; }

  /// What scans of this session's tokens are to give is a part of the step.
  void begin_lists(std::int64_t layer, const Scan& wanted) {
    progress_.begin();
    const bool own = !wanted.own.empty();
    if (shape_.judged) {  // the caller is to add it
      to_judge_ = room_.given(wanted.tail);
      scanned_copied_ = false;
    } else {
      of_context_ = room_.given(wanted.tail);
      if (own) of_own_ = own_->room.given(wanted.tail);
      if (wanted.tail) sums_ = figures_of(layer);
    }
    unread_ += (own ? 2 : 1) * std::ssize(wanted.allowed) * layout_.scan.lists;
  }

  /// Begins scans over codes, for as many tokens at once as one takes. room: of a session; allowed:
  /// its rows of these codes. What `copied` names goes to the host beside the first.
  static void scan_for(const CudaCodes& codes, std::int64_t layer, std::span<const ScanOf> parts,
                       const ScanRoom& (CudaDecode::*room)() const,
                       std::span<const PositionRange> Scan::*allowed, StepInput copied,
                       cudaStream_t stream) {
    CodeScan scan = codes.scan(layer);
    const auto find = [&] {
      scan.splits = codes.splits(scan.tokens);
      gpu::prepare_queries(scan, copied, stream);
      gpu::list_rows(scan, stream);
      copied = {};
      scan = codes.scan(layer);
    };
    for (const ScanOf& part : parts) {
      const CudaDecode& of = session(part);
      const std::span<const PositionRange> ranges = part.scan.*allowed;
      const std::int64_t tokens = std::ssize(ranges) / of.attention_.kv_heads;
      for (std::int64_t i = 0; i < tokens; ++i) {
        const auto add = [&] {
          return (of.*room)().add_token(codes, layer, part.scan, ranges, i, of.given_.q, scan);
        };
        if (add()) continue;
        find();
        add();
      }
    }
    find();
  }

  /// Beside the scan of the context. What follows on compute_ waits for both.
  void scan_own_rows(std::int64_t layer, const ScanOf& part) {
    begun_.block(own_->stream);
    scan_for(codes_of(own_->codes), layer, {&part, 1}, &CudaDecode::own_room, &Scan::own, {},
             own_->stream);
    own_->done.record(own_->stream);
    own_->done.block(compute_);
  }

  /// What is resident, if that has not begun, beside the scan that follows begun_.
  void begin_beside() {
    if (exact_begun_) return;
    begun_.block(beside_);
    begin_exact(beside_);
    exact_done_.record(beside_);
    beside_begun_ = true;
  }
  /// The same; what follows on compute_ waits for it.
  void attend_resident() {
    begin_beside();
    if (std::exchange(beside_begun_, false)) exact_done_.block(compute_);
  }

  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }
  template <class T>
  T* host(std::int64_t offset) const {
    return reinterpret_cast<T*>(host_.data() + offset);
  }
  DevicePartial exact() const { return {at<float>(layout_.exact), at<float>(layout_.lse)}; }

  void wait_for_turn(std::int64_t place, int turn, Asks asks) {
    progress_.wait_for_turn(*host<int>(place), turn, asks);
  }

  /// In page-locked memory: what was added last.
  DevicePartial found() const { return in_host_memory(layout_.host_found); }
  DevicePartial in_host_memory(std::int64_t offset) const {
    auto* out = host<float>(offset);
    return {out, out + shape_.max_tokens * attention_.q_heads * attention_.head_dim};
  }
  /// The same, of this step's heads.
  PartialView in_memory(std::int64_t offset) const {
    const DevicePartial partial = in_host_memory(offset);
    return {partial.out, partial.lse, queries_.tokens * attention_.q_heads, attention_.head_dim};
  }

  /// A partial of this step to page-locked memory; wait_for_copies waits.
  void copy_out(const DevicePartial& from, std::int64_t to) const {
    const PartialView into = in_memory(to);
    const auto copy = [&](float* out, const float* values, std::int64_t count) {
      TOPKV_CUDA(cudaMemcpyAsync(out, values, static_cast<std::size_t>(count) * sizeof(float),
                                 cudaMemcpyDeviceToHost, compute_));
    };
    copy(into.out, from.out, into.heads * into.head_dim);
    copy(into.lse, from.lse, into.heads);
  }
  /// What scans for a step that is judged give, if there are such.
  void copy_scanned() {
    if (to_judge_.rare.out == nullptr) return;
    copy_out(to_judge_.rare, layout_.host_rare);
    copy_out(to_judge_.estimate, layout_.host_tail);
    const std::int64_t heads = queries_.tokens * attention_.q_heads;
    TOPKV_CUDA(cudaMemcpyAsync(host<TailNoise>(layout_.host_tail_noise), to_judge_.noise,
                               static_cast<std::size_t>(heads) * sizeof(TailNoise),
                               cudaMemcpyDeviceToHost, compute_));
    scanned_copied_ = true;
  }
  void wait_for_copies() {
    staged_.record(compute_);
    staged_.synchronize();
  }

  static constexpr std::size_t figure_bytes = SessionLayout::figures_of_layer * sizeof(double);
  double* figures_of(std::int64_t layer) const {
    return at<double>(layout_.figures) + layer * SessionLayout::figures_of_layer;
  }

  /// Merges the parts of the step.
  void give(const StepParts& parts, float* out, float* lse) {
    inject_copy_delay(compute_);
    give_step(parts, queries_.tokens * attention_.q_heads, attention_.head_dim, out, lse, compute_);
    added_ = false;
  }

  /// What the host wants of a step, and queries as kernels want them.
  StepInput input() const {
    const std::int64_t d = attention_.head_dim;
    StepInput input;
    input.q = given_.q;
    input.k = given_.k;
    input.v = given_.v;
    input.q_count = given_.tokens * attention_.q_heads * d;
    input.kv_count = given_.kv_count() * attention_.kv_heads * d;
    input.host_q = host<float>(layout_.host_q);
    input.host_k = host<float>(layout_.host_k);
    input.host_v = host<float>(layout_.host_v);
    input.queries = at<__nv_bfloat16>(layout_.queries);
    input.begun = host<int>(layout_.host_begun);
    input.taken = host<int>(layout_.host_taken);
    input.turn = turn_;
    return input;
  }

  /// Once a step: what it is given, rows that stay resident, and the attention over these.
  void begin_exact(cudaStream_t stream) {
    if (exact_begun_) return;
    StepInput taken = input();
    if (copied_by_scan_) {
      taken.host_q = nullptr;
    } else {
      inject_copy_delay(stream);
    }
    take_step(taken, stream);
    if (!copied_by_scan_) on_host_.record(stream);
    const std::int64_t rows = given_.kv_count();
    reach_fault("session.keep_rows");
    if (rows > 0) resident_.add(given_.layer, given_.k, given_.v, rows, queries_.first, stream);
    resident_.attend(given_.layer, rows, queries_, sees_, exact(), stream);
    exact_begun_ = true;
  }

  CudaDevice& device_;
  const Stream& compute_;
  SessionShape shape_;
  const AttentionShape& attention_;
  SessionLayout layout_;
  Buffer memory_;
  PinnedBuffer host_;
  ScanRoom room_;  // of scans over the context's codes
  ResidentRows resident_;
  std::unique_ptr<OwnScan> own_;          // null: the session's own rows have no codes
  std::unique_ptr<RowStream> tiles_;      // null: no dense layers
  std::vector<RowsView> views_;           // per KV head
  AttentionStep given_;                   // this step
  PositionRange sees_;                    // of this step
  int turn_ = 0;                          // of this step
  std::atomic<std::int64_t> unread_ = 0;  // lists of scans
  bool copied_by_scan_ = false;           // the host's copies are
  bool exact_begun_ = false;
  bool beside_begun_ = false;            // on beside_, and compute_ does not wait for it yet
  bool added_ = false;                   // a partial waits in page-locked memory
  GivenScan of_context_, of_own_;        // of this step
  GivenScan to_judge_;                   // likewise, instead of these
  bool scanned_copied_ = false;          // what to_judge_ names is in host memory
  double* sums_ = nullptr;               // likewise, where that has a tail; else null
  std::vector<std::int64_t> estimated_;  // heads of each layer, whose figures are summed up
  Stream beside_;                        // for the exact part of a step that scans
  Event begun_;
  Event exact_done_;
  Event on_host_;
  ScanProgress progress_;
  GivenEntries chosen_;  // of this step, when choice_made_
  Event choice_made_;
  Event staged_;              // the last partial has left its place in host memory
  Event handed_over_;         // tensors by the caller's stream, results to it
  AttentionQueries queries_;  // of this step
};

}  // namespace

std::unique_ptr<DecodeBackend> make_decode_backend(CudaDevice& device, const SessionShape& shape) {
  return std::make_unique<CudaDecode>(device, shape);
}

std::int64_t decode_backend_bytes(const SessionShape& shape) {
  return SessionLayout(shape).device_bytes;
}

}  // namespace topkv::gpu
