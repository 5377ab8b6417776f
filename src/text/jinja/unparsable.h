// What is wrong with a template that the engine cannot parse, and on which line: the engine tells
// what it met, in words of its own, and where in few cases only.
#pragma once

#include <jinja/lexer.h>

#include <string>

namespace topkv {

/// what: of the engine's exception. Throws TemplateFailure.
[[noreturn]] void fail_to_split(const std::string& what);

/// The same for what the parser threw, of these tokens; it is asked again about fewer of them.
[[noreturn]] void fail_to_parse(const jinja::lexer_result& read, const std::string& what);

}  // namespace topkv
