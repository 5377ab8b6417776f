#include "src/text/jinja/limits.h"
#include "src/text/jinja/names.h"
#include "src/text/jinja/nodes.h"

namespace topkv {
namespace {

void name_item(const jinja::statement& variables, const Value& item, Names& names) {
  const auto set = [&](const jinja::statement& target, const Value& value) {
    const auto* name = dynamic_cast<const jinja::identifier*>(&target);
    if (name == nullptr) fail("a loop of it has a variable without a name");
    names.set(name->val, value);
  };
  const auto* tuple = dynamic_cast<const jinja::tuple_literal*>(&variables);
  if (tuple == nullptr) return set(variables, item);
  const std::vector<Value> parts = items_of(item);
  if (parts.size() != tuple->val.size()) fail("a loop of it has too many variables, or too few");
  for (std::size_t i = 0; i < parts.size(); ++i) set(*tuple->val[i], parts[i]);
}

// It makes an object of eleven entries.
constexpr std::int64_t round_steps = 8;

Value loop_object(const std::vector<Value>& items, std::size_t i) {
  const auto integer = [](std::size_t n) {
    return jinja::mk_val<jinja::value_int>(static_cast<std::int64_t>(n));
  };
  const auto truth = [](bool value) { return jinja::mk_val<jinja::value_bool>(value); };
  const auto neighbour = [&](std::size_t at) -> Value {
    if (at < items.size()) return items[at];
    return jinja::mk_val<jinja::value_undefined>();
  };
  auto loop = jinja::mk_val<jinja::value_object>();
  loop->has_builtins = false;
  loop->insert("index", integer(i + 1));
  loop->insert("index0", integer(i));
  loop->insert("revindex", integer(items.size() - i));
  loop->insert("revindex0", integer(items.size() - i - 1));
  loop->insert("first", truth(i == 0));
  loop->insert("last", truth(i + 1 == items.size()));
  loop->insert("length", integer(items.size()));
  loop->insert("depth", integer(1));  // of loops within themselves, which are not taken
  loop->insert("depth0", integer(0));
  loop->insert("previtem", neighbour(i - 1));  // of the first: beyond all
  loop->insert("nextitem", neighbour(i + 1));
  return loop;
}

}  // namespace

void run_body(const jinja::statements& body, jinja::context& context, std::string& out) {
  for (const auto& item : body) {
    const Value value = item->execute(context);
    if (is_text(value)) out += value->val_str.str();
  }
}

Value If::execute_impl(jinja::context& context) const {
  std::string out;
  try {
    run_body(test->execute(context)->as_bool() ? body : alternate, context, out);
  } catch (LoopEnd& end) {
    Meter::current().read(out.size() + end.text.size());
    end.text.insert(0, out);
    throw;
  }
  return text_value(std::move(out));
}

Value For::execute_impl(jinja::context& context) const {
  const auto* select = dynamic_cast<const jinja::select_expression*>(iterable.get());
  const Value over = (select == nullptr ? iterable : select->lhs)->execute(context);
  Names& names = names_of(context);
  std::vector<Value> items;
  for (const Value& item : items_of(over)) {
    Meter::current().step();
    if (select != nullptr) {
      const Scope scope(names, names.innermost);
      name_item(*loopvar, item, names);
      if (!select->test->execute(context)->as_bool()) continue;
    }
    items.push_back(item);
  }
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Meter::current().step(round_steps);
    const Scope scope(names, names.innermost);
    names.set("loop", loop_object(items, i));
    name_item(*loopvar, items[i], names);
    try {
      run_body(body, context, out);
    } catch (const LoopEnd& end) {
      Meter::current().read(end.text.size());
      out += end.text;
      if (end.stops) break;
    }
  }
  if (items.empty()) run_body(default_block, context, out);
  return text_value(std::move(out));
}

Value Macro::execute_impl(jinja::context& context) const {
  const auto* named = dynamic_cast<const jinja::identifier*>(name.get());
  if (named == nullptr) fail("it has a macro without a name");
  const auto run = [this](const jinja::func_args& arguments) { return call(arguments); };
  names_of(context).set(named->val, jinja::mk_val<Function>(named->val, run));
  return jinja::mk_val<jinja::value_undefined>();
}

Value Macro::call(const jinja::func_args& arguments) const {
  Meter::current().step();
  Names& names = names_of(arguments.ctx);
  const Scope scope(names, global ? names.outermost : names.innermost);
  std::vector<Value> by_place;
  std::size_t by_name = 0;
  for (const Value& value : arguments.get_args()) {
    if (jinja::is_val<jinja::value_kwarg>(value)) {
      ++by_name;
    } else {
      by_place.push_back(value);
    }
  }
  if (by_place.size() > args.size()) fail("it gives a macro too many arguments");
  for (std::size_t i = 0; i < args.size(); ++i) {
    const auto* with_default =
        dynamic_cast<const jinja::keyword_argument_expression*>(args[i].get());
    const auto* named = dynamic_cast<const jinja::identifier*>(
        with_default == nullptr ? args[i].get() : with_default->key.get());
    if (named == nullptr) fail("it has a macro whose argument has no name");
    Meter::current().read(arguments.count() * sizeof(jinja::value_kwarg_t));
    Value value = arguments.get_kwarg(named->val, nullptr);
    if (value) {
      --by_name;
    } else if (i < by_place.size()) {
      value = by_place[i];
    } else if (with_default != nullptr) {
      value = with_default->val->execute(names);
    } else {
      value = undefined(named->val);
    }
    names.set(named->val, value);
  }
  if (by_name != 0) fail("it gives a macro an argument that this does not have");
  std::string out;
  run_body(body, names, out);
  return text_value(std::move(out));
}

}  // namespace topkv
