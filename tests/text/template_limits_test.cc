// What chat templates may take: all that grows with a text, a list or the names in sight counts as
// steps, whatever the template does with it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/long_texts.h"
#include "tests/support/temp_directory.h"
#include "topkv/chat_template.h"
#include "topkv/error.h"

namespace topkv {
namespace {

std::string rendered(const std::string& source) {
  const TempDirectory work;
  work.write("chat_template.jinja", source);
  const std::vector<ChatMessage> messages = {{"user", ""}};
  return ChatTemplate::load(work.path()).render(messages, true);
}

/// An object whose last entry is set again and again.
std::string entries() {
  std::string text = "{";
  for (int i = 0; i < 200; ++i) text += std::to_string(i) + ": 1, ";
  return text + times(200, "199: 1, ") + "1: 1}";
}

/// Takes most of the steps there are, in little time.
const std::string most_steps =
    "{% for i in range(35) %}{% set o = " + entries() + " %}{% endfor %}";

/// What is done twenty times is too much, and once is not.
void expect_counted(const std::string& before, const std::string& done) {
  SCOPED_TRACE(done.substr(0, 100));
  EXPECT_NO_THROW(rendered(most_steps + before + done));
  expect_error<FileError>(
      [&] { rendered(most_steps + before + "{% for i in range(20) %}" + done + "{% endfor %}"); },
      "", {"line 1: it takes too many steps"});
}

class Reading : public ::testing::TestWithParam<const char*> {};

TEST_P(Reading, OfATextTakesSteps) {
  expect_counted("{% set a = 'x' * 9000000 %}{% set b = 'x' * 9000000 %}", GetParam());
}

INSTANTIATE_TEST_SUITE_P(Texts, Reading,
                         ::testing::Values("{{ a|int }}", "{{ a|float }}", "{{ a < b }}",
                                           "{{ a == b }}", "{{ a is eq(b) }}", "{{ b in a }}",
                                           "{{ b in [a] }}",
                                           "{{ [b]|select('in', [a])|list|length }}",
                                           "{{ a.startswith(b) }}", "{{ messages[0][a] }}",
                                           "{{ a.split('y') is string }}",
                                           "{{ [messages[0]]|map(attribute=a)|list|length }}"));

TEST(TemplateLimits, AWordThatIsReadTakesAStep) {
  const auto expect = [](const std::string& words) {
    expect_counted("", "{% for i in range(30) %}{% if " + words + " %}{% endif %}{% endfor %}");
  };
  expect("true" + times(2400, " and true"));
  expect("true" + times(2400, " or true"));
  expect("1" + times(2400, " and 'x'"));
  expect(times(4800, "not ") + "1");
}

TEST(TemplateLimits, ALongNameTakesStepsWhereverItIsLookedFor) {
  expect_counted(
      "", "{% for j in range(200) %}{% if " + times(100'000, "n") + " %}{% endif %}{% endfor %}");
}

TEST(TemplateLimits, EntriesOfAnObjectTakeStepsAsTheyAreComparedWith) {
  expect_counted("", "{% set x = " + entries() + " %}");
}

TEST(TemplateLimits, ScopesWithinScopesAreCounted) {
  const auto expect = [](const char* what, const std::string& source) {
    expect_error<FileError>([&] { rendered(source); }, "", {what});
  };
  std::string names;
  for (int i = 0; i < 4900; ++i) names += "{% set a" + std::to_string(i) + " = 1 %}";
  expect("too deeply", "{% macro m() %}" + names + "{{ m() }}{% endmacro %}{{ m() }}");
  expect("too deeply",
         "{% macro m() %}{% for i in [1] %}{{ m() }}{% endfor %}{% endmacro %}{{ m() }}");
  // Each sees the names of those that called it.
  expect("too many steps",
         "{% for i in [1] %}{% macro m() %}{{ q }}{{ m() }}{% endmacro %}{{ m() }}{% endfor %}");
}

// Quadratic where they are copied: ten thousand rounds of 19,200 names.
TEST(TemplateLimits, NamesAreNotCopiedForARoundOrACall) {
  EXPECT_EQ(
      rendered(many_names() + "{% macro m() %}{{ a0 }}{% endmacro %}{% for i in range(10000) %}"
                              "{% if loop.last %}{{ m() }}{{ h2399 }}{% endif %}{% endfor %}"),
      "xx");
}

TEST(TemplateLimits, SeparatorsAreFoundInATimeThatGrowsWithBothTexts) {
  // They differ in the last letter: the product of both sizes would take hours.
  EXPECT_EQ(rendered("{% set a = 'x' * 4000000 %}{% set b = 'x' * 2000000 ~ 'y' %}"
                     "{{ a.split(b)|length }}{{ a.rsplit('y' ~ b)|length }}"
                     "{{ a.replace(b, '') == a }}{{ b in a }}"
                     "{{ a.strip('y' * 100000 ~ 'x')|length }}"),
            "11TrueFalse0");
}

TEST(TemplateLimits, MethodsThatCountGiveWhatPythonGives) {
  for (const auto& [source, text] : std::vector<std::pair<const char*, const char*>>{
           {"{{ 'a,b,,c'.rsplit(',', 1)|tojson }}{{ 'a,b'.rsplit(',')|tojson }}",
            R"(["a,b,", "c"]["a", "b"])"},
           {"{{ 'aaa'.rsplit('aa')|tojson }}{{ 'é--ü'.rsplit('-', 1)[0] }}", R"(["a", ""]é-)"},
           {"{{ '{}-{}'.format('a', 1) }}{{ ''.format() }}{{ 'x'.format(1) }}", "a-1x"},
           {"{{ [1, 2]|length }}{{ 'é'|length }}{{ {'a': 1}|length }}{{ q|length }}", "2110"},
           {"{{ [1, 2]|last }}{{ [1, 2]|first }}{{ 'ab'|last }}{{ []|first is defined }}",
            "21bFalse"},
           {"{{ 'a' in 'ab' }}{{ 'b' in {'a': 1} }}{{ 1 in [2, 1] }}{{ 'a' in q }}",
            "TrueFalseTrueFalse"},
           {"{{ ['b', 'A', 'a']|sort|tojson }}{{ {'k': [1, none, '\"é\\n']}|tojson }}",
            R"(["A", "a", "b"]{"k": [1, null, "\"é\n"]})"},
           {"{{ [1, {'a': 'é'}]|tojson(indent=2, ensure_ascii=true) }}",
            "[\n  1,\n  {\n    \"a\": \"\\u00e9\"\n  }\n]"},
           {"{{ [1, 2]|tojson(separators=(',', ':')) }}", "[1,2]"},
           {"{{ [1.5, 2.0, -0.1, 0.00001, 0.0000001, 5]|tojson }}", "[1.5, 2.0, -0.1, 1e-05, 1e-07, 5]"},
           {"{{ {'a': [], 'b': {}, 'c': ['\U0001F600\x7f\x01', true]}|tojson(indent=1, ensure_ascii=true) }}",
            "{\n \"a\": [],\n \"b\": {},\n \"c\": [\n  \"\\ud83d\\ude00\\u007f\\u0001\",\n  true\n ]\n}"},
           {"{% set x = 1 %}{% for x in [2] if x == 2 %}{{ x }}{% set x = 3 %}{{ x }}{% endfor "
            "%}{{ x }}",
            "231"},
           {"{# a #}x{# b #}{% generation %}y{% endgeneration %}", "xy"}}) {
    EXPECT_EQ(rendered(source), text) << source;
  }
}

// A conversation of many short messages has its share of steps for each.
TEST(TemplateLimits, ManyShortMessagesRender) {
  std::vector<ChatMessage> turns;
  for (int i = 0; i < 10'001; ++i) turns.push_back({i % 2 == 0 ? "user" : "assistant", "hi"});
  for (const char* name : {"qwen3", "mistral", "glm4", "oddities"}) {
    const auto chat =
        ChatTemplate::load(std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/chat" / name);
    EXPECT_NO_THROW(chat.render(turns, true)) << name;
  }
}

}  // namespace
}  // namespace topkv
