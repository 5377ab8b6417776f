#pragma once

#include <memory>

#include "src/device/decode_backend.h"

namespace topkv {

/// The decode step in host memory: attends rows where they lie.
std::unique_ptr<DecodeBackend> make_host_decode(const SessionShape& shape);

}  // namespace topkv
