// Rows of a context in device memory, as they are stored.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/codes/code_scan.h"
#include "src/device/compute_device.h"
#include "src/device/row_copy.h"
#include "src/store/row_store.h"

namespace topkv::gpu {

class CudaDevice;

/// Implements ComputeDevice::copy_rows. Its sessions own it together. Safe from many threads.
class CudaRowCopy final : public RowCopy {
 public:
  /// Copies the rows of the first layers that `layers` names, in pieces (long_work.h). The caller
  /// does not hold the device's lock. Throws OutOfMemory, and Error when a copy fails.
  CudaRowCopy(CudaDevice& device, const AttentionShape& shape,
              std::shared_ptr<const RowStore> store, const std::vector<std::int64_t>& layers);

  bool has(std::int64_t layer) const override { return place(layer) >= 0; }
  std::int64_t memory() const override { return memory_.bytes(); }

  /// Whether it has the rows of exactly these layers of this store.
  bool suits(const RowStore& store, const std::vector<std::int64_t>& layers) const {
    return store_.get() == &store && layers_ == layers;
  }
  /// The rows of a layer. REQUIRES: has(layer).
  ListedRows rows(std::int64_t layer) const;

 private:
  /// The number of the layer's rows among those that are there; -1: they are not.
  std::int64_t place(std::int64_t layer) const;

  AttentionShape shape_;
  std::shared_ptr<const RowStore> store_;
  std::vector<std::int64_t> layers_;              // with rows of their own, ascending
  std::int64_t key_bytes_ = 0, value_bytes_ = 0;  // of one row
  std::int64_t array_bytes_ = 0;                  // of all keys, then all values, of one KV head
  Buffer memory_;                                 // [layers_, kv_heads]: keys, then values
};

/// The layers whose rows fit in `budget` bytes: the first ones of `layers`.
std::vector<std::int64_t> layers_that_fit(const RowStore& store, const AttentionShape& shape,
                                          std::span<const std::int64_t> layers,
                                          std::int64_t budget);

}  // namespace topkv::gpu
