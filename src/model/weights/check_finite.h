// Weights that are NaN or infinite: a damaged file, or a training that went wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "topkv/types.h"

namespace topkv {

/// Goes through plain elements of a tensor, on all threads. what: "file: tensor name". Throws
/// FileError naming the first that is not finite by its place.
void check_finite(const std::byte* data, DType dtype, std::span<const std::int64_t> shape,
                  const std::string& what);

}  // namespace topkv
