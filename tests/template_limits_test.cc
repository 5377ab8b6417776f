// What chat templates may take: all that grows with a text, a list or the names in sight counts as
// steps, whatever the template does with it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/temp_directory.h"
#include "topkv/chat_template.h"
#include "topkv/error.h"

namespace topkv {
namespace {

std::string times(std::size_t count, const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out += text;
  return out;
}

std::string rendered(const std::string& source) {
  const TempDirectory work;
  work.write("chat_template.jinja", source);
  const std::vector<ChatMessage> messages = {{"user", "x"}};
  return ChatTemplate::load(work.path()).render(messages, true);
}

/// Takes most of the steps there are, in little time.
const std::string most_steps =
    "{% for i in range(170) %}{% if " + times(4800, "not ") + "1 %}{% endif %}{% endfor %}";

/// What is done twenty times is too much, and once is not.
void expect_counted(const std::string& before, const std::string& done) {
  SCOPED_TRACE(done.substr(0, 100));
  EXPECT_NO_THROW(rendered(most_steps + before + done));
  expect_error<FileError>(
      [&] { rendered(most_steps + before + "{% for i in range(20) %}" + done + "{% endfor %}"); },
      "", {"line 1: it takes too many steps"});
}

TEST(TemplateLimits, AWordThatIsReadTakesAStep) {
  for (const std::string word : {" and true", " or true", " and 1", " and 'x'", " and q"}) {
    const std::string words = "true" + times(2400, word);
    const std::string round = "{% if " + words + " %}{% endif %}";
    expect_error<FileError>(
        [&] { rendered("{% for i in range(1000) %}" + round + "{% endfor %}"); }, "",
        {"too many steps"});
    EXPECT_NO_THROW(rendered("{% for i in range(9) %}" + round + "{% endfor %}")) << word;
  }
  expect_error<FileError>(
      [] { rendered("{% for i in range(1000) %}{{ " + times(4800, "not ") + "1 }}{% endfor %}"); },
      "", {"too many steps"});
}

TEST(TemplateLimits, ALongNameTakesStepsWhereverItIsLookedFor) {
  expect_counted(
      "", "{% for j in range(200) %}{% if " + times(100'000, "n") + " %}{% endif %}{% endfor %}");
}

TEST(TemplateLimits, EntriesOfAnObjectTakeStepsAsTheyAreComparedWith) {
  std::string many;
  for (int i = 0; i < 200; ++i) many += std::to_string(i) + ": 1, ";
  expect_counted("", "{% set x = {" + many + times(200, "199: 1, ") + "1: 1} %}");
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
  std::string names;
  for (const char block : std::string("abcdefgh")) {
    names += "{% set ";
    for (int i = 0; i < 2400; ++i) names += (i > 0 ? "," : "") + (block + std::to_string(i));
    names += " = 'x' * 2400 %}";
  }
  EXPECT_EQ(rendered(names + "{% macro m() %}{{ a0 }}{% endmacro %}{% for i in range(10000) %}"
                             "{% if loop.last %}{{ m() }}{{ h2399 }}{% endif %}{% endfor %}"),
            "xx");
}

}  // namespace
}  // namespace topkv
