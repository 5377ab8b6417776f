// Chat templates against transformers: tests/fixtures/chat holds what its apply_chat_template
// (tools/make_chat_fixtures.py) made of conversations, with templates in the manner of known models.
#include "topkv/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/gguf_writer.h"
#include "tests/support/long_texts.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/tokenizer.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

const std::filesystem::path fixtures =
    std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures";

Json read(const std::filesystem::path& file) {
  std::ifstream in(file);
  return Json::parse(in);
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

std::vector<ChatMessage> conversation_of(const Json& messages) {
  std::vector<ChatMessage> out;
  for (const Json& message : messages) {
    out.push_back({message["role"].get<std::string>(), message["content"].get<std::string>()});
  }
  return out;
}

/// The tokenizer of the fixtures with the templates' special tokens behind its own.
Tokenizer tokenizer_with(const Json& special, const std::filesystem::path& folder) {
  Json file = read(fixtures / "tokenizer/qwen2.json");
  std::int64_t id = file["added_tokens"].back()["id"].get<std::int64_t>();
  for (const Json& content : special) {
    const auto& known = file["added_tokens"];
    const bool there = std::any_of(known.begin(), known.end(),
                                   [&](const Json& token) { return token["content"] == content; });
    if (there) continue;
    file["added_tokens"].push_back({{"id", ++id},
                                    {"content", content},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  }
  write(folder / "tokenizer.json", file.dump());
  return Tokenizer::load(folder / "tokenizer.json");
}

TEST(ChatTemplate, RendersWhatTransformersRendersTextForTextAndTokenForToken) {
  const TempDirectory work;
  const Json all = read(fixtures / "chat/cases.json");
  const Tokenizer tokenizer = tokenizer_with(all["special"], work.path());
  std::map<std::string, ChatTemplate> templates;
  std::map<std::string, int> dropped;
  for (const Json& expected : all["cases"]) {
    const auto name = expected["template"].get<std::string>();
    if (!templates.contains(name)) {
      templates.emplace(name, ChatTemplate::load(fixtures / "chat" / name));
    }
    SCOPED_TRACE(name + " with conversation " + expected["conversation"].dump());
    const auto messages =
        conversation_of(all["conversations"][expected["conversation"].get<std::size_t>()]);
    const bool prompt = expected["add_generation_prompt"].get<bool>();
    if (expected.contains("refused")) {
      try {
        templates.at(name).render(messages, prompt);
        ADD_FAILURE() << "rendered what transformers refuses";
      } catch (const InvalidArgument& error) {
        const auto message = expected["refused"].get<std::string>();
        EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
      }
      continue;
    }
    std::string text;
    try {
      text = templates.at(name).render(messages, prompt);
    } catch (const InvalidArgument& error) {
      // One template drops messages, on purpose: those behind the fourth.
      const std::string message = error.what();
      EXPECT_NE(message.find("leaves out message 4 "), std::string::npos) << message;
      EXPECT_GT(messages.size(), 4U);
      ++dropped[name];
      continue;
    }
    ASSERT_EQ(text, expected["text"].get<std::string>());
    ASSERT_EQ(tokenizer.encode(text), expected["tokens"].get<std::vector<Token>>());
  }
  EXPECT_EQ(templates.size(), 12U);
  EXPECT_EQ(dropped, (std::map<std::string, int>{{"macros", 2}}));
}

TEST(ChatTemplate, OfAGgufFileIsThatOfTheDirectory) {
  const TempDirectory work;
  const std::vector<ChatMessage> messages = {{"user", "Who?"}, {"assistant", "She."}, {"user", "?"}};
  for (const std::string name : {"llama3", "qwen2.5", "mistral", "chatml"}) {
    SCOPED_TRACE(name);
    const std::filesystem::path folder = fixtures / "chat" / name;
    const Json config = read(folder / "tokenizer_config.json");
    const auto text_of = [&](const char* key) {
      const Json token = config.value(key, Json());
      return token.is_object() ? token["content"].get<std::string>()
                               : token.is_string() ? token.get<std::string>() : std::string();
    };
    gguf::File file;
    const std::string source = read_file(folder / "chat_template.jinja");
    file.set(gguf::words("tokenizer.chat_template", source));
    file.set(gguf::texts("tokenizer.ggml.tokens", {"a", text_of("bos_token"), text_of("eos_token")}));
    if (!text_of("bos_token").empty()) file.set(gguf::number("tokenizer.ggml.bos_token_id", 1));
    if (!text_of("eos_token").empty()) file.set(gguf::number("tokenizer.ggml.eos_token_id", 2));
    const auto path = work.write("model.gguf", file.content());
    EXPECT_EQ(ChatTemplate::load(path).source(), source);
    EXPECT_EQ(ChatTemplate::load(path).render(messages, true),
              ChatTemplate::load(folder).render(messages, true));
    file.set(gguf::number("tokenizer.ggml.eos_token_id", 3));
    work.write("model.gguf", file.content());
    expect_error<FileError>([&] { ChatTemplate::load(path); }, path.string() + ": ",
                            {"eos_token_id is 3", "0 to 2"});
    file.set(gguf::words("tokenizer.chat_template", "{{ \xff }}"));
    work.write("model.gguf", file.content());
    expect_error<FileError>([&] { ChatTemplate::load(path); }, path.string() + ": ", {"UTF-8"});
    file.erase("tokenizer.chat_template");
    work.write("model.gguf", file.content());
    expect_error<FileError>([&] { ChatTemplate::load(path); }, path.string() + ": ",
                            {"no chat template", "plain prompt"});
  }
}

TEST(ChatTemplate, IsLookedForWhereTransformersLooks) {
  const TempDirectory work;
  const std::vector<ChatMessage> messages = {{"user", ""}};
  const auto found = [&] { return ChatTemplate::load(work.path()).render(messages, false); };
  EXPECT_THROW(found(), FileError);
  write(work.path() / "tokenizer_config.json", R"({"chat_template": "config", "eos_token": "E"})");
  EXPECT_EQ(found(), "config");
  write(work.path() / "tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "tools"},
                              {"name": "default", "template": "{{ eos_token }}"}],
            "eos_token": "E", "image_token": "I", "odd_token": 3})");
  EXPECT_EQ(found(), "E");
  write(work.path() / "special_tokens_map.json", R"({"eos_token": {"content": "M"}})");
  EXPECT_EQ(found(), "M");
  write(work.path() / "additional_chat_templates/rag.jinja", "rag");
  EXPECT_THROW(found(), FileError);
  write(work.path() / "chat_template.jinja", "file {{ image_token }}{{ odd_token }}\n");
  EXPECT_EQ(found(), "file I");
  write(work.path() / "additional_chat_templates/default.jinja", "more");
  EXPECT_EQ(found(), "more");
}

// What the engine, or a wrapper of it, once made another text of.
TEST(ChatTemplate, RendersWhatPythonSlicesAndWhatStandsBeforeABlock) {
  const TempDirectory work;
  const std::vector<ChatMessage> messages = {{"user", ""}, {"assistant", ""}};
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"{{ 'abc'[:-1:-1] }}.", "."},
      {"{{ 'abc'[::-1] }}", "cba"},
      {"{{ messages[2:-1:-1]|length }}", "0"},
      {"{{ 'abc'[-2:] }}", "bc"},
      {"{{ 'abc'[none:-1] }}", "ab"},
      {"a{%- if true %}b{% endif %}", "ab"},
      {"x   {% if true %}b{% endif %}", "x   b"},
      {"x {#- c #}d", "xd"},
      {"{ {% if true %}b{% endif %}", "{ b"},
      {"  {% if true %}b{% endif %}", "b"},
      {"a\nb", "a\nb"},
      {"\n{% if true %}b{% endif %}", "\nb"},
      {"\r\n  {% if true %}b{% endif %}", "\nb"},
      {"\n{# c #}a", "\na"},
      {"{% for m in messages %}{% if m.role == 'user' %}S{{ m.content }}{% continue %}{% endif %}"
       "{{ m.role }}{% endfor %}",
       "Sassistant"},
      {"{% for i in range(4) %}{% if i == 0 %}A{% elif i == 1 %}B{% continue %}{% else %}"
       "{% if true %}C{% break %}{% endif %}{% endif %}D{% endfor %}",
       "ADBC"},
      {"{{ messages == messages[:] }}{{ messages != messages[1:] }}", "TrueTrue"},
      {"{{ {'a': 1, 'b': [2]} == {'b': [2], 'a': 1} }}{{ [[1]] in [[[1]]] }}", "TrueTrue"},
      {"{{ [1, 2] == (1, 2) }}{{ namespace(a=1) == namespace(a=1) }}{{ 1 == true }}{{ 1 == 1.0 }}",
       "FalseFalseTrueTrue"},
      {"{{ messages|selectattr('tool', 'ne', none)|list|length }}", "2"},
      {"{{ none is ne 'a' }}{{ true is eq(1) }}{{ 2 is gt(1) }}{{ 'a' is lt('b') }}",
       "TrueTrueTrueTrue"},
      {"{{ (1 < 2) == (3 < 4) }}{{ 1 < 2 and 2 < 3 }}{{ [1 < 2, 2 > 3] == [true, false] }}",
       "TrueTrueTrue"},
      {"{% for m in messages %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}", "1010"},
      {"{{ true is number }}{{ 1 is number }}{{ 'a' is number }}", "TrueTrueFalse"},
      {"{% for m in messages if m.role == 'user' and m.content in 'xyz' %}{{ m.role }}{% endfor %}",
       "user"},
  };
  for (const auto& [source, text] : cases) {
    write(work.path() / "chat_template.jinja", source);
    EXPECT_EQ(ChatTemplate::load(work.path()).render(messages, true), text) << source;
  }
}

