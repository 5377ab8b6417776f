// Methods of values, and filters: the engine's own where they are Python's and harmless, others
// here.
#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "src/text/jinja/json.h"
#include "src/text/jinja/limits.h"
#include "src/text/jinja/nodes.h"
#include "src/text/jinja/numbers.h"
#include "src/text/jinja/text_methods.h"

namespace topkv {
namespace {

using Method = Value (*)(const Values& arguments, jinja::context& context);

/// The engine's own that are left to it, once what they are given has been gone through.
constexpr std::array engine_methods = {"abs",  "endswith", "get", "items",      "keys",  "map",
                                       "safe", "max",      "min", "startswith", "values"};

bool holds_text(const Value& list) {
  return jinja::is_val<jinja::value_array>(list) &&
         std::any_of(list->val_arr.begin(), list->val_arr.end(), is_text);
}

Value default_for(const Values& arguments, jinja::context&) {
  const Value otherwise = argument(arguments, "default_value", 1);
  const Value also_false = argument(arguments, "boolean", 2);
  const bool there = !arguments[0]->is_undefined() &&
                     (!also_false || !also_false->as_bool() || arguments[0]->as_bool());
  return there ? arguments[0] : otherwise ? otherwise : text_value("");
}

/// The filters int and float: texts are read without spaces around them.
Value number_of(const Values& arguments, bool whole) {
  const Value value = is_text(arguments[0]) ? stripped({arguments[0]}, true, true) : arguments[0];
  const Value given = argument(arguments, "default", 1);
  if (!whole) return fraction(value, given ? given : jinja::mk_val<jinja::value_float>(0.0));
  return whole_number(value, whole_argument(arguments, "base", 2, 10),
                      given ? given : jinja::mk_val<jinja::value_int>(0));
}

/// Without a copy of the list: templates ask in each round of a loop over it.
Value length(const Values& arguments, jinja::context&) {
  const Value& of = arguments[0];
  const std::size_t size = is_text(of) ? character_places(text_in(of)).size() - 1
                           : jinja::is_val<jinja::value_array>(of) ? of->val_arr.size()
                                                                   : items_of(of).size();
  return jinja::mk_val<jinja::value_int>(static_cast<std::int64_t>(size));
}

Value first_or_last(const Values& arguments, bool first) {
  const Value& of = arguments[0];
  const Values copied = jinja::is_val<jinja::value_array>(of) ? Values() : items_of(of);
  const Values& items = jinja::is_val<jinja::value_array>(of) ? of->val_arr : copied;
  if (items.empty()) return undefined("an element of nothing");
  return first ? items.front() : items.back();
}

Value join(const Values& arguments, jinja::context&) {
  const Value between = argument(arguments, "d", 1);
  const Value attribute = argument(arguments, "attribute", 2);
  if (attribute) fail("it joins attributes, which is not implemented");
  std::string out;
  bool first = true;
  for (const Value& item : items_of(arguments[0])) {
    const std::string text = (first || !between ? "" : text_of(between)) + text_of(item);
    Meter::current().take(text.size());
    out += text;
    first = false;
  }
  return text_value(std::move(out));
}

/// select, reject, selectattr, rejectattr.
Value selected(const Values& arguments, bool by_attribute, bool wanted, jinja::context& context) {
  const std::size_t named = by_attribute ? 2 : 1;
  const std::string attribute = by_attribute ? text_argument(arguments, "", 1) : "";
  if (attribute.find('.') != std::string::npos) fail("it selects by a part of a part");
  const std::string test = named < arguments.size() ? text_argument(arguments, "", named) : "";
  Values kept;
  for (const Value& item : items_of(arguments[0])) {
    Meter::current().step();
    Value value = item;
    if (by_attribute) {
      Value nothing = undefined(attribute);
      const bool object = jinja::is_val<jinja::value_object>(item);
      value = object ? item->at(text_value(attribute), nothing) : nothing;
    }
    Values given = {value};
    for (std::size_t i = named + 1; i < arguments.size(); ++i) given.push_back(arguments[i]);
    if ((test.empty() ? value->as_bool() : holds(test, given, context)) == wanted) {
      kept.push_back(item);
    }
  }
  return list_of(std::move(kept));
}

std::string lower_ascii(std::string text) {
  if (!all_ascii(text)) fail("it orders texts beyond ASCII, which is not implemented");
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  return text;
}

/// What has an order here: texts, whatever their case, as jinja2 has it unless told otherwise.
template <class Key>
Value sorted(Values items, const Values& arguments, const Key& key) {
  if (arguments.size() > 1) fail("it sorts with arguments, which is not implemented");
  std::vector<std::pair<std::string, Value>> keyed;
  for (const Value& item : items) {
    if (!is_text(key(item))) fail("it sorts what is no text, which is not implemented");
    Meter::current().take(key(item)->val_str.length());
    keyed.emplace_back(lower_ascii(text_in(key(item))), item);
  }
  std::stable_sort(keyed.begin(), keyed.end(), [](const auto& a, const auto& b) {
    Meter::current().read(std::min(a.first.size(), b.first.size()));
    return a.first < b.first;
  });
  for (std::size_t i = 0; i < items.size(); ++i) items[i] = keyed[i].second;
  return list_of(std::move(items));
}

Value dictsort(const Values& arguments, jinja::context&) {
  Values entries;
  for (const auto& entry : arguments[0]->val_obj) {
    entries.push_back(jinja::mk_val<jinja::value_tuple>(entry));
  }
  return sorted(std::move(entries), arguments,
                [](const Value& entry) { return entry->val_arr[0]; });
}

Value reverse(const Values& arguments, jinja::context&) {
  if (is_text(arguments[0])) fail("it reverses a text, which is not implemented");
  Values items = items_of(arguments[0]);
  std::reverse(items.begin(), items.end());
  return list_of(std::move(items));
}

const std::map<std::string, Method>& methods() {
  static const std::map<std::string, Method> made = {
      {"default", default_for},
      {"dictsort", dictsort},
      {"format", format},
      {"float", [](const Values& a, jinja::context&) { return number_of(a, false); }},
      {"indent", indent},
      {"int", [](const Values& a, jinja::context&) { return number_of(a, true); }},
      {"join", join},
      {"length", length},
      {"replace", replace},
      {"reverse", reverse},
      {"rsplit", rsplit},
      {"split", split},
      {"tojson", to_json},
      {"strip", [](const Values& a, jinja::context&) { return stripped(a, true, true); }},
      {"lstrip", [](const Values& a, jinja::context&) { return stripped(a, true, false); }},
      {"rstrip", [](const Values& a, jinja::context&) { return stripped(a, false, true); }},
      {"first", [](const Values& a, jinja::context&) { return first_or_last(a, true); }},
      {"last", [](const Values& a, jinja::context&) { return first_or_last(a, false); }},
      {"list", [](const Values& a, jinja::context&) { return list_of(items_of(a[0])); }},
      {"string", [](const Values& a, jinja::context&) { return text_value(text_of(a[0])); }},
      {"select", [](const Values& a, jinja::context& c) { return selected(a, false, true, c); }},
      {"reject", [](const Values& a, jinja::context& c) { return selected(a, false, false, c); }},
      {"selectattr", [](const Values& a, jinja::context& c) { return selected(a, true, true, c); }},
      {"rejectattr",
       [](const Values& a, jinja::context& c) { return selected(a, true, false, c); }},
      {"sort",
       [](const Values& a, jinja::context&) {
         return sorted(items_of(a[0]), a, [](const Value& item) { return item; });
       }},
      {"upper", [](const Values& a, jinja::context& c) { return cased("upper", a, c); }},
      {"lower", [](const Values& a, jinja::context& c) { return cased("lower", a, c); }},
      {"title", [](const Values& a, jinja::context& c) { return cased("title", a, c); }},
      {"capitalize", [](const Values& a, jinja::context& c) { return cased("capitalize", a, c); }}};
  return made;
}

}  // namespace

Value call_method(const std::string& name, std::vector<Value> arguments, jinja::context& context) {
  const auto own = methods().find(name);
  if (own != methods().end()) return counted(own->second(arguments, context));
  const bool known =
      std::find(engine_methods.begin(), engine_methods.end(), name) != engine_methods.end();
  const auto& there = arguments[0]->get_builtins();
  const auto method = there.find(name);
  if (!known || method == there.end()) {
    fail("it has the filter or method '" + name + "' of " + kind_of(arguments[0]) +
         ", which is not implemented");
  }
  if ((name == "startswith" || name == "endswith") && arguments.size() > 2)
    fail("it has " + name + "() with a place to begin at, which is not implemented");
  if ((name == "max" || name == "min") && holds_text(arguments[0]))
    fail("it has the filter " + name + " of texts, which is not implemented");
  jinja::func_args given(context);
  given.func_name = name;
  // For each element, the engine copies what stands behind the list.
  const std::size_t times = std::max<std::size_t>(arguments[0]->val_arr.size(), 1);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::size_t bytes = go_through(arguments[i]);
    if (i > 0) Meter::current().read(bytes * times);
    given.push_back(arguments[i]);
  }
  const Value made = method->second(given);
  go_through(made);
  return counted(made);
}

}  // namespace topkv
