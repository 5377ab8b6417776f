// The current step of one session on a CUDA device: its inputs, the memory that it works in,
// and the partials that its parts have made so far.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "gpu/attention/attention.h"
#include "gpu/attention/step_io.h"
#include "gpu/codes/scan_progress.h"
#include "gpu/codes/scan_workspace.h"
#include "gpu/runtime/handles.h"
#include "gpu/session/step_workspaces.h"
#include "src/device/compute_device.h"
#include "src/device/device_index.h"
#include "src/device/session_shape.h"
#include "topkv/attention.h"

namespace topkv::gpu {

class ContextWindow;
class CudaDevice;

/// Scans over codes of a session's own rows, beside the scans of the context.
struct OwnScan {
  OwnScan(CudaDevice& device, const SessionShape& shape, const ScanLayout& layout);

  std::shared_ptr<const DeviceIndex> codes;
  Buffer memory;
  PinnedBuffer host;
  ScanWorkspace workspace;
  Stream stream;
  Event done;
};

/// The state that the parts of a session's backend share. One thread at a time. Threads that attend
/// lists only read `workspace`, `own` and places in page-locked memory, and use `progress` and
/// `lists_unread`.
struct CudaStep {
  /// The owner sets `figures` to figures_bytes of zeroed device memory.
  CudaStep(CudaDevice& device, const SessionShape& shape,
           std::shared_ptr<StepWorkspaces> workspaces);

  /// Takes a workspace for a step, and forgets the partials of the step before. Throws OutOfMemory
  /// as StepWorkspaces::take does.
  void begin(const AttentionStep& step, std::int64_t first, const ChunkPasses& met);
  /// Gives back the workspace of a step that has failed, or has gone ahead, when all work that was
  /// begun is done. Throws if that cannot be known.
  void leave();
  /// Waits for all work of the session. To be called before the memory of its parts goes.
  void close() noexcept;

  /// Returns the layout of this step's workspace, and places in it: in the device's memory, and in
  /// page-locked memory.
  const StepLayout& layout() const { return workspace->layout; }
  template <class T>
  T* at(std::int64_t offset) const {
    return workspace->at<T>(offset);
  }
  template <class T>
  T* host(std::int64_t offset) const {
    return workspace->host<T>(offset);
  }
  /// Returns the partial over the rows that are attended in any case, in the device's memory.
  PartialView exact() const {
    return {at<float>(layout().exact), at<float>(layout().lse), heads(), queries.head_dim};
  }
  /// Returns the place of the host's partial, in page-locked memory.
  PartialView found() const { return in_memory(layout().host_found); }
  /// Returns a partial in page-locked memory, of this step's heads.
  PartialView in_memory(std::int64_t offset) const;
  /// Returns the queries of a pass, by number.
  QueryView<__nv_bfloat16> queries_of(std::int64_t pass) const;
  /// Returns the number of query heads of all tokens.
  std::int64_t heads() const { return queries.tokens * attention.q_heads; }

  /// Begins to copy a partial of this step to page-locked memory; wait_for_copies waits.
  void copy_out(const PartialView& from, std::int64_t to) const;
  void wait_for_copies();
  /// Waits until the device comes to a step's number at a place in page-locked memory.
  void wait_for_turn(std::int64_t place, int turn, ScanProgress::Wait wait) {
    progress.wait_for_turn(*host<int>(place), turn, wait);
  }

  /// Returns the values that the host wants of a step, and the queries as kernels want them.
  StepInput input() const;

  /// Returns a layer's rows in device memory, and where those that are attended are counted.
  ListedRows rows_to_attend(std::int64_t layer) const;

  static std::int64_t figures_bytes(const SessionShape& shape);
  /// Returns a layer's sums: of a tail's figures exact_mass and error, then the rows that the
  /// device has attended of those that scans found, over KV heads.
  double* figures_of(std::int64_t layer) const { return figures + layer * figures_of_layer; }
  static constexpr std::int64_t figures_of_layer = 3;
  static constexpr std::int64_t rows_figure = 2;  // the last one's number

  CudaDevice& device;
  const Stream& compute;
  const SessionShape shape;
  const AttentionShape& attention;
  std::shared_ptr<StepWorkspaces> workspaces;
  std::unique_ptr<StepWorkspace> workspace;  // of this step, and of steps that have gone ahead
  std::shared_ptr<const ContextWindow> context_window;  // whose keys' channels and bias it knows
  std::unique_ptr<OwnScan> own;  // null: the session's own rows have no codes
  double* figures = nullptr;
  ScanProgress progress;
  std::atomic<std::int64_t> lists_unread = 0;

  // Of this step.
  AttentionStep given;
  ChunkPasses passes;
  LayerHeads layer_heads;
  QueryView<__nv_bfloat16> queries;  // of the first pass
  int id = 0;                        // in its workspace
  bool copied_by_scan = false;       // the scan gives the host its copies
  TailParts of_context, of_own;      // partials of scans, or of the host's tail
  PartialView listed;                // over rows that a scan found and the device attends
  double* sums = nullptr;            // where the figures of a tail are summed up; null: no tail
};

}  // namespace topkv::gpu
