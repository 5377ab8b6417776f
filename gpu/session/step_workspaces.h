// The workspaces of decode steps, in device memory and in page-locked host memory, with the events
// that order the streams. A session holds a workspace from the begin of a step to its end, and none
// between steps. A device therefore has a workspace for each concurrent step, not for each session.
//
// A workspace passes from one step to the next in the order of the device's compute stream. The
// device writes for a step only after it has finished the step before, of whatever session. A host
// thread writes for a step only after it has waited for that step's queries.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/attention/row_stream.h"
#include "gpu/codes/scan_workspace.h"
#include "gpu/runtime/handles.h"
#include "gpu/session/session_layout.h"
#include "src/device/compute_device.h"

namespace topkv::gpu {

class CudaDevice;

/// The workspace of one step at a time, and its streams and events. It belongs to the session that
/// holds it.
struct StepWorkspace {
  /// shape and layout must outlive it. Throws OutOfMemory, and Error when a CUDA call fails.
  StepWorkspace(CudaDevice& device, const SessionShape& shape, const StepLayout& layout);
  /// Waits for the work on the device.
  ~StepWorkspace();
  StepWorkspace(const StepWorkspace&) = delete;  // other objects hold its address
  StepWorkspace& operator=(const StepWorkspace&) = delete;

  /// Returns the number of the step that begins, which differs from the numbers of earlier steps.
  /// host_begun, host_taken and host_ready receive it. It is never 0.
  int next_turn();

  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(memory.data() + offset);
  }
  template <class T>
  T* host(std::int64_t offset) const {
    return reinterpret_cast<T*>(host_memory.data() + offset);
  }

  const StepLayout& layout;
  const Stream& compute;  // the device's
  Buffer memory;
  PinnedBuffer host_memory;
  ScanWorkspace scan;  // for scans over the context's codes
  int turn = 0;        // the number of the last step
  Stream beside;       // runs the exact part of a step that scans
  Event begun, exact_done, on_host, choice_made;
  Event staged;       // the device has read the last partial from host memory
  Event handed_over;  // orders tensors of the caller's stream, and results for it
};

/// The workspaces of sessions of one shape, which own it together (CudaDevice::step_workspaces). It
/// has two sizes: for one token, and for the most tokens of a step. Safe from many threads, except
/// tiles().
class StepWorkspaces {
 public:
  /// Makes one workspace of each size, and the tiles, so that the steps of one session need no
  /// more. The device must outlive it. Throws OutOfMemory, and Error when a CUDA call fails.
  StepWorkspaces(CudaDevice& device, const SessionShape& shape);

  /// The device memory that the constructor allocates, in bytes. The steps of one session need no
  /// more.
  static std::int64_t bytes(const SessionShape& shape);

  /// Whether a session of this shape can use these workspaces.
  bool suits(const SessionShape& shape) const;

  /// Counts a session. At most as many free workspaces of a size are kept as there are sessions.
  void enter();
  /// Ends a session that enter() counted, and frees the workspaces beyond the limit.
  void leave() noexcept;

  /// Returns a workspace for a step of `tokens` tokens. Throws OutOfMemory, and Error when a CUDA
  /// call fails.
  std::unique_ptr<StepWorkspace> take(std::int64_t tokens);
  /// Returns a workspace for later steps. REQUIRES: all work that was begun there is ordered before
  /// compute_stream, and its lists are empty.
  void give_back(std::unique_ptr<StepWorkspace> workspace) noexcept;
  /// Destroys a workspace instead of giving it back, for a step whose work on the device is
  /// unknown.
  void lose(std::unique_ptr<StepWorkspace> workspace) noexcept;

  /// The layout for the most tokens of a step.
  const StepLayout& layout() const { return layouts_.back(); }
  /// The tiles through which rows of dense layers stream, and rows of layers that attend the rows
  /// of another layer. Null if there is no such layer. The caller
  /// holds the device's lock.
  RowStream* tiles() const { return tiles_.get(); }

 private:
  struct Size {
    std::vector<std::unique_ptr<StepWorkspace>> free;
    std::int64_t made = 0;
  };
  std::size_t size_for(std::int64_t tokens) const { return tokens > layouts_[0].tokens ? 1 : 0; }
  std::unique_ptr<StepWorkspace> make(std::size_t size) const;
  std::unique_ptr<StepWorkspace> one_too_many() noexcept;

  CudaDevice& device_;
  const SessionShape shape_;  // without the context
  const std::array<StepLayout, 2> layouts_;
  const std::int64_t tile_bytes_;
  Buffer tile_memory_;
  std::unique_ptr<RowStream> tiles_;
  std::mutex mutex_;  // guards what follows
  std::array<Size, 2> sizes_;
  std::int64_t sessions_ = 0;
};

}  // namespace topkv::gpu
