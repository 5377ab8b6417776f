#include "src/text/jinja/nodes.h"

#include "src/text/jinja/limits.h"
#include "src/text/jinja/names.h"

namespace topkv {
namespace {

/// Lists and objects never change: a namespace in one could.
void refuse_namespace(const Value& value) {
  if (jinja::is_val<Namespace>(value)) fail("it puts a namespace into a list or an object");
}

}  // namespace

Value Item::execute_impl(jinja::context& context) const {
  try {
    Meter::current().step();
    Value value = inner->execute(context);
    if (prints && !is_text(value)) value = text_value(text_of(value));
    if (is_text(value)) Meter::current().take(value->val_str.length());  // what prints copies it
    return value;
  } catch (TemplateFailure& failure) {
    if (failure.line == 0) failure.line = static_cast<std::int64_t>(pos);
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    // Of the engine: "\nError executing Identifier at position 12: what is wrong".
    const std::string message = error.what();
    const std::size_t colon =
        message.starts_with("\nError") ? message.find(": ") : std::string::npos;
    throw TemplateFailure{colon == std::string::npos ? message : message.substr(colon + 2),
                          static_cast<std::int64_t>(pos)};
  }
}

Value Name::execute_impl(jinja::context& context) const {
  const Value found = names_of(context).find(val);
  if (found && !found->is_undefined()) return found;
  const auto function = jinja::global_builtins().find(val);
  if (function == jinja::global_builtins().end()) return undefined(val);
  return jinja::mk_val<jinja::value_func>(val, function->second);
}

Value Constant::execute_impl(jinja::context& /*context*/) const {
  Meter::current().step();
  return value;
}

Value Counting::execute_impl(jinja::context& context) const {
  Meter::current().step();
  return inner->execute_impl(context);
}

Value Literal::execute_impl(jinja::context& context) const {
  Meter::current().step();
  Value value = inner->execute_impl(context);
  if (jinja::is_val<jinja::value_array>(value)) {
    for (const Value& item : value->val_arr) refuse_namespace(item);
  } else {
    for (const auto& entry : value->val_obj) refuse_namespace(entry.second);
  }
  go_through(value);
  return counted(value);
}

Value Object::execute_impl(jinja::context& context) const {
  Value made = jinja::mk_val<jinja::value_object>();
  for (const auto& [key, value] : val) {
    const Value name = key->execute(context);
    insert(*made, name, value->execute(context));
  }
  return made;
}

std::vector<Value> arguments_of(const jinja::statements& arguments, jinja::context& context) {
  std::vector<Value> values;
  for (const auto& argument : arguments) values.push_back(argument->execute(context));
  return values;
}

Value Call::execute_impl(jinja::context& context) const {
  Meter::current().step();
  std::vector<Value> values = arguments_of(args, context);
  const Value found = callee->execute(context);
  const auto* function = jinja::cast_val<jinja::value_func>(found);
  if (function == nullptr) fail("it calls " + kind_of(found));
  if (function->arg0) {
    values.insert(values.begin(), function->arg0);
    return call_method(function->name, std::move(values), context);
  }
  if (!jinja::is_val<Function>(found))
    fail("it calls '" + function->name + "', which is undefined");
  jinja::func_args given(context);
  for (const Value& value : values) given.push_back(value);
  return counted(found->invoke(given));
}

Value Filter::execute_impl(jinja::context& context) const {
  Meter::current().step();
  std::vector<Value> values = {operand->execute(context)};
  const jinja::statement* named = filter.get();
  if (const auto* call = dynamic_cast<const jinja::call_expression*>(named)) {
    for (Value& value : arguments_of(call->args, context)) values.push_back(std::move(value));
    named = call->callee.get();
  }
  const auto* name = dynamic_cast<const jinja::identifier*>(named);
  if (name == nullptr) fail("it has a filter without a name");
  if (name->val == "format") fail("it has the filter format, which is not implemented");
  const std::string method = name->val == "trim"    ? "strip"
                             : name->val == "count" ? "length"
                             : name->val == "d"     ? "default"
                                                    : name->val;
  // Filters of texts take what is none by its text.
  for (const char* of_texts : {"strip", "lower", "upper", "capitalize", "title", "replace"}) {
    if (method == of_texts && !is_text(values[0])) values[0] = text_value(text_of(values[0]));
  }
  return call_method(method, std::move(values), context);
}

Value Test::execute_impl(jinja::context& context) const {
  Meter::current().step();
  std::vector<Value> values = {operand->execute(context)};
  const jinja::statement* named = test.get();
  if (const auto* call = dynamic_cast<const jinja::call_expression*>(named)) {
    for (Value& value : arguments_of(call->args, context)) values.push_back(std::move(value));
    named = call->callee.get();
  }
  const auto* name = dynamic_cast<const jinja::identifier*>(named);
  if (name == nullptr) fail("it has a test without a name");
  return jinja::mk_val<jinja::value_bool>(holds(name->val, values, context) != negate);
}

bool holds(const std::string& test, const std::vector<Value>& arguments, jinja::context& context) {
  static constexpr std::pair<const char*, const char*> signs[] = {
      {"eq", "=="}, {"equalto", "=="},    {"ne", "!="}, {"lt", "<"}, {"lessthan", "<"},
      {"gt", ">"},  {"greaterthan", ">"}, {"ge", ">="}, {"le", "<="}};
  std::string name = test;
  for (const auto& [word, sign] : signs) {
    if (name == word) name = sign;
  }
  if (const char first = name.front();
      first == '=' || first == '!' || first == '<' || first == '>') {
    if (arguments.size() != 2) fail("its test '" + test + "' has no value to compare with");
    for (const Value& value : arguments) go_through(value);
    if (name == "==" || name == "!=") return same(arguments[0], arguments[1]) == (name == "==");
    return ordered(name, arguments[0], arguments[1]);
  }
  if (name == "in") {
    if (arguments.size() != 2) fail("its test 'in' has nothing to look into");
    return contains(arguments[1], arguments[0]);
  }
  const auto& tests = jinja::global_builtins();
  const auto found = tests.find("test_is_" + name);
  if (found == tests.end()) fail("it has the test '" + test + "', which is not implemented");
  if (name == "divisibleby") fail("it has the test divisibleby, which is not implemented");
  if (name == "number" && jinja::is_val<jinja::value_bool>(arguments[0])) return true;
  if (name == "callable") return jinja::is_val<jinja::value_func>(arguments[0]);
  jinja::func_args given(context);
  given.func_name = test;
  for (const Value& value : arguments) {
    go_through(value);
    given.push_back(value);
  }
  return found->second(given)->as_bool();
}

Value Set::execute_impl(jinja::context& context) const {
  Value made;
  if (val) {
    made = val->execute(context);
  } else {
    std::string text;
    run_body(body, context, text);
    made = text_value(std::move(text));
  }
  const auto set = [&](const jinja::statement& target, const Value& value) {
    const auto* name = dynamic_cast<const jinja::identifier*>(&target);
    if (name == nullptr) fail("it sets what is no name");
    names_of(context).set(name->val, value);
  };
  if (const auto* tuple = dynamic_cast<const jinja::tuple_literal*>(assignee.get())) {
    const std::vector<Value> items = items_of(made);
    if (items.size() != tuple->val.size()) fail("it sets another number of names than of values");
    for (std::size_t i = 0; i < items.size(); ++i) set(*tuple->val[i], items[i]);
  } else if (const auto* member = dynamic_cast<const jinja::member_expression*>(assignee.get())) {
    Value object = member->object->execute(context);
    const auto* name = dynamic_cast<const jinja::identifier*>(member->property.get());
    if (!jinja::is_val<Namespace>(object) || member->computed || name == nullptr) {
      fail("it sets a part of " + kind_of(object) + "; only namespaces can be changed");
    }
    refuse_namespace(made);
    insert(*object, text_value(name->val), made);
  } else {
    set(*assignee, made);
  }
  return jinja::mk_val<jinja::value_undefined>();
}

}  // namespace topkv
