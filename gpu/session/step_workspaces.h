// Where steps have what they work on, in device memory and in page-locked memory, with the streams'
// events that order it. A session has such room from the begin of a step to its end; between steps
// it has none, so that there are as many as steps at a time, not as sessions.
//
// Room goes from one step to the next in the order of the device's compute stream: the device comes
// to what a step writes there when it is done with the step before, whose session that ever was,
// and a host thread writes there what its step is to have only when it has waited for that step's
// queries.
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

/// Its holder works with it, one step at a time.
struct StepWorkspace {
  /// shape, layout: outlive it. Throws OutOfMemory, and Error where CUDA fails.
  StepWorkspace(CudaDevice& device, const SessionShape& shape, const StepLayout& layout);
  /// Waits for the device.
  ~StepWorkspace();
  StepWorkspace(const StepWorkspace&) = delete;  // others know where it lies
  StepWorkspace& operator=(const StepWorkspace&) = delete;

  /// Tells a step that begins from those before it, in host_begun and the like: never 0.
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
  ScanWorkspace scan;  // of scans over the context's codes
  int turn = 0;        // of the last step
  Stream beside;       // for the exact part of a step that scans
  Event begun, exact_done, on_host, choice_made;
  Event staged;       // the last partial has left its place in host memory
  Event handed_over;  // tensors by the caller's stream, results to it
};

/// The rooms of a device's sessions that are alike, which own this together
/// (CudaDevice::step_workspaces): of two sizes, for one token and for as many as a step has at
/// most. Safe from many threads, but for tiles().
class StepWorkspaces {
 public:
  /// Has one of each, and tiles, so that the steps of one session find room. Throws as
  /// StepWorkspace does. The device outlives it.
  StepWorkspaces(CudaDevice& device, const SessionShape& shape);

  /// Device memory of what it has then: the most that one session's steps take.
  static std::int64_t bytes(const SessionShape& shape);

  /// Whether a session of this shape works in such rooms.
  bool suits(const SessionShape& shape) const;

  /// Sessions that are there: no more rooms of a size are kept than these.
  void enter();
  void leave() noexcept;

  /// For a step of so many tokens. Throws as StepWorkspace does.
  std::unique_ptr<StepWorkspace> take(std::int64_t tokens);
  /// What was begun there has come to compute_stream, and lists are empty.
  void give_back(std::unique_ptr<StepWorkspace> workspace) noexcept;
  /// Instead, where nobody knows what is still to come.
  void lose(std::unique_ptr<StepWorkspace> workspace) noexcept;

  /// The layout for the most tokens.
  const StepLayout& layout() const { return layouts_.back(); }
  /// Through which rows of dense layers go; null: no layer is dense. For who holds the device's
  /// lock.
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
  const SessionShape shape_;  // without what is the context's
  const std::array<StepLayout, 2> layouts_;
  const std::int64_t tile_bytes_;
  Buffer tile_memory_;
  std::unique_ptr<RowStream> tiles_;
  std::mutex mutex_;  // guards what follows
  std::array<Size, 2> sizes_;
  std::int64_t sessions_ = 0;
};

}  // namespace topkv::gpu
