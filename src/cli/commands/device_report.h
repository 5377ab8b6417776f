// What the commands say of a device's memory: the plan before any work, the account after it.
#pragma once

#include <string>

#include "src/cli/flags/options.h"
#include "topkv/device.h"
#include "topkv/model.h"

namespace topkv::cli {

/// "GPU memory, ceiling 16 GiB" and a table of where it would go.
std::string plan_table(const DevicePlan& plan);

/// Throws OutOfMemory when the device has no room for what it keeps of the indices (codes, what
/// stands for keys) of a context of so many tokens: now rather than when the context has been read.
void check_indices(const Device& device, const AttentionShape& shape,
                   const RetrievalFlags& retrieval, std::int64_t tokens);

/// "topkv: warning: …", for what the library tells of a result.
std::string warning_line(const std::string& warning);
/// The same, to standard error.
void print_warning(const std::string& warning);

/// "peak 1.2 GiB of 16 GiB; the driver counts 1.2 GiB"; empty for the host.
std::string memory_account(const Device& device);

}  // namespace topkv::cli
