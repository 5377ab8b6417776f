// Methods and filters of texts, as Python has them. Each counts what it reads, and what it makes
// before it does.
#pragma once

#include <string>

#include "src/text/jinja/arguments.h"

namespace topkv {

Value stripped(const Values& arguments, bool left, bool right);
Value split(const Values& arguments, jinja::context& context);
Value rsplit(const Values& arguments, jinja::context& context);
Value replace(const Values& arguments, jinja::context& context);
/// Of the method, whose places are {}; the filter has others.
Value format(const Values& arguments, jinja::context& context);
Value indent(const Values& arguments, jinja::context& context);
/// upper, lower, title, capitalize.
Value cased(const std::string& name, const Values& arguments, jinja::context& context);

}  // namespace topkv
