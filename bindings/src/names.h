// Choices of C++ enums as Python writes them: the names of the enumerators.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "topkv/context.h"
#include "topkv/session.h"

namespace topkv::python {

// Throws InvalidArgument naming the choices.
SelectBy parse_select_by(const std::string& name);

/// How a text is read, by the arguments that ContextBuilder and Model.prefill have. least: not set,
/// PrefillAttention's default, or `keys` if that is less. Throws InvalidArgument for the name of
/// the mode; other values are checked where they are used.
PrefillAttention prefill_attention(const std::string& mode, std::int64_t window, std::int64_t sinks,
                                   std::int64_t keys, std::optional<std::int64_t> least,
                                   double mass, bool measure);

}  // namespace topkv::python
