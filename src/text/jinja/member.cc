// a.b, a[b] and a[b:c:d].
#include <algorithm>
#include <array>
#include <optional>

#include "src/text/jinja/limits.h"
#include "src/text/jinja/nodes.h"

namespace topkv {
namespace {

constexpr std::array text_methods = {"upper",  "lower",      "strip",  "lstrip", "rstrip",
                                     "title",  "capitalize", "split",  "rsplit", "startswith",
                                     "format", "endswith",   "replace"};
constexpr std::array object_methods = {"get", "keys", "values", "items"};
// What they would change, transformers' sandbox keeps as it is, too.
constexpr std::array changing_methods = {"append", "pop",    "insert",     "extend", "remove",
                                         "clear",  "update", "setdefault", "sort",   "reverse"};

template <class Names>
bool has(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Bound to its value; call_method does the work.
Value method(const std::string& name, const Value& of) {
  return jinja::mk_val<jinja::value_func>(
      name, [](const jinja::func_args&) -> Value { fail("it calls a method in an odd way"); }, of);
}

bool has_methods(const Value& object) {
  const auto* made = jinja::cast_val<jinja::value_object>(object);
  return made == nullptr || made->has_builtins;
}

Value element(const Value& object, std::int64_t at) {
  const Value nothing = jinja::mk_val<jinja::value_undefined>("an element");
  const std::vector<Value>& items = object->val_arr;
  if (!is_text(object)) {
    const auto size = static_cast<std::int64_t>(items.size());
    if (at < 0) at += size;
    return at >= 0 && at < size ? items[static_cast<std::size_t>(at)] : nothing;
  }
  const std::string text = text_in(object);
  const std::vector<std::size_t> places = character_places(text);
  const auto size = static_cast<std::int64_t>(places.size()) - 1;
  if (at < 0) at += size;
  if (at < 0 || at >= size) return nothing;
  const std::size_t begin = places[static_cast<std::size_t>(at)];
  return text_value(text.substr(begin, places[static_cast<std::size_t>(at) + 1] - begin));
}

/// Python's: where a slice begins and ends, with steps of either sign.
struct Range {
  std::int64_t begin, end, step;
};

Range range_of(const jinja::slice_expression& slice, std::int64_t size, jinja::context& context) {
  constexpr std::int64_t far = std::int64_t{1} << 40U;
  const auto number = [&](const jinja::statement_ptr& part) -> std::optional<std::int64_t> {
    if (!part) return std::nullopt;
    const Value value = part->execute(context);
    if (value->is_none()) return std::nullopt;
    if (!is_number(value) || jinja::is_val<jinja::value_float>(value)) {
      fail("it slices with " + kind_of(value) + "; expected a whole number");
    }
    return std::clamp(value->as_int(), -far, far);
  };
  const std::int64_t step = number(slice.step_expr).value_or(1);
  if (step == 0) fail("it slices with a step of 0");
  const std::int64_t low = step > 0 ? 0 : -1;
  const std::int64_t high = step > 0 ? size : size - 1;
  const auto place = [&](const jinja::statement_ptr& part, std::int64_t missing) {
    const std::optional<std::int64_t> given = number(part);
    if (!given) return missing;
    return std::clamp(*given < 0 ? *given + size : *given, low, high);
  };
  return {place(slice.start_expr, step > 0 ? low : high),
          place(slice.stop_expr, step > 0 ? high : low), step};
}

Value sliced(const Value& object, const jinja::slice_expression& slice, jinja::context& context) {
  const bool text = is_text(object);
  if (!text && !jinja::is_val<jinja::value_array>(object)) fail("it slices " + kind_of(object));
  const std::string bytes = text ? text_in(object) : "";
  const std::vector<std::size_t> places =
      text ? character_places(bytes) : std::vector<std::size_t>();
  const auto size = static_cast<std::int64_t>(text ? places.size() - 1 : object->val_arr.size());
  const Range range = range_of(slice, size, context);
  std::string out;
  std::vector<Value> items;
  for (std::int64_t i = range.begin; range.step > 0 ? i < range.end : i > range.end;
       i += range.step) {
    const auto at = static_cast<std::size_t>(i);
    if (text) {
      out.append(bytes, places[at], places[at + 1] - places[at]);
    } else {
      items.push_back(object->val_arr[at]);
    }
  }
  if (text) return counted(text_value(out));
  return counted(jinja::mk_val<jinja::value_array>(std::move(items)));
}

}  // namespace

Value Member::execute_impl(jinja::context& context) const {
  Meter::current().step();
  const Value of = object->execute(context);
  if (of->is_undefined()) fail("it asks for a part of " + kind_of(of));
  if (const auto* slice = dynamic_cast<const jinja::slice_expression*>(property.get())) {
    return sliced(of, *slice, context);
  }
  Value key;
  if (computed || dynamic_cast<const jinja::integer_literal*>(property.get()) != nullptr) {
    key = property->execute(context);
  } else {
    const auto* name = dynamic_cast<const jinja::identifier*>(property.get());
    if (name == nullptr) fail("it asks for a part without a name");
    key = text_value(name->val);
    const bool is_object = jinja::is_val<jinja::value_object>(of);
    if (is_object ? has_methods(of) && has(object_methods, name->val)
                  : is_text(of) && has(text_methods, name->val)) {
      return method(name->val, of);
    }
    const bool list = jinja::is_val<jinja::value_array>(of);
    if ((list || (is_object && has_methods(of) && !of->has_key(key))) &&
        has(changing_methods, name->val)) {
      fail("it calls " + name->val + ", which would change " + kind_of(of) +
           "; only namespaces can be changed, as in transformers");
    }
  }
  Value nothing = undefined(is_text(key) ? text_in(key) : "a part");
  if (jinja::is_val<jinja::value_object>(of)) {
    go_through(key);
    return of->at(key, nothing);
  }
  const bool whole = is_number(key) && !jinja::is_val<jinja::value_float>(key);
  if (whole && (is_text(of) || jinja::is_val<jinja::value_array>(of))) {
    return counted(element(of, key->as_int()));
  }
  return nothing;
}

}  // namespace topkv
