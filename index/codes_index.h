// An index of codes: every search scores all keys by a few bytes each (key_codes.h) and then, as
// all approximate indices do, the best of them exactly.
#pragma once

#include <memory>
#include <string_view>

#include "topkv/index_spec.h"

namespace topkv {

/// spec: the whole string; options: what follows "codes:". Throws InvalidArgument.
///
///   k    bytes of a key's code for each 128 dims or part of them
std::shared_ptr<const IndexSpec::Kind> codes_kind(std::string_view spec, std::string_view options);

}  // namespace topkv