/// The message of what a render is refused with.
std::string lost(const ChatTemplate& chat, const std::vector<ChatMessage>& messages,
                 const std::string& variables = {}) {
  try {
    return "rendered " + chat.render(messages, true, variables);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

ChatTemplate fixture(const char* name) { return ChatTemplate::load(fixtures / "chat" / name); }

TEST(ChatTemplate, RendersToolsAndVariablesAsTransformersDoesOrRefusesToLoseThem) {
  std::ifstream in(fixtures / "chat/cases.json");
  const auto all = nlohmann::ordered_json::parse(in);  // the order of keys counts
  std::map<std::string, int> rendered;
  for (const auto& expected : all["tool_cases"]) {
    const auto name = expected["template"].get<std::string>();
    const auto number = expected["tool_case"].get<std::size_t>();
    SCOPED_TRACE(name + " with conversation " + std::to_string(number));
    const auto& conversation = all["tool_conversations"][number];
    std::vector<ChatMessage> messages;
    for (auto message : conversation["messages"]) {
      ChatMessage& one = messages.emplace_back();
      one.role = message["role"].get<std::string>();
      one.content = message["content"].get<std::string>();
      message.erase("role");
      message.erase("content");
      if (!message.empty()) one.fields = message.dump();
    }
    const auto chat = fixture(name.c_str());
    try {
      const std::string text = chat.render(messages, true, conversation["variables"].dump());
      ASSERT_TRUE(expected.contains("text")) << "rendered what transformers refuses";
      ASSERT_EQ(text, expected["text"].get<std::string>());
      ++rendered[name];
    } catch (const Error& error) {
      const std::string message = error.what();
      const bool loses = message.find("leaves out") != std::string::npos ||
                         message.find("does not use") != std::string::npos;
      EXPECT_TRUE(loses || expected.contains("refused")) << message;
    }
  }
  EXPECT_EQ(rendered["qwen3_tools"], 6);  // two have variables of other templates
  EXPECT_EQ(rendered["gpt_oss"], 5);
  EXPECT_EQ(rendered["qwen2.5"], 4);
  EXPECT_EQ(rendered["llama3"], 1);  // it was cut down: it takes tools in the system message alone
}

// Templates drop such messages in silence, and a client cannot see it.
TEST(ChatTemplate, AMessageThatDoesNotReachTheTextIsAnError) {
  const auto qwen = fixture("qwen2.5");
  for (const char* role : {"usr", "critic", "User", ""}) {
    const std::string message = lost(qwen, {{"user", "a"}, {role, "secret"}, {"user", "b"}});
    EXPECT_NE(message.find("leaves out message 1 "), std::string::npos) << message;
    EXPECT_NE(message.find(std::string("the role \"") + role + "\""), std::string::npos) << message;
  }
  // Contents that are elsewhere in the text, or twice, are lost all the same.
  EXPECT_NE(lost(qwen, {{"user", "a"}, {"x", "user"}}).find("message 1"), std::string::npos);
  EXPECT_NE(lost(qwen, {{"user", "a"}, {"x", "a"}, {"user", "a"}}).find("message 1"),
            std::string::npos);
  const std::vector<ChatMessage> nothing = {{"user", "a"}, {"x", " \n"}, {"user", "b"}};
  EXPECT_NO_THROW(qwen.render(nothing, true)) << "white space is nothing to lose";
  // What templates do to contents that they have: trimmed, moved, thinking taken out.
  const std::vector<ChatMessage> thought = {
      {"system", " s "}, {"user", " a\n"}, {"assistant", "<think>\nwhy\n</think>\n\nb"}, {"user", "c"}};
  for (const char* name : {"qwen3", "llama3", "mistral", "glm4"})
    EXPECT_NO_THROW(fixture(name).render(thought, true)) << name;
}

TEST(ChatTemplate, ADeveloperIsASystemWhereTheTemplateDoesNotNameIt) {
  const TempDirectory work;
  for (const char* name : {"qwen2.5", "qwen3", "llama3", "chatml"}) {
    const auto chat = fixture(name);
    const std::vector<ChatMessage> developer = {{"developer", "Be brief."}, {"user", "a"}};
    const std::vector<ChatMessage> system = {{"system", "Be brief."}, {"user", "a"}};
    EXPECT_EQ(chat.render(developer, true), chat.render(system, true)) << name;
  }
  write(work.path() / "chat_template.jinja",
        "{% for m in messages %}{% if m.role == 'developer' %}D{% endif %}{{ m.content }}{% endfor %}");
  const std::vector<ChatMessage> developer = {{"developer", "x"}};
  EXPECT_EQ(ChatTemplate::load(work.path()).render(developer, true), "Dx");
}

TEST(ChatTemplate, ToolsAndTheirCallsAreRenderedOrRefused) {
  const std::string tools =
      R"({"tools": [{"type": "function", "function": {"name": "weather", "description": "of a place", "parameters": {"type": "object"}}}]})";
  const ChatMessage call = {
      "assistant", "",
      R"({"tool_calls": [{"id": "123456789", "type": "function", "function": {"name": "weather", "arguments": {"z": 1, "a": "Rome"}}}]})"};
  const ChatMessage result = {"tool", "21 degrees", R"({"tool_call_id": "123456789"})"};
  const auto qwen = fixture("qwen2.5");
  const std::string text = qwen.render(std::vector{ChatMessage{"user", "Warm?"}, call, result}, true, tools);
  EXPECT_NE(text.find(R"(<tools>
{"type": "function", "function": {"name": "weather", "description": "of a place", "parameters": {"type": "object"}}}
</tools>)"), std::string::npos) << text;
  EXPECT_NE(text.find(R"(<tool_call>
{"name": "weather", "arguments": {"z": 1, "a": "Rome"}}
</tool_call><|im_end|>)"), std::string::npos) << text;
  EXPECT_NE(text.find("<tool_response>\n21 degrees\n</tool_response>"), std::string::npos) << text;
  // These write no calls, and no results.
  EXPECT_NE(lost(fixture("chatml"), {{"user", "a"}, call}).find("leaves out tool call 0 of message 1"),
            std::string::npos);
  EXPECT_NE(lost(fixture("qwen3"), {{"user", "a"}, result}).find("leaves out message 1"), std::string::npos);
  EXPECT_NE(lost(fixture("chatml"), {{"user", "a"}}, tools).find("does not use \"tools\""), std::string::npos);
  const TempDirectory work;
  write(work.path() / "chat_template.jinja",
        "{% if tools %}T{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_NE(lost(ChatTemplate::load(work.path()), {{"user", "a"}}, tools).find("leaves out tool 0"),
            std::string::npos);
}

TEST(ChatTemplate, VariablesAndFieldsAreJsonObjectsThatTheTemplateUses) {
  const auto chat = fixture("qwen3");
  const std::vector<ChatMessage> user = {{"user", "a"}};
  EXPECT_TRUE(chat.render(user, true, R"({"enable_thinking": false})").ends_with("<think>\n\n</think>\n\n"));
  const std::vector<ChatMessage> thought = {
      {"user", "a"}, {"assistant", "b", R"({"reasoning_content": "because"})"}};
  EXPECT_NE(chat.render(thought, false).find("<think>\nbecause\n</think>\n\nb"), std::string::npos);
  for (const auto& [variables, part] : std::vector<std::pair<std::string, const char*>>{
           {"{", "valid JSON"},
           {"[1]", "not a JSON object"},
           {R"({"messages": []})", "which the conversation sets"},
           {R"({"enable_thinkin": true})", "does not use"},
           {R"({"enable_thinking": )" + times(99, "[") + times(99, "]") + "}", "64 deep"}}) {
    const std::string message = lost(chat, user, variables);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  std::string keys;
  for (int i = 0; i < 2000; ++i) keys += "\"" + std::to_string(i) + "\": 0, ";
  EXPECT_NE(lost(chat, user, R"({"enable_thinking": {)" + keys + R"("a": 1}})").find("more than 1024 keys"),
            std::string::npos);
  EXPECT_NE(lost(chat, {{"user", "a", R"({"role": "system"})"}}).find("others than role"), std::string::npos);
}

class Hostile : public ::testing::Test {
 protected:
  /// The message of the failure.
  std::string refused(const std::string& source, const std::string& content = "x") {
    write(work_.path() / "chat_template.jinja", source);
    const std::vector<ChatMessage> messages = {{"user", content}, {"assistant", "y"}};
    try {
      const std::string text = ChatTemplate::load(work_.path()).render(messages, true);
      ADD_FAILURE() << "rendered " << source.substr(0, 200) << " as " << text.substr(0, 200);
      return "";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      EXPECT_TRUE(message.starts_with(work_.path().string())) << message;
      return message;
    }
  }
  void expect(const std::string& part, const std::string& source) {
    const std::string message = refused(source);
    EXPECT_NE(message.find(part), std::string::npos) << source.substr(0, 200) << ": " << message;
  }
  TempDirectory work_;
};

TEST_F(Hostile, EndlessLoopsEnd) {
  expect("it ",
         "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
         "{% endfor %}{% endfor %}{% endfor %}");
  expect("more than 100000", "{{ range(9000000000000000000)|length }}");
  expect("more than 100000", "{{ range(0, -9000000000000000000, -1)|length }}");
  expect("it ", "{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}"
                           "{% endfor %}{% endfor %}");
}

TEST_F(Hostile, RecursionEnds) {
  expect("too deeply", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}");
  expect("too deeply",
         "{% macro f(x) %}{{ g(x) }}{% endmacro %}{% macro g(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}");
  expect("brackets", "{{ " + times(20000, "(") + "1" + times(20000, ")") + " }}");
  expect("brackets", "{{ " + times(50000, "[") + "1");
  expect("in one block", "{{ " + times(50000, "not ") + "1 }}");
  expect("in one block", "{{ 1" + times(50000, " + 1") + " }}");
  expect("in one block", "{{ x" + times(50000, ".x") + " }}");
  expect("statements", times(6000, "{% if 1 %}") + times(6000, "{% endif %}"));
  expect("statements", "{% if 0 %}" + times(20000, "{% elif 0 %}") + "{% endif %}");
  refused("{{ " + times(5000, "-") + "1 }}");
  refused("{% set x = [] %}{% for i in range(9999) %}{% set x = [x] %}{% endfor %}{{ x }}");
  expect("nested", "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}"
                   "{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}");
  refused("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns|tojson }}");
  refused("{% set ns = namespace() %}{% set ns.list = [ns] %}{{ ns|tojson }}");
  refused("{% set x = [] %}{{ x.append(x) }}{{ x|tojson }}");
  refused("{{ messages.append(messages) }}");
}

TEST_F(Hostile, WhatIsNestedWithinTheLimitsRenders) {
  const auto renders = [&](const std::string& source) {
    write(work_.path() / "chat_template.jinja", source);
    const std::vector<ChatMessage> messages = {{"user", ""}};
    EXPECT_NO_THROW(ChatTemplate::load(work_.path()).render(messages, true)) << source.substr(0, 99);
  };
  renders("{{ " + times(190, "(") + "1" + times(190, ")") + " }}");
  renders("{{ 1" + times(2400, " + 1") + " }}");
  renders(times(2400, "{% if 1 %}") + "x" + times(2400, "{% endif %}"));
  renders("{% if 0 %}" + times(4900, "{% elif 0 %}") + "{% endif %}");
  renders("{{ " + times(4900, "not ") + "1 }}");
}

TEST_F(Hostile, MemoryIsBounded) {
  expect("too much text", "{{ 'x' * 100000000000 }}");
  expect("too much text", "{{ ('x' * 100000) * 100000 }}");
  expect("too much text", "{{ 9223372036854775807 * 'xx' }}");
  expect("too much text", "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(99) %}"
                          "{% set ns.s = ns.s + ns.s %}{% endfor %}");
  expect("too much text", "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(99) %}"
                          "{% set ns.s = ns.s|replace('x', 'xxxx') %}{% endfor %}");
  expect("too", "{% set ns = namespace(x=[1, 2]) %}{% for i in range(99) %}"
                "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}");
  expect("too", "{% set ns = namespace(x=[1, 2]) %}{% for i in range(99) %}"
                "{% set ns.x = ns.x + ns.x %}{% endfor %}");
  expect("indents", "{{ 'x'|indent(9000000000000000000) }}");
  expect("indents", "{{ [1]|tojson(indent=2000000000) }}");
  expect("too", "{% set s = '\\n' * 100000 %}{% for i in range(9999) %}{% set t = s|indent(999) %}{% endfor %}");
  expect("too", "{% for a in range(99999) %}{% for b in range(9999) %}0123456789{% if a %}{{ 'x' * 99 }}"
                "{% endif %}{% endfor %}{% endfor %}");
  expect("bytes; expected at most", times(300 * 1024, "x"));
}

TEST_F(Hostile, ArithmeticEndsInMessages) {
  expect("divides by zero", "{{ 1 % 0 }}");
  expect("divides by zero", "{{ 1 / 0 }}");
  expect("divisibleby", "{{ 1 is divisibleby(0) }}");
  expect("divisibleby", "{{ [1]|select('divis' ~ 'ibleby', 0)|list }}");
  refused("{{ test_is_divisibleby(1, 0) }}");
  refused("{% set f = test_is_divisibleby %}{{ f(1, 0) }}");
  refused("{% call test_is_divisibleby(1, 0) %}{% endcall %}");
  expect("64 bits", "{{ 9223372036854775807 + 1 }}");
  expect("64 bits", "{{ 9223372036854775807 * 2 }}");
  refused("{{ 99999999999999999999999 }}");
  refused("{{ (1.0 * 9223372036854775807) * 9223372036854775807 * 1.5 }}");
  refused("{{ [1, 'a', 2.0]|sort }}");
}

// Python means a < b and b < c; the engine means (a < b) < c.
TEST_F(Hostile, ComparisonsInARowAreRefused) {
  for (const char* source :
       {"{{ 3 > 2 > 1 }}", "{{ 1 < 2 == true }}", "{{ 'a' in 'abc' == true }}",
        "{% if messages[0].role != 'user' != true %}{% endif %}",
        "{% for m in messages if m.role == 'a' == true %}{% endfor %}", "{{ f(1 < 2 < 3) }}"}) {
    EXPECT_NE(refused(source).find("more than two values in a row"), std::string::npos) << source;
  }
}

TEST_F(Hostile, SyntaxErrorsAndUndefinedNamesAreOneLineWithThePlace) {
  for (const char* source :
       {"{{", "{%", "{#", "{{ 'x", "{{ x", "{% if %}", "{% if x %}", "{% for %}", "{% for x in %}",
        "{% for x in y %}", "{% for 1 in [1] %}x{% endfor %}", "{% set %}", "{% set x %}",
        "{% set 1 = 2 %}", "{% macro %}", "{% macro f( %}", "{% endif %}", "{% unknown %}",
        "{{ 'a\\q' }}", "{{ x | }}", "{{ x is }}", "{{ [1, }}", "{{ {1: } }}", "{{ x[ }}", "{{ x[: }}",
        "{{ x[:::] }}", "{{ ) }}", "{{ 1 1 }}", "{% break %}", "{{ f(*messages) }}",
        "{% for a, b, c in [[1]] %}{% endfor %}", "{{ messages[0].content.nothing.more }}",
        "{{ 1|nofilter }}", "{{ 1 is notest }}", "{{ unknown() }}", "{{ unknown.part }}",
        "{{ 'a' + 1 }}", "{{ 'a' + none }}", "{{ 'a' < 1 }}", "{{ messages }}", "{{ range }}",
        "{{ messages.pop() }}", "{{ {'a': 1}.update(b=2) }}", "{{ ''.__class__.__mro__ }}",
        "{{ (1).real.imag }}", "{% set messages.x = 1 %}", "{{ 'é'|upper }}", "{{ raise_exception() }}",
        "{{ {[]: 1} }}", "{{ {messages: 1} }}", "{{ 'abc'.startswith('b', 1) }}",
        "{{ 'abcabc'.endswith('b', 0, 5) }}", "{{ ['b', 'a', 'C']|max }}", "{{ ['b', 'C']|min }}"}) {
    SCOPED_TRACE(source);
    refused(source);
  }
  expect(", line 3: it asks for a part of 'unknown', which is undefined",
         "one\n{# two #}\n{{ unknown.part }}");
  expect("refuses this conversation: no\\x0awords", "{{ raise_exception('no\nwords') }}");
  expect("not UTF-8", "\xff\xfe");
}

// Whatever a template is, there is a text or one error.
TEST_F(Hostile, MutilatedTemplatesAreRenderedOrRefused) {
  const Json all = read(fixtures / "chat/cases.json");
  const auto messages = conversation_of(all["conversations"][12]);
  std::uint64_t state = 1;
  const auto random = [&state](std::size_t below) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::size_t>(state >> 33U) % below;
  };
  const std::vector<std::string> pieces = {"{%", "%}", "{{", "}}", "(",     ")",  "[", "]",  "-", "|",
                                           "'",  "\"", ".",  ":",  " in ", "\\", "{", "\n", "0", "\0"};
  int rendered = 0;
  for (const char* name : {"llama3", "qwen3", "macros", "oddities"}) {
    std::ifstream in(fixtures / "chat" / name / "chat_template.jinja");
    const std::string source(std::istreambuf_iterator<char>(in), {});
    for (int round = 0; round < 100; ++round) {
      std::string changed = source;
      for (std::size_t edits = 1 + random(3); edits > 0; --edits) {
        const std::size_t at = random(changed.size());
        if (random(2) == 0) {
          changed.erase(at, 1 + random(12));
        } else {
          changed.insert(at, pieces[random(pieces.size())]);
        }
      }
      write(work_.path() / "chat_template.jinja", changed);
      try {
        ChatTemplate::load(work_.path()).render(messages, true);
        ++rendered;
      } catch (const Error& error) {
        ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      }
    }
  }
  EXPECT_GT(rendered, 20);
}

TEST(ChatTemplate, LongConversationsRenderWithinTheLimits) {
  std::vector<ChatMessage> messages;
  for (int i = 0; i < 1000; ++i) {
    messages.push_back({i % 2 == 0 ? "user" : "assistant", std::string(4000, 'a') + "\nb"});
  }
  messages.push_back({"user", "the end"});
  messages.front().content.append(4'000'000, 'x');
  for (const char* name : {"llama3", "qwen2.5", "qwen3", "mistral", "gemma", "glm4"}) {
    const auto chat = ChatTemplate::load(fixtures / "chat" / name);
    EXPECT_GT(chat.render(messages, true).size(), 8'000'000U) << name;
  }
}

TEST(ChatTemplate, RendersFromManyThreads) {
  const auto chat = ChatTemplate::load(fixtures / "chat/qwen3");
  const std::vector<ChatMessage> messages = {{"user", "x"}};
  const std::string expected = chat.render(messages, true);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) wrong += chat.render(messages, true) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ChatTemplate, NoMessagesAreRefused) {
  EXPECT_THROW(ChatTemplate::load(fixtures / "chat/qwen3").render({}, true), InvalidArgument);
}

}  // namespace
}  // namespace topkv
