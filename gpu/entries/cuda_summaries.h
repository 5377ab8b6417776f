// What stands for the keys of a context in a CUDA device's memory, and choices by it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "index/common/stand_ins.h"
#include "src/device/compute_device.h"
#include "src/device/device_selection.h"

namespace topkv::gpu {

class CudaDevice;
class LongWork;

/// Where a session has what is chosen for it, in page-locked memory.
struct ChoiceRoom {
  int* entries = nullptr;     ///< [q_heads, entries]
  float* log_sums = nullptr;  ///< [q_heads]
};

/// After it is made: const members from any thread, choose() by whoever holds the device's lock.
class CudaSummaries final : public DeviceSelection {
 public:
  /// Whether the kernels know this shape and choose among so many entries of each head.
  static bool supports(const AttentionShape& shape, std::int64_t entries,
                       std::int64_t most_candidates);
  /// The contract of ComputeDevice::keep_selection.
  CudaSummaries(CudaDevice& device, const AttentionShape& shape, std::span<const StandIns> heads);
  ~CudaSummaries() override;

  std::int64_t memory() const override { return memory_.bytes(); }
  /// What it would be (ComputeDevice::selection_bytes).
  static std::int64_t bytes(const AttentionShape& shape, const StandIns& head);
  std::int64_t most_entries(std::int64_t layer, std::int64_t k) const override;

  /// As EntryChooser::choose. queries: float32 [q_heads, head_dim]. What is returned lies in the
  /// room once the stream is there. All choices share their memory, in the order of the device's
  /// compute stream, which this is.
  GivenEntries choose(std::int64_t layer, const float* queries, PositionRange allowed,
                      std::int64_t k, const ChoiceRoom& room, cudaStream_t stream) const;

 private:
  struct Layout;
  void place(CudaDevice& device, const LongWork& work, std::int64_t number, const StandIns& head);
  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }

  AttentionShape shape_;
  std::vector<StandIns> layers_;  // of each the head with the most entries, without what is held
  std::unique_ptr<const Layout> layout_;
  Buffer memory_;
};

}  // namespace topkv::gpu
