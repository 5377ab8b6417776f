#include "gpu/runtime/driver_memory.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>

namespace topkv::gpu {
namespace {

// The part of NVML's interface that is used (nvml.h is not part of the CUDA toolkit everywhere).
// Its return codes are an enum with 0 for success; nvmlMemory_t is the first version of the struct.
struct NvmlMemory {
  unsigned long long total, free, used;  // bytes
};

class Nvml {
 public:
  /// Null where there is no NVML. Loaded once, for the life of the process.
  static const Nvml* get() {
    static const Nvml nvml;
    return nvml.ready_ ? &nvml : nullptr;
  }

  void* device(const char* pci_bus_id) const {
    void* handle = nullptr;
    return device_(pci_bus_id, &handle) == 0 ? handle : nullptr;
  }

  std::optional<std::int64_t> used(void* device) const {
    NvmlMemory memory{};
    if (memory_(device, &memory) != 0) return std::nullopt;
    return static_cast<std::int64_t>(memory.used);
  }

 private:
  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return;
    int (*init)() = nullptr;
    ready_ = find(library, "nvmlInit_v2", init) &&
             find(library, "nvmlDeviceGetHandleByPciBusId_v2", device_) &&
             find(library, "nvmlDeviceGetMemoryInfo", memory_) && init() == 0;
  }

  template <class Function>
  static bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }

  bool ready_ = false;
  int (*device_)(const char*, void**) = nullptr;
  int (*memory_)(void*, NvmlMemory*) = nullptr;
};

}  // namespace

DriverMemory::DriverMemory(int device) {
  const Nvml* nvml = Nvml::get();
  // NVML numbers devices in its own way; the bus id means the same device to both.
  std::array<char, 32> bus_id{};
  if (nvml == nullptr || cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()),
                                               device) != cudaSuccess) {
    cudaGetLastError();
    return;
  }
  handle_ = nvml->device(bus_id.data());
  before_ = used();
}

std::optional<std::int64_t> DriverMemory::used() const {
  return handle_ == nullptr ? std::nullopt : Nvml::get()->used(handle_);
}

std::optional<std::int64_t> DriverMemory::taken() const {
  const std::optional<std::int64_t> now = used();
  if (!now || !before_) return std::nullopt;
  return std::max<std::int64_t>(0, *now - *before_);
}

}  // namespace topkv::gpu
