#include "src/text/jinja/arguments.h"

#include <utility>

#include "src/text/jinja/limits.h"

namespace topkv {

Value argument(const Values& arguments, const char* name, std::size_t place) {
  for (const Value& value : arguments) {
    const auto* named = jinja::cast_val<jinja::value_kwarg>(value);
    if (named != nullptr && named->key == name) return named->val;
  }
  const bool there =
      place < arguments.size() && !jinja::is_val<jinja::value_kwarg>(arguments[place]);
  return there ? arguments[place] : nullptr;
}

std::string text_argument(const Values& arguments, const char* name, std::size_t place) {
  const Value value = argument(arguments, name, place);
  if (!value || !is_text(value)) {
    fail("a method of it is given " + (value ? kind_of(value) : "nothing") + "; expected a text");
  }
  return text_in(value);
}

std::int64_t whole_argument(const Values& arguments, const char* name, std::size_t place,
                            std::int64_t missing) {
  const Value value = argument(arguments, name, place);
  if (!value) return missing;
  if (!is_number(value)) fail("a method of it is given " + kind_of(value) + "; expected a number");
  return value->as_int();
}

Value list_of(Values items) { return counted(jinja::mk_val<jinja::value_array>(std::move(items))); }

}  // namespace topkv
