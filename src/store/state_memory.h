// Where the recurrent state of one layer lies.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace topkv {

/// A recurrent state in host memory, or in the memory of a device. It is written once, by the step
/// that makes it, and then read by any number of texts: forks share it.
class StateMemory {
 public:
  StateMemory() = default;
  virtual ~StateMemory() = default;
  StateMemory(const StateMemory&) = delete;  // shared
  StateMemory& operator=(const StateMemory&) = delete;

  virtual bool on_host() const = 0;
  /// Returns the values, in the memory that they are in.
  virtual float* data() = 0;
  virtual const float* data() const = 0;
  /// Copies all values to host memory. Waits for the step that makes them.
  virtual void read(std::span<float> values) const = 0;
};

class HostState final : public StateMemory {
 public:
  explicit HostState(std::int64_t size) : values_(static_cast<std::size_t>(size)) {}

  bool on_host() const override { return true; }
  float* data() override { return values_.data(); }
  const float* data() const override { return values_.data(); }
  void read(std::span<float> values) const override;
  std::vector<float>& values() { return values_; }

 private:
  std::vector<float> values_;
};

}  // namespace topkv
