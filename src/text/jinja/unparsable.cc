#include "src/text/jinja/unparsable.h"

#include <fmt/format.h>
#include <jinja/parser.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "src/text/jinja/limits.h"

namespace topkv {
namespace {

/// What the engine says, and what that means to who wrote the template.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> unclear = {
    {{"stoll", "a number in it is too large"},
     {"stod", "a number in it is too large"},
     {"Unexpected token type", "a block in it has no end, or no beginning"},
     {"missing end of comment tag", "a comment in it has no #}"},
     {"unexpected end of input during consume_while", "a text in it has no closing quote"}}};

/// In one line, without what only the engine's authors know: "parser: Parser Error: Expected }}
/// (Got x)", "Unexpected token: %} of type 9".
std::string plain(std::string_view what) {
  std::string text(what.substr(0, what.find('\n')));
  for (const std::string_view head : {"parser: ", "lexer: ", "Parser Error: "}) {
    if (text.starts_with(head)) text.erase(0, head.size());
  }
  for (const auto& [engine, ours] : unclear) {
    if (text == engine) return std::string(ours);
  }
  if (const std::size_t type = text.rfind(" of type "); type != text.npos) text.erase(type);
  if (const std::size_t got = text.rfind(" (Got "); got != text.npos && text.ends_with(')'))
    text = fmt::format("{}, found '{}'", text.substr(0, got),
                       text.substr(got + 6, text.size() - got - 7));
  if (!text.empty() && text[0] >= 'A' && text[0] <= 'Z')
    text[0] = static_cast<char>(text[0] | 0x20);
  return text;
}

/// What the parser says of the first tokens; empty: they are a template.
std::string said_of(const jinja::lexer_result& read, std::size_t count) {
  const auto end = read.tokens.begin() + static_cast<std::ptrdiff_t>(count);
  try {
    jinja::parse_from_tokens({{read.tokens.begin(), end}, read.source});
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

/// Of a parser that came to the end, or met what looks so.
bool may_be_of_end(std::string_view what) {
  constexpr std::array<std::string_view, 4> ends = {"Unexpected token type", "Unexpected EOF",
                                                    "(Got )", "Unexpected token:  of"};
  return std::ranges::any_of(ends,
                             [&](std::string_view end) { return what.find(end) != what.npos; });
}

bool closes(const jinja::token& token) {
  return token.t == jinja::token::close_statement || token.t == jinja::token::close_expression ||
         token.t == jinja::token::text || token.t == jinja::token::comment;
}

struct Block {
  std::string name;
  std::size_t pos = 0;
};

/// Whether a statement, of which this is the first token, is `set` with its value behind it as a
/// block of its own.
bool sets_block(const std::vector<jinja::token>& tokens, std::size_t first) {
  if (tokens[first].value != "set") return false;
  for (std::size_t i = first; i < tokens.size(); ++i) {
    if (tokens[i].t == jinja::token::equals) return false;
    if (tokens[i].t == jinja::token::close_statement) return true;
  }
  return false;
}

/// Blocks that have no end, the outermost first.
std::vector<Block> open_blocks(const std::vector<jinja::token>& tokens) {
  constexpr std::array<std::string_view, 5> names = {"for", "if", "macro", "call", "filter"};
  std::vector<Block> open;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (tokens[i].t != jinja::token::open_statement) continue;
    const std::string& name = tokens[i + 1].value;
    if (std::ranges::find(names, name) != names.end() || sets_block(tokens, i + 1))
      open.push_back({name, tokens[i].pos});
    if (!open.empty() && name == "end" + open.back().name) open.pop_back();
  }
  return open;
}

[[noreturn]] void refuse(const std::string& what, std::int64_t line) {
  throw TemplateFailure{"it is no template: " + what, line};
}

}  // namespace

void fail_to_split(const std::string& what) { refuse(plain(what), 0); }

void fail_to_parse(const jinja::lexer_result& read, const std::string& what) {
  const auto line = [&](std::size_t pos) { return line_of(pos, read.source); };
  if (may_be_of_end(what)) {
    const std::vector<Block> open = open_blocks(read.tokens);
    if (!open.empty()) {
      refuse(fmt::format("the block {{% {} %}} has no {{% end{} %}}", open.back().name,
                         open.back().name),
             line(open.back().pos));
    }
    if (!read.tokens.empty() && !closes(read.tokens.back()))
      refuse("it ends within a block", line(read.tokens.back().pos));
  }
  // The parser goes from left to right: it says the same as soon as it has the token it stumbles
  // on.
  std::size_t parsed = 0;
  std::size_t failing = read.tokens.size();
  while (failing - parsed > 1) {
    const std::size_t middle = parsed + (failing - parsed) / 2;
    (said_of(read, middle) == what ? failing : parsed) = middle;
  }
  refuse(plain(what), failing == 0 ? 0 : line(read.tokens[failing - 1].pos));
}

}  // namespace topkv
