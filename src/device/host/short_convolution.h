#pragma once

#include "src/device/short_convolution.h"

namespace topkv {

/// Implements ComputeDevice::short_convolution. Operands are float32.
void short_convolution_on_host(const ShortConvolution& net, const ShortConvolutionStep& step);

}  // namespace topkv
