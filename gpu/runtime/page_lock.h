// Page-locking of host memory that exists: copies to and from it then run at the bus's full speed
// and beside other work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace topkv::gpu {

/// Commits the memory (in parallel, which is what makes this quick) and page-locks it until the
/// result goes. The memory outlives it. Throws Error when the driver refuses.
std::shared_ptr<void> page_lock(std::byte* data, std::int64_t bytes);

}  // namespace topkv::gpu
