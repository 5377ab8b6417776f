// What the commands say of a device's memory: the plan before any work, the account after it.
#pragma once

#include <string>

#include "topkv/model.h"

namespace topkv::cli {

/// "GPU memory, ceiling 16 GiB" and a table of where it would go.
std::string plan_table(const DevicePlan& plan);

/// Prints the plan to standard error, and throws OutOfMemory when it does not fit, with the
/// smallest change that would. Does nothing for the host.
void check_plan(const DevicePlan& plan, const Device& device);

/// "peak 1.2 GiB of 16 GiB; the driver counts 1.2 GiB"; empty for the host.
std::string memory_account(const Device& device);

}  // namespace topkv::cli
