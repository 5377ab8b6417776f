// The stages of a scan over codes (code_scan.h), in their order. Each stage is asynchronous.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "gpu/codes/code_format.cuh"
#include "gpu/codes/code_scan.h"
#include "gpu/runtime/handles.h"

namespace topkv::gpu {

inline constexpr int most_sampled = scan_sample_units * 64;  // keys of a head in the sample
inline constexpr int maximum_keys = 32;                      // keys that share a maximum
inline constexpr int most_splits = 256;                      // thread blocks of a KV head
inline constexpr float scan_bias_log2 = 8;       // weights are stored times 2^8, in fp16
inline constexpr float scan_threshold_log2 = 6;  // the reference lies this far above the threshold

/// Launches a kernel. With scan.early it begins before the kernel before it ends. The kernel itself
/// waits for that kernel's results before it reads them (wait_for_previous_kernel).
template <class... Parameters, class... Arguments>
void launch_early(const CodeScan& scan, dim3 blocks, int threads, int shared_bytes,
                  cudaStream_t stream, void (*kernel)(Parameters...),
                  const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = scan.early ? 1 : 0;
  TOPKV_CUDA(cudaLaunchKernelEx(&config, kernel, scan, arguments...));
}

/// Calls use(std::integral_constant<int, number>()). REQUIRES: number is one of the template
/// arguments.
template <int first, int... others, class Use>
void with_constant(int number, const Use& use) {
  if constexpr (sizeof...(others) > 0) {
    if (number != first) return with_constant<others...>(number, use);
  }
  use(std::integral_constant<int, first>());
}
template <class Use>
void for_key_bytes(int key_bytes, const Use& use) {
  with_constant<part_bytes, 2 * part_bytes, most_key_bytes>(key_bytes, use);
}
template <class Use>
void for_value_bytes(int value_bytes, const Use& use) {
  with_constant<0, 8, 16, most_value_bytes>(value_bytes, use);
}
template <class Use>
void for_dims(int head_dim, const Use& use) {
  with_constant<few_dims, many_dims, most_code_dims>(code_dims(head_dim), use);
}

/// Reads all codes once. Writes the rows found, and the sums and masses of the other rows.
void pass_codes(const CodeScan& scan, cudaStream_t stream);

/// What follows the pass, in one launch: with listed_rows, attention over the rows that it has
/// listed, as listed_rows.to; with a tail, what it has summed up, as estimate and noise. Call it if
/// there is either.
void attend_rest(const CodeScan& scan, cudaStream_t stream);
/// Prepares attend_rest on the current device. Call it once, before the first scan.
void allow_attend_rest(int head_dim);

/// Attends the rare rows, and writes `rare`. It reads no results of the other stages, so that it
/// runs on processors that these leave free.
void attend_rare(const CodeScan& scan, cudaStream_t stream);
/// Prepares attend_rare on the current device. Call it once, before the first scan.
void allow_attend_rare(int head_dim);

}  // namespace topkv::gpu
