// What methods and filters are given: the value first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/text/jinja/values.h"

namespace topkv {

using Values = std::vector<Value>;

/// An argument by its name, or by its place behind the value; null where there is none.
Value argument(const Values& arguments, const char* name, std::size_t place);

/// Likewise; fail where it is no text, or no number.
std::string text_argument(const Values& arguments, const char* name, std::size_t place);
std::int64_t whole_argument(const Values& arguments, const char* name, std::size_t place,
                            std::int64_t missing);

/// Counts the list.
Value list_of(Values items);

}  // namespace topkv
