#include "topkv/device.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "src/device/compute_device.h"
#include "topkv/error.h"

namespace topkv {

Device::Device() : compute_(host_device()) {}
Device::Device(std::shared_ptr<ComputeDevice> compute) : compute_(std::move(compute)) {}

Device Device::open(std::string_view spec, std::int64_t memory_ceiling) {
  if (memory_ceiling < 0) {
    throw InvalidArgument(
        fmt::format("a ceiling of {} bytes of device memory; expected 0 or more", memory_ceiling));
  }
  if (spec == "cpu") return {};
  if (spec == "auto") return gpu_count() > 0 ? Device(open_gpu(0, memory_ceiling)) : Device();
  int number = 0;
  bool known = spec == "cuda";
  if (spec.starts_with("cuda:")) {
    const std::string_view digits = spec.substr(5);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    known = error == std::errc() && end == digits.data() + digits.size() && number >= 0;
  }
  if (!known) {
    throw InvalidArgument(
        fmt::format("device '{}' is not understood; expected auto, cpu, cuda or cuda:N", spec));
  }
  return Device(open_gpu(number, memory_ceiling));
}

bool Device::is_cuda() const { return compute_->is_cuda(); }
std::string Device::name() const { return compute_->name(); }
DeviceMemory Device::memory() const { return compute_->memory(); }

}  // namespace topkv
