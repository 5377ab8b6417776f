// Page-locks existing host memory. Copies to and from it then run at the bus's full speed, and
// overlap with other work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace topkv::gpu {

/// Commits the memory, with several threads for speed, and page-locks it until the result is
/// destroyed. The memory must outlive the result. Throws Error when the driver fails.
std::shared_ptr<void> page_lock(std::byte* data, std::int64_t bytes);

}  // namespace topkv::gpu
