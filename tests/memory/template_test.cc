// What chat templates make is counted before it is made: what the heap holds at most while
// templates that would make gigabytes are refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/memory/counted_memory.h"
#include "tests/support/long_texts.h"
#include "tests/support/temp_directory.h"
#include "topkv/chat_template.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// The heap holds no more than `most` until the template is refused.
void expect_refused(const std::string& source, const char* why, std::int64_t most) {
  SCOPED_TRACE(source.substr(0, 100));
  const TempDirectory work;
  work.write("chat_template.jinja", source);
  const std::vector<ChatMessage> messages = {{"user", ""}};
  const auto chat = ChatTemplate::load(work.path());
  const ::test::HeapPeak peak;
  expect_error<FileError>([&] { chat.render(messages, true); }, work.path().string(), {why});
  EXPECT_LT(peak.bytes(), most);
}

constexpr std::int64_t mb = 1'000'000;

TEST(TemplateMemory, JsonIsCountedBeforeItIsMade) {
  expect_refused("{% set a = '\x01' * 20000000 %}{{ [a, a]|tojson }}", "too much text", 100 * mb);
  expect_refused("{% set a = 'é' * 20000000 %}{{ a|tojson(ensure_ascii=true) }}", "too much text",
                 150 * mb);
  expect_refused("{% set a = 'x' * 1000000 %}{{ range(1000)|list|tojson(separators=(a, a)) }}",
                 "too much text", 20 * mb);
}

TEST(TemplateMemory, WhatListsAreSortedByIsCountedBeforeItIsMade) {
  expect_refused("{% set a = 'x' * 20000000 %}{{ [a, a, a, a, a, a, a, a, a, a]|sort|length }}",
                 "too much text", 150 * mb);
}

TEST(TemplateMemory, PartsOfATextAreCountedBeforeTheyAreMade) {
  expect_refused("{% set a = 'x,' * 10000000 %}{{ a.rsplit(',')|length }}", "too much text",
                 200 * mb);
  expect_refused("{% set a = '\\n' * 30000000 %}{{ a|indent(1)|length }}", "too much text",
                 350 * mb);
}

TEST(TemplateMemory, TextsPutTogetherAreCountedBeforeTheyAreMade) {
  expect_refused(
      "{% set a = 'x' * 30000000 %}{{ ('{}' * 100).format(a" + times(99, ", a") + ")|length }}",
      "too much text", 250 * mb);
  expect_refused("{% set a = 'x' * 60000000 %}{{ (a ~ a)|length }}", "too much text", 200 * mb);
}

TEST(TemplateMemory, TextBetweenBlocksIsCountedRoundByRound) {
  expect_refused("{% for i in range(5000) %}" + times(200'000, "x") + "{% endfor %}",
                 "too much text", 400 * mb);
}

TEST(TemplateMemory, NamesOfWhatIsUndefinedAreKeptNoLongerThanMessagesShowThem) {
  expect_refused(
      "{% set a = 'x' * 1000000 %}{% set ns = namespace(l=[]) %}"
      "{% for i in range(100000) %}{% set ns.l = ns.l + [messages[0][a]] %}{% endfor %}",
      "too many steps", 100 * mb);
}

TEST(TemplateMemory, AMacroThatCallsItselfCopiesNoNames) {
  expect_refused(many_names() + "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deeply",
                 100 * mb);
}

}  // namespace
}  // namespace topkv
