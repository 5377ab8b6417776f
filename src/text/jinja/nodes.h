// The nodes that stand in place of the engine's (guard.cc puts them there). Each counts its work
// and fails, rather than to mean something else than in jinja2.
#pragma once

#include <jinja/runtime.h>

#include <string>
#include <utility>
#include <vector>

#include "src/text/jinja/values.h"

namespace topkv {

/// An item of a body: a statement, or an expression to print. Its failures name its line.
struct Item : public jinja::statement {
  jinja::statement_ptr inner;
  bool prints = false;
  Value execute_impl(jinja::context& context) const override;
};

/// A name, where its value is asked for. (The engine copies a map for each.)
struct Name : public jinja::identifier {
  using jinja::identifier::identifier;
  Value execute_impl(jinja::context& context) const override;
};

/// Text between blocks, a text in quotes, a number.
struct Constant : public jinja::expression {
  Value value;
  Value execute_impl(jinja::context& context) const override;
};

/// What else the engine evaluates: `and`, `or`, `not`, a if b else c.
struct Counting : public jinja::expression {
  jinja::statement_ptr inner;
  Value execute_impl(jinja::context& context) const override;
};

/// a + b and so on, but not `and` and `or`.
struct Operation : public jinja::binary_expression {
  using jinja::binary_expression::binary_expression;
  Value execute_impl(jinja::context& context) const override;
};

/// [a, b], (a, b) and {a: b}: counts what the engine makes.
struct Literal : public jinja::expression {
  jinja::statement_ptr inner;
  Value execute_impl(jinja::context& context) const override;
};

/// {a: b}
struct Object : public jinja::object_literal {
  using jinja::object_literal::object_literal;
  Value execute_impl(jinja::context& context) const override;
};

struct Member : public jinja::member_expression {
  using jinja::member_expression::member_expression;
  Value execute_impl(jinja::context& context) const override;
};

struct Call : public jinja::call_expression {
  using jinja::call_expression::call_expression;
  Value execute_impl(jinja::context& context) const override;
};

struct Filter : public jinja::filter_expression {
  using jinja::filter_expression::filter_expression;
  Value execute_impl(jinja::context& context) const override;
};

struct Test : public jinja::test_expression {
  using jinja::test_expression::test_expression;
  Value execute_impl(jinja::context& context) const override;
};

struct Set : public jinja::set_statement {
  using jinja::set_statement::set_statement;
  Value execute_impl(jinja::context& context) const override;
};

/// What break and continue throw: the loop's, with what was printed on the way to it. (The engine's
/// own signals carry nothing.)
struct LoopEnd {
  bool stops = false;  ///< or goes on with its next round
  std::string text;
};

/// break or continue.
struct Leave : public jinja::statement {
  explicit Leave(bool stops) : stops(stops) {}
  bool stops;
  [[noreturn]] Value execute_impl(jinja::context& /*context*/) const override {
    throw LoopEnd{stops, {}};
  }
};

struct If : public jinja::if_statement {
  using jinja::if_statement::if_statement;
  Value execute_impl(jinja::context& context) const override;
};

/// Each round has a scope of its own, as in jinja2.
struct For : public jinja::for_statement {
  using jinja::for_statement::for_statement;
  Value execute_impl(jinja::context& context) const override;
};

/// Defined outside of loops and macros it sees the template's names, as they are when it is called.
/// Defined inside one it sees the names where it is called, which is the same unless a macro within
/// calls it: the scope that it was defined in may be gone.
struct Macro : public jinja::macro_statement {
  template <class... Parts>
  explicit Macro(bool global, Parts&&... parts)
      : jinja::macro_statement(std::forward<Parts>(parts)...), global(global) {}
  bool global;  ///< defined outside of loops and macros
  Value execute_impl(jinja::context& context) const override;

 private:
  Value call(const jinja::func_args& arguments) const;
};

/// Runs the items of a body one after the other, and appends what they print, also what they had
/// printed when one breaks out of a loop.
void run_body(const jinja::statements& body, jinja::context& context, std::string& out);

/// a == b of Python.
bool same(const Value& a, const Value& b);

/// a < b and the like; fails for what Python does not order. REQUIRES: <, <=, > or >=.
bool ordered(const std::string& sign, const Value& a, const Value& b);

/// a in b of Python.
bool contains(const Value& all, const Value& one);

/// A test by its name without "is", of a value with its arguments behind it.
bool holds(const std::string& test, const std::vector<Value>& arguments, jinja::context& context);

/// A method of a value, or a filter, which are one: arguments begin with the value.
Value call_method(const std::string& name, std::vector<Value> arguments, jinja::context& context);

/// The values of a call's arguments.
std::vector<Value> arguments_of(const jinja::statements& arguments, jinja::context& context);

/// Puts these nodes in place of the engine's. Fails for statements that are not taken.
void guard(jinja::program& program, const std::string& source);

}  // namespace topkv
