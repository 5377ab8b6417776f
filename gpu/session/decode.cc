#include "gpu/session/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "gpu/runtime/faults.h"
#include "gpu/session/chooser.h"
#include "gpu/session/context_window.h"
#include "gpu/session/scanner.h"
#include "gpu/session/step.h"
#include "gpu/session/window.h"
#include "src/core/io/faults.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

/// The frame of a session's steps, and the owner of their parts.
class CudaDecode final : public DecodeInputs, public AsyncScan {
 public:
  CudaDecode(CudaDevice& device, const SessionShape& shape,
             std::shared_ptr<StepWorkspaces> workspaces)
      : memory_(device.allocate(fixed_bytes(shape), "session")),
        step_(device, shape, std::move(workspaces)),
        window_(step_, memory_.data() + CudaStep::figures_bytes(shape)),
        scanner_(step_, window_),
        chooser_(step_, window_),
        estimated_(static_cast<std::size_t>(shape.attention.layers)) {
    TOPKV_CUDA(cudaMemsetAsync(memory_.data(), 0, static_cast<std::size_t>(memory_.bytes()),
                               step_.compute));
    step_.figures = reinterpret_cast<double*>(memory_.data());
    step_.workspaces->enter();
  }
  ~CudaDecode() override { step_.close(); }
  CudaDecode(const CudaDecode&) = delete;  // its parts point to each other
  CudaDecode& operator=(const CudaDecode&) = delete;

  /// Returns the device memory that a session has from its begin to its end.
  static std::int64_t fixed_bytes(const SessionShape& shape) {
    return CudaStep::figures_bytes(shape) + ResidentRows::fixed_bytes(shape);
  }

  ResidentWindow& window() { return window_; }
  CodeScanner& scanner() { return scanner_; }
  EntryChooser& chooser() { return chooser_; }

  void begin(const AttentionStep& given, std::int64_t first, const ChunkPasses& passes) override {
    step_.begin(given, first, passes);
    window_.begin_step();
    if (const auto user = static_cast<cudaStream_t>(given.stream); user != nullptr) {
      step_.workspace->handed_over.record(user);
      step_.workspace->handed_over.block(step_.compute);
    }
    step_.id = step_.workspace->next_turn();
  }

  AttentionStep wait_for_inputs() override {
    if (!step_.copied_by_scan) window_.begin(step_.compute);
    reach_fault("session.host_copies");
    const StepLayout& layout = step_.layout();
    if (step_.copied_by_scan) {
      step_.wait_for_turn(layout.host_taken, step_.id, ScanProgress::Wait::poll_driver);
    } else {
      step_.workspace->on_host.synchronize();
    }
    AttentionStep step = step_.given;
    step.q = step_.host<float>(layout.host_q);
    step.k = step_.host<float>(layout.host_k);
    step.v = step_.attention.keys_are_values ? nullptr : step_.host<float>(layout.host_v);
    return step;
  }

  PartialView host_partial_buffer() override { return step_.found(); }

  void finish(const AttentionStep& given, const TailParts& host) override {
    StepParts all = parts();
    if (host.exact.heads > 0) {
      all.found = step_.found();
      if (host.exact.out != all.found.out) copy(host.exact, all.found);
    }
    if (host.estimate.heads > 0) {
      all.of_context = {.estimate = step_.in_memory(step_.layout().host_estimate),
                        .noise = step_.host<TailNoise>(step_.layout().host_noise)};
      copy(host.estimate, all.of_context.estimate);
      std::copy_n(host.noise, host.estimate.heads, all.of_context.noise);
      all.sums = step_.figures_of(given.layer);
    }
    finish(given, all);
    if (step_.lists_unread == 0) step_.workspaces->give_back(std::move(step_.workspace));
  }

  TailFigures tail_figures(std::int64_t layer) const override {
    double sums[CudaStep::figures_of_layer];
    TOPKV_CUDA(cudaMemcpyAsync(sums, step_.figures_of(layer), sizeof(sums), cudaMemcpyDeviceToHost,
                               step_.compute));
    step_.compute.synchronize();
    return {estimated_[static_cast<std::size_t>(layer)], sums[0], sums[1]};
  }

