// Choices of C++ enums as Python writes them: the names of the enumerators.
#pragma once

#include <string>

#include "topkv/context.h"
#include "topkv/session.h"

namespace topkv::python {

// Throws InvalidArgument naming the choices.
SelectBy parse_select_by(const std::string& name);

}  // namespace topkv::python
