// Window and sinks of a session on a CUDA device, or all rows of a dense layer.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/session/resident_rows.h"
#include "gpu/session/step.h"
#include "src/device/resident_window.h"

namespace topkv::gpu {

/// Attends the rows that stay in device memory. In dense layers the rows before them are streamed
/// from host memory. If a layer attends the rows of another layer and has fallen behind that layer,
/// its own rows are streamed too.
class CudaWindow final : public ResidentWindow {
 public:
  /// memory: ResidentRows::fixed_bytes of device memory.
  CudaWindow(CudaStep& step, std::byte* memory);

  void load(std::int64_t first_layer, std::span<const RowSpan> rows) override;
  void attend(std::int64_t layer, std::span<const RowSpan> rows) override;
  PartialView partial() override;
  void reserve(std::int64_t begin, std::int64_t end) override;
  void add(const AttentionStep& step, std::int64_t first) override;

  /// A step begins: makes room for its rows. Throws OutOfMemory.
  void begin_step();
  /// Returns whether the step's rows are on their way.
  bool begun() const { return begun_; }
  /// Once a step: copies q, k and v to the host unless a scan does, keeps the step's rows, and
  /// attends the resident rows.
  void begin(cudaStream_t stream);
  /// Begins, unless it has begun, beside the work that follows StepWorkspace::begun.
  void begin_beside();

 private:
  /// Merges attention over the rows at some positions, which stream from host memory. rows: one
  /// span for each KV head.
  void stream(std::int64_t layer, std::span<const RowSpan> rows, const PositionRange& positions,
              const DeviceVisibility& visible);

  CudaStep& step_;
  ResidentRows resident_;
  bool begun_ = false;
  bool behind_ = false;  // the memory no longer has all own rows of the step's window
  bool beside_ = false;  // begun beside, and the compute stream does not wait for it yet
};

}  // namespace topkv::gpu
