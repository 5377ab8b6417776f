#pragma once

#include <memory>

#include "src/device/decode_backend.h"

namespace topkv {

/// Makes the host's side of a decode step. It attends rows where they lie.
DecodeBackend make_host_decode(const SessionShape& shape);

}  // namespace topkv
