// Faults that tests inject into the order of streams, to show that waits exist and are needed. Only
// tests set them.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace topkv::gpu {

/// Switches of all devices of the process.
struct Faults {
  /// The delay of every copy between host and device, in microseconds, on its stream.
  static inline std::atomic<int> copy_delay_us{0};
  /// The number of copies that could be delayed so far.
  static inline std::atomic<std::int64_t> copies{0};
  /// If true, streams do not wait for events of other streams.
  static inline std::atomic<bool> drop_waits{false};
  /// The further delay of every choice of entries for a session, in microseconds.
  static inline std::atomic<int> choice_delay_us{0};
  /// If true, the host does not wait for choices of entries (EntryChooser::chosen).
  static inline std::atomic<bool> drop_choice_waits{false};
};

/// Delays the stream by Faults::copy_delay_us.
void inject_copy_delay(cudaStream_t stream);
/// Delays the stream by Faults::choice_delay_us.
void inject_choice_delay(cudaStream_t stream);

}  // namespace topkv::gpu
