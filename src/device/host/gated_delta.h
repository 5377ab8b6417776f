// Gated DeltaNet layers on the host.
#pragma once

#include "src/device/compute_device.h"

namespace topkv {

/// ComputeDevice::gated_delta.
void gated_delta_on_host(const GatedDeltaNet& net, const GatedDeltaStep& step);

}  // namespace topkv
