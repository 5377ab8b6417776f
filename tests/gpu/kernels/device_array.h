// An array in device memory for tests: filled from the host, at any alignment, between guards that
// show writes beyond its ends.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gpu/runtime/handles.h"

namespace topkv::gpu {

template <class T>
class DeviceArray {
 public:
  /// skew: elements from a 256-byte boundary to the array's start.
  explicit DeviceArray(const std::vector<T>& values, std::int64_t skew = 0)
      : DeviceArray(static_cast<std::int64_t>(values.size()), skew) {
    TOPKV_CUDA(
        cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    TOPKV_CUDA(cudaDeviceSynchronize());
  }
  /// Every byte is `pattern`.
  explicit DeviceArray(std::int64_t count, std::int64_t skew = 0) : count_(count), skew_(skew) {
    TOPKV_CUDA(cudaMalloc(reinterpret_cast<void**>(&memory_), bytes()));
    TOPKV_CUDA(cudaMemset(memory_, pattern, bytes()));
    TOPKV_CUDA(cudaDeviceSynchronize());  // streams of ours do not wait for this one
  }
  ~DeviceArray() { cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;  // owns its memory
  DeviceArray& operator=(const DeviceArray&) = delete;

  static constexpr int pattern = 0xa5;

  T* data() const { return reinterpret_cast<T*>(memory_ + guard) + skew_; }

  /// The array, after all work of the device. Fails the test when a guard was written to.
  std::vector<T> read() const {
    TOPKV_CUDA(cudaDeviceSynchronize());
    std::vector<std::byte> all(bytes());
    TOPKV_CUDA(cudaMemcpy(all.data(), memory_, bytes(), cudaMemcpyDeviceToHost));
    const std::size_t begin = guard + static_cast<std::size_t>(skew_) * sizeof(T);
    const std::size_t end = begin + static_cast<std::size_t>(count_) * sizeof(T);
    std::size_t touched = 0;
    for (std::size_t i = 0; i < all.size(); ++i)
      touched += (i < begin || i >= end) && all[i] != std::byte{pattern};
    EXPECT_EQ(touched, 0U) << "bytes written outside of an array of " << count_ << " elements";
    std::vector<T> values(static_cast<std::size_t>(count_));
    std::memcpy(values.data(), all.data() + begin, end - begin);
    return values;
  }

 private:
  static constexpr std::size_t guard = 256;
  std::size_t bytes() const {
    return 2 * guard + static_cast<std::size_t>(count_ + skew_) * sizeof(T);
  }

  std::int64_t count_;
  std::int64_t skew_;
  std::byte* memory_ = nullptr;
};

}  // namespace topkv::gpu
