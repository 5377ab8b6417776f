// Attention of a prefill on the host's cores. It reads rows where they lie.
#pragma once

#include <memory>

#include "src/device/device_prefill.h"

namespace topkv {

std::unique_ptr<DevicePrefill> make_host_prefill(const AttentionShape& shape,
                                                 const PrefillVisibility& visible,
                                                 const PrefillRows& rows);

}  // namespace topkv
