// Faults that tests inject into the order of streams, to show that waits are there and needed.
// Nothing but tests sets them.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace topkv::gpu {

struct Faults {
  /// Every copy between host and device is held up by so many microseconds on its stream.
  static inline std::atomic<int> copy_delay_us{0};
  /// That could be held up so far.
  static inline std::atomic<std::int64_t> copies{0};
  /// Streams do not wait for events of other streams.
  static inline std::atomic<bool> drop_waits{false};
  /// Every choice of a session is held up by so many microseconds more, and the host does not wait
  /// for it (EntryChooser::chosen).
  static inline std::atomic<int> choice_delay_us{0};
  static inline std::atomic<bool> drop_choice_waits{false};
};

/// Holds up the stream by Faults::copy_delay_us, if that is not 0.
void inject_copy_delay(cudaStream_t stream);
/// Likewise by Faults::choice_delay_us.
void inject_choice_delay(cudaStream_t stream);

}  // namespace topkv::gpu
