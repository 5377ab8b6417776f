// Which CUDA devices there are, and the one shared handle of each that is open.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "gpu/device.h"
#include "gpu/runtime/driver_memory.h"
#include "gpu/runtime/handles.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr int least_major = 8;  // Ampere: bf16 tensor cores and asynchronous copies

std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// Devices that CUDA sees. reason: why there are none.
int device_count(std::string& reason) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    cudaGetLastError();
    reason = "no NVIDIA driver was found; install it, or compute on the host (--device cpu)";
    return 0;
  }
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  if (status == cudaErrorInsufficientDriver) {
    reason = fmt::format(
        "the NVIDIA driver is too old: it knows CUDA {}, and this topkv needs {}; update it",
        cuda_version(driver), cuda_version(CUDART_VERSION));
  } else if (status == cudaSuccess || status == cudaErrorNoDevice) {
    reason = "there is an NVIDIA driver but no device; is CUDA_VISIBLE_DEVICES set?";
  } else {
    reason = fmt::format("CUDA does not start: {} ({})", cudaGetErrorString(status),
                         cudaGetErrorName(status));
  }
  return 0;
}

/// Why the device cannot be used; empty when it can. Makes no context.
std::string unusable(int number) {
  int major = 0;
  int minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, number) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, number) != cudaSuccess) {
    return fmt::format("cuda:{} does not answer: {}", number,
                       cudaGetErrorString(cudaGetLastError()));
  }
  if (major >= least_major) return {};
  return fmt::format("cuda:{} has compute capability {}.{}, and topkv needs {}.0 or later", number,
                     major, minor, least_major);
}

struct Open {
  std::optional<gpu::DriverMemory> driver;  // made before the context, which stays when closed
  std::weak_ptr<gpu::CudaDevice> device;
  std::int64_t asked = 0;  // the ceiling that it was opened with; 0: the default
};

}  // namespace

// Devices are numbered as CUDA numbers them, the most able first: when that one is too old, there
// is none to use.
int gpu_count() {
  std::string reason;
  const int count = device_count(reason);
  return count > 0 && unusable(0).empty() ? count : 0;
}

std::string gpu_reason() {
  std::string reason;
  return device_count(reason) > 0 ? unusable(0) : reason;
}

std::shared_ptr<const DeviceSizes> gpu_sizes() {
  return std::make_shared<gpu::WithCudaSizes<DeviceSizes>>();
}

std::shared_ptr<ComputeDevice> open_gpu(int number, std::int64_t memory_ceiling) {
  std::string reason;
  const int count = device_count(reason);
  if (count == 0) throw Unsupported(fmt::format("cuda:{} cannot be used: {}", number, reason));
  if (number < 0 || number >= count) {
    throw Unsupported(
        fmt::format("there is no cuda:{}; expected a number from 0 to {}", number, count - 1));
  }
  if (const std::string why = unusable(number); !why.empty()) throw Unsupported(why);

  static std::mutex mutex;
  static std::map<int, Open> devices;  // by number
  const std::lock_guard lock(mutex);
  Open& open = devices[number];
  if (std::shared_ptr<gpu::CudaDevice> device = open.device.lock()) {
    const std::int64_t ceiling = device->arena().ceiling();
    if (memory_ceiling == open.asked || memory_ceiling == ceiling) return device;
    throw InvalidArgument(fmt::format(
        "cuda:{} is open already with a ceiling of {} bytes, and {} was asked for; drop what uses "
        "it first, or open it with the same ceiling",
        number, ceiling, memory_ceiling == 0 ? "the default" : fmt::to_string(memory_ceiling)));
  }
  if (!open.driver) open.driver.emplace(number);
  TOPKV_CUDA(cudaSetDevice(number));  // makes the context
  auto device = std::make_shared<gpu::CudaDevice>(number, memory_ceiling, *open.driver);
  open.device = device;
  open.asked = memory_ceiling;
  return device;
}

}  // namespace topkv
