#pragma once

#include "src/device/mamba2.h"

namespace topkv {

/// Implements ComputeDevice::mamba2.
void mamba2_on_host(const Mamba2& net, const Mamba2Step& step);

}  // namespace topkv
