#include "gpu/session/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "gpu/attention/attention.h"
#include "gpu/attention/step_io.h"
#include "gpu/codes/codes.h"
#include "gpu/codes/scan_progress.h"
#include "gpu/device.h"
#include "gpu/entries/cuda_summaries.h"
#include "gpu/runtime/faults.h"
#include "gpu/session/context_window.h"
#include "gpu/session/resident_rows.h"
#include "gpu/session/step_workspaces.h"
#include "src/core/io/faults.h"
#include "src/device/pieces.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

/// Scans over codes of a session's own rows, beside those of the context.
struct OwnScan {
  OwnScan(CudaDevice& device, const SessionShape& shape, const ScanLayout& layout)
      : memory(device.allocate(layout.device_bytes, "session")),
        host(layout.host_bytes),
        workspace(shape, layout, memory.data(), host.data()) {}

  std::shared_ptr<const DeviceCodes> codes;
  Buffer memory;
  PinnedBuffer host;
  ScanWorkspace workspace;
  Stream stream;
  Event done;
};

class CudaDecode final : public DecodeInputs,
                         public ResidentWindow,
                         public CodeScanner,
                         public EntryChooser,
                         public AsyncScan {
 public:
  CudaDecode(CudaDevice& device, const SessionShape& shape,
             std::shared_ptr<StepWorkspaces> workspaces)
      : CodeScanner(workspaces->layout().scan.lists),
        device_(device),
        compute_(device.compute_stream()),
        shape_(shape),
        attention_(shape_.attention),
        workspaces_(std::move(workspaces)),
        memory_(device.allocate(fixed_bytes(shape), "session")),
        resident_(device, shape, device.context_window(shape),
                  memory_.data() + figures_bytes(shape)),
        estimated_(static_cast<std::size_t>(shape.attention.layers)) {
    TOPKV_CUDA(
        cudaMemsetAsync(memory_.data(), 0, static_cast<std::size_t>(memory_.bytes()), compute_));
    workspaces_->enter();
  }

  ~CudaDecode() override {
    if (own_) cudaStreamSynchronize(own_->stream);
    try {
      leave_step();
    } catch (const std::exception&) {
      workspaces_->lose(std::move(workspace_));
    }
    cudaStreamSynchronize(compute_);
    if (workspaces_->tiles() != nullptr)
      workspaces_->tiles()->wait();  // they read this session's rows
    workspaces_->leave();
  }

  /// Device memory that a session has from its begin to its end.
  static std::int64_t fixed_bytes(const SessionShape& shape) {
    return figures_bytes(shape) + ResidentRows::fixed_bytes(shape);
  }

  void load(std::int64_t first_layer, std::span<const RowSpan> rows) override {
    leave_step();  // of one that failed
    const auto heads = static_cast<std::size_t>(attention_.kv_heads);
    for (std::int64_t layer = first_layer; !rows.empty(); ++layer, rows = rows.subspan(heads)) {
      resident_.reserve(rows[0].first, rows[0].end(), compute_);
      resident_.load(layer, rows.first(heads), compute_);
    }
    compute_.synchronize();  // the copies read the rows until then
  }

  void begin(const AttentionStep& given, std::int64_t first, const PositionRange& sees) override {
    acquire_workspace(given.tokens);
    if (given.kv_count() > 0) resident_.reserve(first, first + given.kv_count(), compute_);
    if (const auto user = static_cast<cudaStream_t>(given.stream); user != nullptr) {
      workspace_->handed_over.record(user);
      workspace_->handed_over.block(compute_);
    }
    given_ = given;
    sees_ = sees;
    step_id_ = workspace_->next_turn();
    added_ = false;
    copied_by_scan_ = false;
    of_context_ = {};
    of_own_ = {};
    to_judge_ = {};
    sums_ = nullptr;
    exact_begun_ = false;
    queries_.data = at<__nv_bfloat16>(layout().queries);
    queries_.tokens = given.tokens;
    queries_.q_heads = attention_.q_heads;
    queries_.kv_heads = attention_.kv_heads;
    queries_.head_dim = attention_.head_dim;
    queries_.first = first;
    queries_.scale = attention_.softmax_scale();
    queries_.softcap = attention_.softcap;
  }

  StepInputs wait_for_inputs() override {
    if (!copied_by_scan_) begin_exact(compute_);
    reach_fault("session.host_copies");
    if (copied_by_scan_) {
      wait_for_turn(layout().host_taken, step_id_, Wait::poll_driver);
    } else {
      workspace_->on_host.synchronize();
    }
    const std::int64_t d = attention_.head_dim;
    const std::int64_t rows = given_.kv_count();
    StepInputs step;
    step.q = host<float>(layout().host_q);
    step.k = TensorView::tokens_first(host<float>(layout().host_k), DType::f32, rows,
                                      attention_.kv_heads, d);
    step.v = TensorView::tokens_first(host<float>(layout().host_v), DType::f32, rows,
                                      attention_.kv_heads, d);
    return step;
  }

  /// What is resident is attended beside it.
  void choose(std::int64_t layer, PositionRange allowed, std::int64_t k) override {
    reach_fault("session.choose");
    workspace_->begun.record(compute_);
    begin_beside();
    inject_choice_delay(compute_);
    const auto& selection = static_cast<const CudaSummaries&>(*shape_.selection);
    chosen_ = selection.choose(
        layer, given_.q, allowed, k,
        {host<int>(layout().host_entries), host<float>(layout().host_log_sums)}, compute_);
    workspace_->choice_made.record(compute_);
  }

  GivenEntries chosen() override {
    reach_fault("session.chosen");
    if (!Faults::drop_choice_waits.load(std::memory_order_relaxed))
      workspace_->choice_made.synchronize();
    return chosen_;
  }

  void scan_own(std::shared_ptr<const DeviceCodes> codes) override {
    if (!own_) own_ = std::make_unique<OwnScan>(device_, shape_, workspaces_->layout().scan);
    compute_.synchronize();
    own_->codes = std::move(codes);
  }

  void scan(std::int64_t layer, std::span<const ScanOf> parts) override {
    reach_fault("session.scan");
    const bool one = parts.size() == 1 && given_.tokens == 1;
    for (const ScanOf& part : parts) {
      CudaDecode& of = session(part);
      of.begin_lists(layer, part.scan);
      of.workspace_->begun.record(compute_);
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
    scan_for(codes_of(shape_.codes), layer, parts, &CudaDecode::context_workspace, &Scan::allowed,
             copied, compute_);
    for (const ScanOf& part : parts) {
      CudaDecode& of = session(part);
      if (!part.scan.own.empty()) of.scan_own_rows(layer, part);
      of.progress_.end(compute_);
    }
  }

  std::int64_t scan_tokens(std::int64_t rows) const override {
    return layout().scan.scan_tokens(rows);
  }

  void drain_list(const List& list, Wait wait, const std::function<void(std::int32_t)>& on_row,
                  const std::function<bool()>& while_waiting) override {
    const ScanWorkspace& workspace = list.own ? own_->workspace : workspace_->scan;
    int* const rows = workspace.list(list);
    progress_.drain_list(rows, workspaces_->layout().scan.list_rows(list.rows), wait, on_row,
                         while_waiting);
    ScanWorkspace::empty(rows);  // by who has it near
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
    workspaces_->tiles()->stream(views_, {0, count}, resident_.stored_keys(layer), compute_,
                                 [&](const DeviceRows& tile) {
                                   gpu::attend(queries_, tile, {}, exact(), Into::merge, compute_);
                                 });
  }

  PartialView partial() override {
    reach_fault("session.exact_part");
    copy_out(exact(), layout().host_exact);
    copy_scanned();
    wait_for_copies();
    return in_memory(layout().host_exact);
  }

  TailParts scanned() override {
    if (!scanned_copied_) {
      copy_scanned();
      wait_for_copies();
    }
    return {in_memory(layout().host_tail), in_memory(layout().host_rare),
            host<TailNoise>(layout().host_tail_noise)};
  }

  int step_id() const override { return step_id_; }

  void wait_for_scan(int id) override { wait_for_turn(layout().host_begun, id, Wait::spin); }

  const float* wait_for_queries(int id) override {
    wait_for_turn(layout().host_taken, id, Wait::spin);
    return host<float>(layout().host_q);
  }

  void publish_partial(int id) override {
    std::atomic_ref(*host<int>(layout().host_ready)).store(id, std::memory_order_release);
  }

  void release_abandoned_waiters() override { progress_.release_abandoned_waiters(); }

  PartialView host_partial_buffer() override { return in_memory(layout().host_found); }

  TailFigures tail_figures(std::int64_t layer) const override {
    double sums[figures_of_layer];
    TOPKV_CUDA(
        cudaMemcpyAsync(sums, figures_of(layer), figure_bytes, cudaMemcpyDeviceToHost, compute_));
    compute_.synchronize();
    return {estimated_[static_cast<std::size_t>(layer)], sums[0], sums[1]};
  }

  void finish(const AttentionStep& given, const HostPartials& partials) override {
    if (partials.found.heads > 0) stage(partials.found);
    if (partials.estimate.heads > 0) stage_tail(partials.estimate, partials.noise);
    finish(given, parts());
    if (unread_ == 0) workspaces_->give_back(std::move(workspace_));
  }

  /// The workspace stays: others still work there, and steps that go ahead mostly follow.
  void finish_async(const AttentionStep& given) override {
    StepParts all = parts();
    all.found = found();
    all.ready = host<int>(layout().host_ready);
    all.turn = step_id_;
    finish(given, all);
  }

 private:
  /// Puts the host's partial where the merge takes it from.
  void stage(PartialView partial) {
    const DevicePartial staged = found();
    if (partial.out != staged.out) {
      std::copy_n(partial.out, partial.heads * partial.head_dim, staged.out);
      std::copy_n(partial.lse, partial.heads, staged.lse);
    }
    added_ = true;
  }

  void stage_tail(PartialView estimate, const TailNoise* noise) {
    of_context_ = {
        {}, in_host_memory(layout().host_estimate), host<TailNoise>(layout().host_noise)};
    sums_ = figures_of(given_.layer);
    std::copy_n(estimate.out, estimate.heads * estimate.head_dim, of_context_.estimate.out);
    std::copy_n(estimate.lse, estimate.heads, of_context_.estimate.lse);
    std::copy_n(noise, estimate.heads, host<TailNoise>(layout().host_noise));
  }

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
      workspace_->handed_over.record(compute_);
      workspace_->handed_over.block(user);
    }
  }

  static CudaDecode& session(const ScanOf& part) { return static_cast<CudaDecode&>(*part.scanner); }
  static const CudaCodes& codes_of(const std::shared_ptr<const DeviceCodes>& codes) {
    return static_cast<const CudaCodes&>(*codes);
  }
  const ScanWorkspace& context_workspace() const { return workspace_->scan; }
  const ScanWorkspace& own_workspace() const { return own_->workspace; }

  /// What scans of this session's tokens are to give is a part of the step.
  void begin_lists(std::int64_t layer, const Scan& wanted) {
    progress_.begin();
    const bool own = !wanted.own.empty();
    if (shape_.has_row_rules) {  // the caller is to add it
      to_judge_ = workspace_->scan.given(wanted.tail);
      scanned_copied_ = false;
    } else {
      of_context_ = workspace_->scan.given(wanted.tail);
      if (own) of_own_ = own_->workspace.given(wanted.tail);
      if (wanted.tail) sums_ = figures_of(layer);
    }
    unread_ += (own ? 2 : 1) * std::ssize(wanted.allowed) * workspaces_->layout().scan.lists;
  }

  /// Begins scans over codes, for as many tokens at once as one takes. workspace: of a session;
  /// allowed: its rows of these codes. What `copied` names goes to the host beside the first.
  static void scan_for(const CudaCodes& codes, std::int64_t layer, std::span<const ScanOf> parts,
                       const ScanWorkspace& (CudaDecode::*workspace)() const,
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
          return (of.*workspace)().add_token(codes, layer, part.scan, ranges, i, of.given_.q, scan);
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
    workspace_->begun.block(own_->stream);
    scan_for(codes_of(own_->codes), layer, {&part, 1}, &CudaDecode::own_workspace, &Scan::own, {},
             own_->stream);
    own_->done.record(own_->stream);
    own_->done.block(compute_);
  }

  /// What is resident, if that has not begun, beside the scan that follows `begun`.
  void begin_beside() {
    if (exact_begun_) return;
    workspace_->begun.block(workspace_->beside);
    begin_exact(workspace_->beside);
    workspace_->exact_done.record(workspace_->beside);
    beside_begun_ = true;
  }
  /// The same; what follows on compute_ waits for it.
  void attend_resident() {
    begin_beside();
    if (std::exchange(beside_begun_, false)) workspace_->exact_done.block(compute_);
  }

  /// Of the workspace of this step.
  const StepLayout& layout() const { return workspace_->layout; }
  template <class T>
  T* at(std::int64_t offset) const {
    return workspace_->at<T>(offset);
  }
  template <class T>
  T* host(std::int64_t offset) const {
    return workspace_->host<T>(offset);
  }

  /// A workspace for a step of so many tokens. That of a step that went ahead is left for a larger
  /// one when all its lists have been read.
  void acquire_workspace(std::int64_t tokens) {
    if (workspace_ && workspace_->layout.tokens < tokens) {
      if (unread_ > 0) leave_step();
      if (workspace_) workspaces_->give_back(std::move(workspace_));
    }
    if (!workspace_) workspace_ = workspaces_->take(tokens);
  }

  /// Gives back the workspace of a step that has failed, or has gone ahead, when all that was begun
  /// is done. Throws where that cannot be known.
  void leave_step() {
    if (!workspace_) return;
    workspace_->beside.synchronize();
    compute_.synchronize();
    if (own_) own_->stream.synchronize();
    if (unread_ > 0) {
      workspace_->scan.empty_all();
      if (own_) own_->workspace.empty_all();
      unread_ = 0;
    }
    workspaces_->give_back(std::move(workspace_));
  }
  DevicePartial exact() const { return {at<float>(layout().exact), at<float>(layout().lse)}; }

  void wait_for_turn(std::int64_t place, int turn, Wait wait) {
    progress_.wait_for_turn(*host<int>(place), turn, wait);
  }

  /// In page-locked memory: what was added last.
  DevicePartial found() const { return in_host_memory(layout().host_found); }
  DevicePartial in_host_memory(std::int64_t offset) const {
    auto* out = host<float>(offset);
    return {out, out + layout().tokens * attention_.q_heads * attention_.head_dim};
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
    copy_out(to_judge_.rare, layout().host_rare);
    copy_out(to_judge_.estimate, layout().host_tail);
    const std::int64_t heads = queries_.tokens * attention_.q_heads;
    TOPKV_CUDA(cudaMemcpyAsync(host<TailNoise>(layout().host_tail_noise), to_judge_.noise,
                               static_cast<std::size_t>(heads) * sizeof(TailNoise),
                               cudaMemcpyDeviceToHost, compute_));
    scanned_copied_ = true;
  }
  void wait_for_copies() {
    workspace_->staged.record(compute_);
    workspace_->staged.synchronize();
  }

  static constexpr std::int64_t figures_of_layer = 2;  // exact_mass, error
  static constexpr std::size_t figure_bytes = figures_of_layer * sizeof(double);
  static std::int64_t figures_bytes(const SessionShape& shape) {
    return Pieces::rounded(shape.attention.layers * std::int64_t{figure_bytes});
  }
  double* figures_of(std::int64_t layer) const {
    return reinterpret_cast<double*>(memory_.data()) + layer * figures_of_layer;
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
    input.host_q = host<float>(layout().host_q);
    input.host_k = host<float>(layout().host_k);
    input.host_v = host<float>(layout().host_v);
    input.queries = at<__nv_bfloat16>(layout().queries);
    input.begun = host<int>(layout().host_begun);
    input.taken = host<int>(layout().host_taken);
    input.turn = step_id_;
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
    if (!copied_by_scan_) workspace_->on_host.record(stream);
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
  std::shared_ptr<StepWorkspaces> workspaces_;
  std::unique_ptr<StepWorkspace> workspace_;  // of this step, and of those that have gone ahead
  Buffer memory_;                             // figures, and what resident_ has
  ResidentRows resident_;
  std::unique_ptr<OwnScan> own_;          // null: the session's own rows have no codes
  std::vector<RowsView> views_;           // per KV head
  AttentionStep given_;                   // this step
  PositionRange sees_;                    // of this step
  int step_id_ = 0;                       // of this step, in its workspace
  std::atomic<std::int64_t> unread_ = 0;  // lists of scans
  bool copied_by_scan_ = false;           // the host's copies are
  bool exact_begun_ = false;
  bool beside_begun_ = false;            // on beside, and compute_ does not wait for it yet
  bool added_ = false;                   // a partial waits in page-locked memory
  GivenScan of_context_, of_own_;        // of this step
  GivenScan to_judge_;                   // likewise, instead of these
  bool scanned_copied_ = false;          // what to_judge_ names is in host memory
  double* sums_ = nullptr;               // likewise, where that has a tail; else null
  std::vector<std::int64_t> estimated_;  // heads of each layer, whose figures are summed up
  ScanProgress progress_;
  GivenEntries chosen_;       // of this step, when choice_made
  AttentionQueries queries_;  // of this step
};

}  // namespace

DecodeBackend make_decode_backend(CudaDevice& device, const SessionShape& shape) {
  if (!attention_supports(shape.attention.head_dim)) {
    throw Unsupported(fmt::format("head_dim {} on a CUDA device; known are 64, 80, 96, 128, 256",
                                  shape.attention.head_dim));
  }
  const auto decode = std::make_shared<CudaDecode>(device, shape, device.step_workspaces(shape));
  return {.owner = decode,
          .inputs = decode.get(),
          .window = decode.get(),
          .scanner = shape.codes ? decode.get() : nullptr,
          .chooser = shape.selection ? decode.get() : nullptr,
          .async = shape.codes ? decode.get() : nullptr};
}

std::int64_t decode_backend_bytes(const SessionShape& shape) {
  std::int64_t bytes = StepWorkspaces::bytes(shape);
  for (const std::int64_t part : {ContextWindow::bytes(shape), CudaDecode::fixed_bytes(shape),
                                  ResidentRows::most_bytes(shape)})
    bytes += Arena::most_counted(part);
  return bytes;
}

}  // namespace topkv::gpu
