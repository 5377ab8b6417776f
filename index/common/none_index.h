// "none": an index that finds nothing, so that sinks and window alone are attended (StreamingLLM,
// Xiao et al. 2024; LM-Infinite, Han et al. 2024), or these and a tail.
#pragma once

#include <memory>

#include "topkv/index_spec.h"

namespace topkv {

std::shared_ptr<const IndexFactory> none_factory();

}  // namespace topkv
