// The filter tojson.
#pragma once

#include "src/text/jinja/arguments.h"

namespace topkv {

/// Counts the JSON before it is made, by what it takes at most.
Value to_json(const Values& arguments, jinja::context& context);

}  // namespace topkv
