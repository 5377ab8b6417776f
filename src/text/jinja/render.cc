#include "src/text/jinja/render.h"

#include <fmt/format.h>
#include <jinja/parser.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "src/text/jinja/limits.h"
#include "src/text/jinja/names.h"
#include "src/text/jinja/nodes.h"
#include "src/text/jinja/unparsable.h"

namespace topkv {
namespace {

// Taken from the address space as it is used. What lies between two looks at the stack (limits.h)
// is bounded by the size of a block.
constexpr std::size_t stack_bytes = std::size_t{128} << 20U;
constexpr std::size_t stack_limit = std::size_t{48} << 20U;

/// The engine's parser recurses: what it is given is measured first.
void check_tokens(const std::vector<jinja::token>& tokens, const std::string& source) {
  std::int64_t statements = 0;
  std::int64_t brackets = 0;
  std::int64_t in_block = 0;
  const auto refuse = [&](const jinja::token& token, const std::string& what, std::int64_t most) {
    throw TemplateFailure{fmt::format("it has more than {} {}", most, what),
                          line_of(token.pos, source)};
  };
  for (const jinja::token& token : tokens) {
    switch (token.t) {
      case jinja::token::open_statement:
        if (++statements > max_template_statements) {
          refuse(token, "statements", max_template_statements);
        }
        [[fallthrough]];
      case jinja::token::open_expression:
        in_block = 0;
        brackets = 0;
        break;
      case jinja::token::open_paren:
      case jinja::token::open_square_bracket:
      case jinja::token::open_curly_bracket:
        if (++brackets > max_brackets) refuse(token, "brackets inside one another", max_brackets);
        break;
      case jinja::token::close_paren:
      case jinja::token::close_square_bracket:
      case jinja::token::close_curly_bracket:
        --brackets;
        break;
      default:
        break;
    }
    if (++in_block > max_block_tokens)
      refuse(token, "signs and words in one block", max_block_tokens);
  }
}

/// Whether a token compares what is before it with what is behind it, as `==` and `in` do.
bool compares(const jinja::token& token) {
  return token.t == jinja::token::comparison_binary_operator ||
         (token.t == jinja::token::identifier && token.value == "in");
}

/// Whether an expression ends in front of a token, and another begins behind it.
bool separates(const jinja::token& token) {
  switch (token.t) {
    case jinja::token::identifier:
      return token.value == "and" || token.value == "or" || token.value == "if" ||
             token.value == "else" || token.value == "for";
    case jinja::token::comma:
    case jinja::token::colon:
    case jinja::token::equals:
      return true;
    default:
      return false;
  }
}

/// a < b < c is a < b and b < c in Python, and something else to the engine. REQUIRES: brackets are
/// in pairs, or the parser refuses them.
void refuse_chains(const std::vector<jinja::token>& tokens, const std::string& source) {
  std::vector<bool> compared = {false};  // in each bracket that is open
  bool loop = false;                     // whose `in` compares nothing
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const jinja::token& token = tokens[i];
    switch (token.t) {
      case jinja::token::open_paren:
      case jinja::token::open_square_bracket:
      case jinja::token::open_curly_bracket:
        compared.push_back(false);
        continue;
      case jinja::token::close_paren:
      case jinja::token::close_square_bracket:
      case jinja::token::close_curly_bracket:
        if (compared.size() > 1) compared.pop_back();
        continue;
      case jinja::token::open_statement:
      case jinja::token::open_expression:
        loop = i + 1 < tokens.size() && tokens[i + 1].value == "for";
        compared = {false};
        continue;
      default:
        break;
    }
    if (separates(token)) compared.back() = false;
    if (!compares(token)) continue;
    if (loop && token.value == "in" && compared.size() == 1) {
      loop = false;
      continue;
    }
    if (compared.back()) {
      throw TemplateFailure{
          "it compares more than two values in a row (a < b < c), which is not implemented",
          line_of(token.pos, source)};
    }
    compared.back() = true;
  }
}

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

jinja::program parse(std::string_view given) {
  if (given.size() > max_template_bytes) {
    fail(fmt::format("it has {} bytes; expected at most {}", given.size(), max_template_bytes));
  }
  std::string source;
  // The engine loses a first character that stands before a block, unless something is in front.
  // (Blanks that begin a line may be lost in front of one, line ends not.)
  const bool block = given.starts_with("{%") || given.starts_with("{{") || given.starts_with("{#");
  const bool line_end = given.starts_with('\n') || given.starts_with('\r');
  if (!given.empty() && !block && (line_end || !is_blank(given[0]))) source = "{{''}}";
  for (std::size_t i = 0; i < given.size(); ++i) {  // as Python reads text files
    if (given[i] != '\r') {
      source += given[i];
    } else if (i + 1 == given.size() || given[i + 1] != '\n') {
      source += '\n';
    }
  }
  jinja::lexer_result read;
  try {
    read = jinja::lexer().tokenize(source);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    fail_to_split(error.what());
  }
  check_tokens(read.tokens, source);
  refuse_chains(read.tokens, source);
  try {
    jinja::program program = jinja::parse_from_tokens(read);
    guard(program, read.source);
    return program;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    fail_to_parse(read, error.what());
  }
}

template <class Work>
void define(Names& names, const char* name, const Work& work) {
  names.set(name, jinja::mk_val<Function>(name, work));
}

std::int64_t whole(const Value& value) {
  if (!is_number(value) || jinja::is_val<jinja::value_float>(value)) {
    fail("range() is given " + kind_of(value) + "; expected a whole number");
  }
  return value->as_int();
}

Value range(const jinja::func_args& arguments) {
  arguments.ensure_count(1, 3);
  const bool one = arguments.count() == 1;
  const std::int64_t begin = one ? 0 : whole(arguments.get_pos(0));
  const std::int64_t end = whole(arguments.get_pos(one ? 0 : 1));
  const std::int64_t step = arguments.count() == 3 ? whole(arguments.get_pos(2)) : 1;
  if (step == 0) fail("range() is given a step of 0");
  std::vector<Value> items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    items.push_back(jinja::mk_val<jinja::value_int>(i));
    if (static_cast<std::int64_t>(items.size()) > max_range) {
      fail(fmt::format("range() has more than {} numbers", max_range));
    }
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return jinja::mk_val<jinja::value_array>(std::move(items));
}

Value name_space(const jinja::func_args& arguments) {
  auto made = jinja::mk_val<Namespace>();
  made->has_builtins = false;
  for (const Value& value : arguments.get_args()) {
    const auto* named = jinja::cast_val<jinja::value_kwarg>(value);
    if (named == nullptr) fail("namespace() is given a value without a name");
    if (jinja::is_val<Namespace>(named->val)) fail("it puts a namespace into another");
    insert(*made, text_value(named->key), named->val);
  }
  return made;
}

Value dictionary(const jinja::func_args& arguments) {
  auto made = jinja::mk_val<jinja::value_object>();
  for (const Value& value : arguments.get_args()) {
    const auto* named = jinja::cast_val<jinja::value_kwarg>(value);
    if (named == nullptr) fail("dict() is given a value without a name, which is not implemented");
    if (jinja::is_val<Namespace>(named->val)) fail("it puts a namespace into an object");
    insert(*made, text_value(named->key), named->val);
  }
  go_through(made);
  return made;
}

Value time_text(const jinja::func_args& arguments) {
  arguments.ensure_count(1, 1);
  const std::string format = text_of(arguments.get_pos(0));
  std::array<char, 1024> buffer = {};
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  if (format.size() > 200) fail("strftime_now() is given a format of more than 200 bytes");
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &local);
  return text_value(std::string(buffer.data(), size));
}

