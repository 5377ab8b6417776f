#include "gpu/runtime/page_lock.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr std::int64_t page_bytes = 4096;

/// Every page is written to, so that it is there; what is there already stays.
void commit(std::byte* data, std::int64_t bytes) {
  // Alone: a caller may hold a device's lock.
  parallel_for_alone(
      (bytes + page_bytes - 1) / page_bytes, 4096, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          auto* byte = reinterpret_cast<volatile unsigned char*>(data + i * page_bytes);
          *byte = *byte;
        }
      });
}

}  // namespace

std::shared_ptr<void> page_lock(std::byte* data, std::int64_t bytes) {
  if (bytes == 0) return nullptr;
  commit(data, bytes);
  const cudaError_t status =
      cudaHostRegister(data, static_cast<std::size_t>(bytes), cudaHostRegisterPortable);
  if (status != cudaSuccess) {
    cudaGetLastError();
    throw Error(
        fmt::format("page-locking {} bytes of rows was refused by the driver ({}); ask for "
                    "fewer tokens, or use the host as the device",
                    bytes, cudaGetErrorString(status)));
  }
  return {data, [](void* locked) { cudaHostUnregister(locked); }};
}

}  // namespace topkv::gpu
