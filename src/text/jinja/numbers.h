// jinja2's filters int and float.
#pragma once

#include <cstdint>

#include "src/text/jinja/values.h"

namespace topkv {

/// int(value, base) of Python, that of float(value) where there is none, otherwise `otherwise`.
/// Texts have been stripped. Fails for numbers beyond 64 bits, texts beyond ASCII, a base of 0 and
/// what is undefined, as jinja2 does for the last.
Value whole_number(const Value& value, std::int64_t base, const Value& otherwise);

/// float(value) of Python, otherwise `otherwise`; likewise.
Value fraction(const Value& value, const Value& otherwise);

}  // namespace topkv
