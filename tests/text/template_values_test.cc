// Chat templates hold to jinja2 where Python decides: what texts are as numbers, and which names a
// macro sees. Texts as jinja2 3.1 renders them.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/temp_directory.h"
#include "topkv/chat_template.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Cases = std::vector<std::pair<const char*, const char*>>;

std::string rendered(const char* source) {
  const TempDirectory work;
  work.write("chat_template.jinja", source);
  const std::vector<ChatMessage> messages = {{"user", ""}};
  return ChatTemplate::load(work.path()).render(messages, true);
}

void expect_rendered(const Cases& cases) {
  for (const auto& [source, text] : cases) EXPECT_EQ(rendered(source), text) << source;
}

TEST(ChatTemplate, TextsAreReadAsNumbersAsPythonDoes) {
  expect_rendered({
      {"{{ '5a'|int }},{{ '5a'|int(7) }},{{ '5a'|int(default=none) }}", "0,7,None"},
      {"{{ '5.7'|int }},{{ '-5.7'|int }},{{ '.5'|int }},{{ '5.'|int }},{{ '1e3'|int }}",
       "5,-5,0,5,1000"},
      {"{{ ' 5 '|int }},{{ '+5'|int }},{{ '- 5'|int }},{{ '--5'|int }},{{ '077'|int }}",
       "5,5,0,0,77"},
      {"{{ '0x1A'|int }},{{ '0x1A'|int(0, 16) }},{{ '1A'|int(base=16) }},{{ '0b11'|int(0, 2) }}",
       "0,26,26,3"},
      {"{{ '0o7'|int(0, 8) }},{{ '12'|int(0, 8) }},{{ '0x'|int(3, 16) }},{{ '1e5'|int(0, 16) }}",
       "7,10,3,485"},
      {"{{ '1_000'|int }},{{ '_1'|int }},{{ '1__0'|int }},{{ '1_0.5'|int }}", "1000,0,0,10"},
      {"{{ none|int }},{{ none|int(3) }},{{ ''|int }},{{ []|int }},{{ {}|int }},{{ true|int }}",
       "0,3,0,0,0,1"},
      {"{{ 5.7|int }},{{ -5.7|int }},{{ 'inf'|int }},{{ 'nan'|int }},{{ '1e'|int }}", "5,-5,0,0,0"},
      {"{{ '5a'|float }},{{ ' 5 '|float }},{{ '5.7'|float }},{{ none|float }},{{ '0x1A'|float }}",
       "0.0,5.0,5.7,0.0,0.0"},
      {"{{ '5a'|float(1.5) }},{{ '1e3'|float }},{{ true|float }},{{ []|float(2) }},{{ 3|float }}",
       "1.5,1000.0,1.0,2,3.0"},
  });
}

TEST(ChatTemplate, WhatIsNoNumberHereIsRefused) {
  const auto expect = [](const char* message, const char* source) {
    expect_error<FileError>([&] { rendered(source); }, "", {message});
  };
  expect("64 bits", "{{ '9223372036854775808'|int }}");
  expect("64 bits", "{{ '1e300'|int }}");
  expect("64 bits", "{{ '9.3e18'|float|int }}");
  expect("64 bits", "{{ '9.3e18'|float }}");
  expect("64 bits", "{{ '-9223372036854775808.0'|float }}");
  expect("64 bits", "{{ 66666666666666666666.5 is defined }}");
  expect("too large or small", "{{ '1e999'|float }}");
  expect("beyond ASCII", "{{ '\u0665'|int }}");
  expect("beyond ASCII", "{{ '\u0665'|float }}");
  expect("base", "{{ '5'|int(0, 0) }}");
  expect("base", "{{ '5'|int(0, 99) }}");
  expect("'y', which is undefined", "{{ y|int }}");
  expect("'y', which is undefined", "{{ y|float(3) }}");
}

TEST(ChatTemplate, MacrosSeeTheNamesOfTheTemplateNotThoseOfACaller) {
  expect_rendered({
      {"{% macro m() %}{{ x }}{{ loop }}{{ i }}{{ g }}{% endmacro %}{% set g = 3 %}"
       "{% for i in [1, 2] %}{% set x = 5 %}{{ m() }};{% endfor %}",
       "3;3;"},
      {"{% macro m() %}{{ g }}{% endmacro %}{% set g = 1 %}{{ m() }}{% set g = 2 %}{{ m() }}",
       "12"},
      {"{% macro o(p) %}{{ i() }}{% endmacro %}{% macro i() %}{{ p }}|{% endmacro %}{{ o(3) }}",
       "|"},
      {"{% macro m(a, b=g) %}{{ a }}{{ b }}{% endmacro %}{% set g = 5 %}{{ m(1) }}", "15"},
      {"{% set g = 1 %}{% macro m() %}{% set g = 9 %}{{ g }}{% endmacro %}{{ m() }}{{ g }}", "91"},
      {"{% if true %}{% set g = 4 %}{% macro m() %}{{ g }}{% endmacro %}{% endif %}{{ m() }}", "4"},
      {"{% for i in [1] %}{% macro m() %}{{ i }}{{ loop is defined }}{% endmacro %}{{ m() }}"
       "{% endfor %}",
       "1True"},
      {"{% macro o(p) %}{% macro i() %}{{ p }}|{% endmacro %}{{ i() }}{% endmacro %}{{ o(3) }}",
       "3|"},
  });
}

}  // namespace
}  // namespace topkv
