// Scans over codes for the steps of a session on a CUDA device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "gpu/codes/codes.h"
#include "gpu/session/step.h"
#include "gpu/session/window.h"
#include "src/device/code_scanner.h"

namespace topkv::gpu {

/// Enqueues scans, and hands out their lists and partials.
class CudaScanner final : public CodeScanner {
 public:
  CudaScanner(CudaStep& step, CudaWindow& window)
      : CodeScanner(step.workspaces->layout().scan.lists), step_(step), window_(window) {}

  void scan(std::int64_t layer, std::span<const Scan> parts) override;
  std::int64_t scan_tokens(std::int64_t rows) const override;
  bool attends_found(std::int64_t layer, std::int64_t rows) const override;
  void scan_own(std::shared_ptr<const DeviceIndex> codes) override;
  TailParts scanned() override;
  void drain_list(const List& list, Wait wait, ArrivingRows& rows) override;

 private:
  void begin_lists(std::int64_t layer, const Scan& wanted);
  void scan_own_rows(std::int64_t layer, const Scan& part);
  static void scan_for(const CudaCodes& codes, std::int64_t layer, std::span<const Scan> parts,
                       bool own, StepInput copied, cudaStream_t stream);

  CudaStep& step_;
  CudaWindow& window_;
  TailParts to_judge_;   // with SessionShape::has_row_rules: the partials of the last scan
  bool copied_ = false;  // they are in host memory
};

}  // namespace topkv::gpu