void define_globals(Names& names) {
  for (const char* name : {"true", "True"}) names.set(name, jinja::mk_val<jinja::value_bool>(true));
  for (const char* name : {"false", "False"}) {
    names.set(name, jinja::mk_val<jinja::value_bool>(false));
  }
  for (const char* name : {"none", "None"}) names.set(name, jinja::mk_val<jinja::value_none>());
  define(names, "range", range);
  define(names, "namespace", name_space);
  define(names, "dict", dictionary);
  define(names, "strftime_now", time_text);
  define(names, "raise_exception", [](const jinja::func_args& arguments) -> Value {
    arguments.ensure_count(1, 1);
    throw TemplateFailure{text_of(arguments.get_pos(0)), 0, true};
  });
}

using Json = nlohmann::ordered_json;

Value value_of(const Json& json) {
  switch (json.type()) {
    case Json::value_t::string:
      return text_value(json.get<std::string>());
    case Json::value_t::boolean:
      return jinja::mk_val<jinja::value_bool>(json.get<bool>());
    case Json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() > std::uint64_t{INT64_MAX}) {
        fail("it is given a whole number beyond 64 bits");
      }
      [[fallthrough]];
    case Json::value_t::number_integer:
      return jinja::mk_val<jinja::value_int>(json.get<std::int64_t>());
    case Json::value_t::number_float:
      return fraction_value(json.get<double>());
    case Json::value_t::array: {
      auto list = jinja::mk_val<jinja::value_array>();
      for (const Json& item : json) list->push_back(value_of(item));
      return list;
    }
    case Json::value_t::object: {
      auto object = jinja::mk_val<jinja::value_object>();
      for (const auto& [key, item] : json.items()) {
        insert(*object, text_value(key), value_of(item));
      }
      return object;
    }
    default:
      return jinja::mk_val<jinja::value_none>();
  }
}

void define_input(Names& names, const TemplateInput& input) {
  names.set("tools", jinja::mk_val<jinja::value_none>());
  names.set("documents", jinja::mk_val<jinja::value_none>());
  for (const auto& [name, text] : input.texts) names.set(name, text_value(text));
  for (const auto& [name, value] : input.variables.items()) names.set(name, value_of(value));
  names.set("messages", value_of(input.messages));
  names.set("add_generation_prompt", jinja::mk_val<jinja::value_bool>(input.add_generation_prompt));
}

std::size_t bytes_of(const Json& json) {
  constexpr std::size_t of_value = 8;
  if (json.is_string()) return of_value + json.get_ref<const std::string&>().size();
  std::size_t bytes = of_value;
  if (json.is_object()) {
    for (const auto& [key, item] : json.items()) bytes += key.size() + bytes_of(item);
  } else if (json.is_array()) {
    for (const Json& item : json) bytes += bytes_of(item);
  }
  return bytes;
}

std::size_t bytes_of(const TemplateInput& input) {
  std::size_t bytes = bytes_of(input.messages) + bytes_of(input.variables);
  for (const auto& [name, text] : input.texts) bytes += name.size() + text.size();
  return bytes;
}

}  // namespace

void check_template(std::string_view source) {
  on_stack(stack_bytes, [&] {
    const Meter meter(0, 0, stack_limit);
    parse(source);
  });
}

std::string render_template(std::string_view source, const TemplateInput& input) {
  std::string text;
  on_stack(stack_bytes, [&] {
    const Meter meter(input.messages.size(), bytes_of(input), stack_limit);
    const jinja::program program = parse(source);
    Names names;
    const Scope scope(names, nullptr);
    define_globals(names);
    define_input(names, input);
    try {
      run_body(program.body, names, text);
    } catch (const LoopEnd& end) {
      fail(fmt::format("it has a {} outside of a loop", end.stops ? "break" : "continue"));
    }
  });
  return text;
}

}  // namespace topkv