  int step_id() const override { return step_.id; }

  void wait_for_scan(int id) override {
    step_.wait_for_turn(step_.layout().host_begun, id, ScanProgress::Wait::spin);
  }

  const float* wait_for_queries(int id) override {
    step_.wait_for_turn(step_.layout().host_taken, id, ScanProgress::Wait::spin);
    return step_.host<float>(step_.layout().host_q);
  }

  void publish_partial(int id) override {
    std::atomic_ref(*step_.host<int>(step_.layout().host_ready))
        .store(id, std::memory_order_release);
  }

  /// The workspace stays: other threads still work there, and steps that go ahead mostly follow.
  void finish_async(const AttentionStep& given, bool host_attends) override {
    StepParts all = parts();
    if (host_attends) {
      all.found = step_.found();
      all.ready = step_.host<int>(step_.layout().host_ready);
      all.turn = step_.id;
    }
    finish(given, all);
  }

  std::int64_t rows_attended() const override {
    const std::int64_t layers = step_.attention.layers;
    std::vector<double> sums(static_cast<std::size_t>(layers * CudaStep::figures_of_layer));
    TOPKV_CUDA(cudaMemcpyAsync(sums.data(), step_.figures, sums.size() * sizeof(double),
                               cudaMemcpyDeviceToHost, step_.compute));
    step_.compute.synchronize();
    double rows = 0;
    for (std::int64_t l = 0; l < layers; ++l)
      rows +=
          sums[static_cast<std::size_t>(l * CudaStep::figures_of_layer + CudaStep::rows_figure)];
    return static_cast<std::int64_t>(rows);
  }

  void release_abandoned_waiters() override { step_.progress.release_abandoned_waiters(); }

 private:
  static void copy(const PartialView& from, const PartialView& to) {
    std::copy_n(from.out, from.heads * from.head_dim, to.out);
    std::copy_n(from.lse, from.heads, to.lse);
  }

  /// Returns the device's partials of this step.
  StepParts parts() const {
    StepParts all;
    all.exact = step_.exact();
    all.of_context = step_.of_context;
    all.of_own = step_.of_own;
    all.listed = step_.listed;
    all.sums = step_.sums;
    return all;
  }

  void finish(const AttentionStep& given, const StepParts& all) {
    inject_copy_delay(step_.compute);
    give_step(all, {given.out, given.lse, step_.heads(), step_.queries.head_dim}, step_.compute);
    if (all.sums != nullptr)
      estimated_[static_cast<std::size_t>(given.layer)] += given.tokens * step_.attention.q_heads;
    if (const auto user = static_cast<cudaStream_t>(given.stream); user != nullptr) {
      step_.workspace->handed_over.record(step_.compute);
      step_.workspace->handed_over.block(user);
    }
  }

  Buffer memory_;  // figures, and the memory of the window
  CudaStep step_;
  CudaWindow window_;
  CudaScanner scanner_;
  CudaChooser chooser_;
  std::vector<std::int64_t> estimated_;  // heads of each layer, whose figures are summed up
};

}  // namespace

DecodeBackend make_decode_backend(CudaDevice& device, const SessionShape& shape) {
  check_supported(shape.attention);
  const auto decode = std::make_shared<CudaDecode>(device, shape, device.step_workspaces(shape));
  return {.owner = decode,
          .inputs = decode.get(),
          .window = &decode->window(),
          .scanner = shape.scans() ? &decode->scanner() : nullptr,
          .chooser = shape.chooses() ? &decode->chooser() : nullptr,
          .async = shape.scans() ? decode.get() : nullptr};
}

std::int64_t decode_backend_bytes(const SessionShape& shape) {
  std::int64_t bytes = StepWorkspaces::bytes(shape);
  for (const std::int64_t part : {ContextWindow::bytes(shape), CudaDecode::fixed_bytes(shape),
                                  ResidentRows::most_bytes(shape)})
    bytes += Arena::most_counted(part);
  return bytes;
}

}  // namespace topkv::gpu
