// The engine's values as Python's: their text, their parts, and what they take.
#pragma once

#include <jinja/runtime.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace topkv {

using Value = jinja::value;

/// A function that may be called by its name: a macro, or one of render.cc. (Of the engine's own
/// the tests can be called too, with arguments that end the process.)
struct Function : public jinja::value_func_t {
  using jinja::value_func_t::value_func_t;
};

/// What namespace() gives, the one thing that templates may change. It is put into nothing else,
/// so that no value contains itself.
struct Namespace : public jinja::value_object_t {};

Value text_value(std::string text);
bool is_text(const Value& value);
/// Counts the copy. REQUIRES: is_text.
std::string text_in(const Value& value);
bool is_number(const Value& value);  ///< bool too, as in Python
/// Fails for what is beyond 64 bits: the engine keeps it as a whole number, too.
Value fraction_value(double number);

/// What is undefined: `what` of the template's is for messages, which it may be cut for.
Value undefined(std::string_view what);

/// Into an object, whose keys the engine compares one by one with one that is there.
void insert(jinja::value_t& object, const Value& key, const Value& value);

/// In messages: "a list".
std::string kind_of(const Value& value);

/// str() of Python, "" for what is undefined. Fails for lists and objects: templates print no such,
/// and Python's notation of them is not to be had.
std::string text_of(const Value& value);

/// Elements of a list, keys of an object, characters of a text. Fails for others.
std::vector<Value> items_of(const Value& value);

/// Counts what was just made, without what its elements hold.
const Value& counted(const Value& value);

/// Counts the work of going through all of it, and reading its texts. Fails where it is nested too
/// deeply. Lists that are in it several times count as often. Returns about how many bytes it is.
std::size_t go_through(const Value& value);

bool all_ascii(std::string_view text);
/// Where it has the other from a place on, npos where it has not, in a time that grows with both
/// sizes and not with their product.
std::size_t place_of(std::string_view other, const std::string& text, std::size_t from = 0);

/// Where its characters begin, and its end.
std::vector<std::size_t> character_places(std::string_view text);

}  // namespace topkv
