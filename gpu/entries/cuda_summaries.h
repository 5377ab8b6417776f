// The key summaries of a context in the memory of a CUDA device, and the choice of entries by them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "index/common/key_summaries.h"
#include "src/device/compute_device.h"
#include "src/device/device_index.h"

namespace topkv::gpu {

class CudaDevice;
class LongWork;

/// The result of a choice for a session, in page-locked memory.
struct ChoiceOutput {
  int* entries = nullptr;     ///< [q_heads, entries of a head]
  float* log_sums = nullptr;  ///< [q_heads]
};

/// Immutable after construction. Const members are safe from many threads, except choose(), which
/// the holder of the device's lock calls.
class CudaSummaries final : public DeviceIndex {
 public:
  /// Whether the kernels support this shape and can choose among `entries` entries of a head.
  static bool supports(const AttentionShape& shape, std::int64_t entries,
                       std::int64_t most_candidates);
  /// Implements ComputeDevice::keep_selection.
  CudaSummaries(CudaDevice& device, const AttentionShape& shape,
                std::span<const KeySummaries> heads);
  ~CudaSummaries() override;

  bool has_codes() const override { return false; }
  std::int64_t memory() const override { return memory_.bytes(); }
  /// The device memory of such summaries, in bytes (ComputeDevice::selection_bytes).
  static std::int64_t bytes(const AttentionShape& shape, const KeySummaries& head);
  std::int64_t most_entries(std::int64_t layer, std::int64_t k) const override;

  /// Implements EntryChooser::choose. queries: float32 [q_heads, head_dim]; stream: the device's
  /// compute stream. The result points into `output`, which is complete once the stream reaches
  /// this point. All choices share scratch memory, and run in the order of the stream.
  CandidateEntries choose(std::int64_t layer, const float* queries, PositionRange allowed,
                          std::int64_t k, const ChoiceOutput& output, cudaStream_t stream) const;

 private:
  struct Layout;
  void place(CudaDevice& device, const LongWork& work, std::int64_t number,
             const KeySummaries& head);
  /// Returns the layer whose summaries a layer chooses by.
  std::size_t own_layer(std::int64_t layer) const {
    return static_cast<std::size_t>(shape_.row_layer_of(layer));
  }
  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }

  AttentionShape shape_;
  std::vector<KeySummaries>
      layers_;  // for each layer, the summaries of the head with the most entries, without data
  std::unique_ptr<const Layout> layout_;
  Buffer memory_;
};

}  // namespace topkv::gpu
