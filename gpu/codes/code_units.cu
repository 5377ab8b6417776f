// Codes as the host lays them out, into units.
#include "gpu/codes/code_format.cuh"
#include "gpu/codes/code_scan.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

/// A block a unit. What pads the last one is 0.
__global__ void __launch_bounds__(block)
    units_kernel(StagedCodes codes, const int* rare_keys, int rare_count, int count, int key_bytes,
                 int value_bytes, std::uint8_t* units) {
  __shared__ int positions[unit_keys];
  __shared__ __align__(16) unsigned unit[unit_bytes(most_key_bytes, most_value_bytes) / 4];
  const int thread = static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(blockIdx.x) * unit_keys;
  const int bytes = unit_bytes(key_bytes, value_bytes);
  for (int i = thread; i < bytes / 4; i += block) unit[i] = 0;
  if (thread < unit_keys) {
    const int key = first + thread;
    positions[thread] = key < count ? position_of(key, rare_keys, 0, rare_count) : -1;
  }
  __syncthreads();
  const auto put = [&](int byte, unsigned bits) {
    atomicOr(unit + byte / 4, bits << (8 * (byte % 4)));
  };
  for (int i = thread; i < unit_keys * codes.key_bytes; i += block) {
    const int position = positions[i % unit_keys];
    if (position < 0) continue;
    const int byte = i / unit_keys;
    put(key_byte(key_bytes, i % unit_keys, byte),
        codes.keys[static_cast<std::int64_t>(position / 64) * 64 * codes.key_bytes + byte * 64 +
                   position % 64]);
  }
  for (int i = thread; i < unit_keys * value_bytes * 8; i += block) {
    const int key = i / (value_bytes * 8);
    const int axis = i % (value_bytes * 8);
    const int position = positions[key];
    if (position < 0) continue;
    unsigned bit = 0;
    if (axis < codes.value_bits) {
      const unsigned nibbles =
          codes.values[static_cast<std::int64_t>(position / 4) * codes.lanes + axis % codes.lanes];
      bit = nibbles >> (position % 4 + axis / codes.lanes * 4) & 1U;
    }
    if (key % 2 == 0) bit ^= 1U;
    const ValueBit place = value_bit(key_bytes, value_bytes, key, axis);
    put(place.byte, bit << place.bit);
  }
  __syncthreads();
  auto* to = reinterpret_cast<unsigned*>(units + static_cast<std::int64_t>(blockIdx.x) * bytes);
  for (int i = thread; i < bytes / 4; i += block) to[i] = unit[i];
}

}  // namespace

void encode_units(const StagedCodes& codes, const int* rare_keys, int rare_count, int count,
                  int key_bytes, int value_bytes, std::uint8_t* units, cudaStream_t stream) {
  if (count == 0) return;
  units_kernel<<<static_cast<unsigned>((count + unit_keys - 1) / unit_keys), block, 0, stream>>>(
      codes, rare_keys, rare_count, count, key_bytes, value_bytes, units);
  check_launch("the kernel that lays out codes");
}

}  // namespace topkv::gpu
