// Chats: tools in requests, and answers of several parts, as text that comes in pieces of any size.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/serve/answer/answer_parts.h"
#include "src/serve/answer/response.h"
#include "src/serve/request/problem.h"
#include "src/serve/request/request.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tensor_file.h"
#include "topkv/error.h"
#include "topkv/tokenizer.h"

namespace topkv::serve {
namespace {

using Json = nlohmann::json;

const Tools weather =
    Tools::parse(R"([{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}}}}])");

const char* const qwen = "{% if tools %}<tool_call>{% endif %}";
const char* const thinking = "<think>{{ reasoning }}</think><tool_call>";
const char* const mistral = "[TOOL_CALLS]";
const char* const llama = "Environment: ipython <|python_tag|>";
const char* const gpt_oss = "<|start|>assistant<|channel|>analysis<|message|>";

/// An answer that comes in pieces of some bytes, put together: "reasoning|content|name(arguments)".
std::string parts(const char* source, const std::string& text, std::size_t bytes,
                  bool in_thought = false, const Tools& tools = weather) {
  AnswerParts answer(answer_form(source), in_thought, tools);
  AnswerDelta all;
  const auto take = [&](const AnswerDelta& delta) {
    all.content += delta.content;
    all.reasoning += delta.reasoning;
    all.calls.insert(all.calls.end(), delta.calls.begin(), delta.calls.end());
  };
  for (std::size_t at = 0; at < text.size(); at += bytes) take(answer.push(text.substr(at, bytes)));
  take(answer.finish());
  EXPECT_EQ(answer.called(), !all.calls.empty());
  std::string shown = all.reasoning + "|" + all.content + "|";
  for (const ToolCall& call : all.calls) shown += call.name + "(" + call.arguments + ")";
  return shown;
}

void expect_parts(const char* source, const std::string& text, const std::string& wanted,
                  bool in_thought = false, const Tools& tools = weather) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{2}, std::size_t{7}, text.size() + 1})
    EXPECT_EQ(parts(source, text, bytes, in_thought, tools), wanted) << text << " by " << bytes;
}

TEST(AnswerParts, ChannelsAreThinkingContentAndCalls) {
  expect_parts(gpt_oss,
               "<|channel|>analysis<|message|>Two and "
               "two.<|end|><|start|>assistant<|channel|>final<|message|>4 < 5",
               "Two and two.|4 < 5|");
  expect_parts(gpt_oss, "<|channel|>final<|message|>a <| b <|x<|return|>", "|a <| b <|x|");
  expect_parts(gpt_oss,
               "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
               "to=functions.weather "
               "<|constrain|>json<|message|>{\"place\": \"Rome\"}<|call|>",
               "Hm.||weather({\"place\": \"Rome\"})");
  expect_parts(gpt_oss,
               "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant "
               "to=functions.weather<|channel|>commentary "
               "json<|message|>{\"days\": 2}",
               "|I look.|weather({\"days\": 2})");
  expect_parts(gpt_oss, "<|channel|>commentary to=functions.weather<|message|>{\"place\": <|call|>",
               "|{\"place\": |");
  expect_parts(gpt_oss, "<|channel|>analysis<|message|>cut o", "cut o||");
  expect_parts(gpt_oss, "<|channel|>ana", "||");
  expect_parts(gpt_oss, "no channels", "|no channels|");
  expect_parts(gpt_oss,
               "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|"
               "message|>b<|end|>",
               "a\nb||");
}

TEST(AnswerParts, ThinkingEndsWhereItsMarkSays) {
  expect_parts(thinking, "<think>\nwhy\n\nso\n</think>\n\nThe answer.\n",
               "why\n\nso|The answer.\n|");
  expect_parts(thinking, "why\n</think>\n\nb", "why|b|", true);
  expect_parts(thinking, "<think>\nwhy</think>b", "why|b|", true);
  expect_parts(thinking, "\n\nNo thought, <think> or not.", "|\n\nNo thought, <think> or not.|");
  expect_parts(thinking, "<think>cut o", "cut o||");
  expect_parts(thinking, "<think>\n</think>\n\n4", "|4|");
  expect_parts(thinking, "<thinner>", "|<thinner>|");
  expect_parts(thinking, " \n ", "||", true);
  expect_parts(qwen, "<think>a</think>b", "|<think>a</think>b|");  // the template knows no such
  expect_parts("[THINK][/THINK]", "[THINK]a[/THINK]b", "a|b|");
}

TEST(AnswerParts, CallsAreFoundInEachFamilysForm) {
  const std::string json = R"({"name": "weather", "arguments": {"place": "Rome", "days": 2}})";
  const std::string call = R"(weather({"place":"Rome","days":2}))";
  expect_parts(qwen, "<tool_call>\n" + json + "\n</tool_call>", "||" + call);
  expect_parts(
      qwen, "I look.\n<tool_call>\n" + json + "\n</tool_call>\n<tool_call>" + json + "</tool_call>",
      "|I look.|" + call + call);
  expect_parts(qwen, "<tool_call>\n" + json, "||" + call);  // the end token was its end
  expect_parts(thinking, "<think>\nhm\n</think>\n\n<tool_call>\n" + json + "\n</tool_call>",
               "hm||" + call);
  expect_parts(qwen,
               "<tool_call>\n<function=weather>\n<parameter=place>\n12\n</"
               "parameter>\n<parameter=days>\n2\n</parameter>\n"
               "</function>\n</tool_call>",
               R"(||weather({"place":"12","days":2}))");
  expect_parts(mistral, "[TOOL_CALLS] [" + json + ", " + json + "]", "||" + call + call);
  expect_parts(
      mistral,
      "Yes.[TOOL_CALLS]weather[ARGS]{\"days\": 2}[TOOL_CALLS]weather[CALL_ID]123456789[ARGS]{}",
      "|Yes.|weather({\"days\": 2})weather({})");
  const std::string object =
      R"({"name": "weather", "parameters": {"place": "Rome; {};", "days": 2}})";
  expect_parts(llama, object, R"(||weather({"place":"Rome; {};","days":2}))");
  expect_parts(llama, "<|python_tag|>" + object, R"(||weather({"place":"Rome; {};","days":2}))");
  expect_parts(llama, json + "; " + json, "||" + call + call);
  // What is none is content.
  expect_parts(llama, R"({"name": "other", "parameters": {}})",
               R"(|{"name": "other", "parameters": {}}|)");
  expect_parts(llama, "{1, 2} is a set.", "|{1, 2} is a set.|");
  expect_parts(qwen, "<tool_call>\n{\"name\": 7}\n</tool_call>",
               "|<tool_call>\n{\"name\": 7}\n</tool_call>|");
  expect_parts(mistral, "[TOOL_CALLS] [{]", "|[TOOL_CALLS] [{]|");
  expect_parts(qwen, "a <tool b", "|a <tool b|");
  // Neither does a mark get in that never came, nor is white space lost.
  expect_parts(qwen, "a\n\n<tool_call>\n{\"name\": \"wea", "|a\n\n<tool_call>\n{\"name\": \"wea|");
  expect_parts(qwen, "a <tool_call> b </tool_call> c", "|a <tool_call> b </tool_call> c|");
  expect_parts(qwen, "<tool_call>" + json + "</tool_call>", "|<tool_call>" + json + "</tool_call>|",
               false, Tools::array());
  AnswerParts one(answer_form(qwen), false, weather, true);
  EXPECT_EQ(one.push("<tool_call>" + json + "</tool_call><tool_call>" + json + "</tool_call>")
                .calls.size(),
            1U);
}

TEST(AnswerParts, AnyBytesHaveParts) {
  // Each mark, cut and repeated, behind each other.
  const std::string marks[] = {
      "<think>",     "</think>", "<tool_call>",    "</tool_call>", "<|channel|>",
      "<|message|>", "<|end|>",  "<|start|>",      "<|call|>",     "[TOOL_CALLS]",
      "{",           "};",       " to=functions.", "\n",           "x"};
  for (const char* source : {qwen, thinking, mistral, llama, gpt_oss})
    for (const std::string& a : marks)
      for (const std::string& b : marks)
        for (const std::size_t cut : {std::size_t{1}, a.size()})
          parts(source, a.substr(0, cut) + b + a, 3, cut == 1);
}

TEST(AnswerForm, NamesTheSpecialTokensThatItNeeds) {
  const TempDirectory work;
  Json file = Json::parse(read_file(TOPKV_SOURCE_DIR "/models/needle-14m/tokenizer.json"));
  Token id = 4096;
  for (const char* content : {"<|channel|>", "<|message|>", "<think>", "</think>"})
    file["added_tokens"].push_back({{"id", id++},
                                    {"content", content},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", content[1] == '|'}});
  const Tokenizer tokenizer = Tokenizer::load(work.write("tokenizer.json", file.dump()));
  EXPECT_EQ(answer_form(gpt_oss).spelled(tokenizer, true), (std::vector<Token>{4096, 4097}));
  EXPECT_TRUE(answer_form(thinking).spelled(tokenizer, true).empty()) << "they have text anyway";
  EXPECT_TRUE(answer_form(thinking).ends_in_thought(tokenizer, tokenizer.encode("a<think>\n")));
  EXPECT_FALSE(answer_form(thinking).ends_in_thought(tokenizer,
                                                     tokenizer.encode("a<think>\n\n</think>\n\n")));
  EXPECT_FALSE(answer_form(qwen).ends_in_thought(tokenizer, tokenizer.encode("a<think>\n")));
}

TEST(ServeChat, ResponsesHavePartsStreamedOrNot) {
  AnswerRequest request;
  request.chat = true;
  request.tools = weather;
  const std::vector<Event> events = {{.text = "<think>\nhm"},
                                     {.text = "\n</think>\n"},
                                     {.text = "I look.\n<tool_call>{\"name\": \"weather\","},
                                     {.text = " \"arguments\": {}}</tool_call>", .finish = "stop"}};
  Responder whole(request, "id", 7, "m", answer_form(thinking), false);
  const Json choice = Json::parse(whole.whole(events, {}))["choices"][0];
  EXPECT_EQ(choice["message"]["reasoning_content"], "hm");
  EXPECT_EQ(choice["message"]["content"], "I look.");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "weather");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{}");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["id"].get<std::string>().size(), 9U);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  Responder streamed(request, "id", 7, "m", answer_form(thinking), false);
  std::string reasoning, content;
  Json last;
  for (const Event& event : events) {
    const std::string chunk = streamed.chunk(event);
    if (chunk.empty()) continue;
    last = Json::parse(chunk)["choices"][0];
    reasoning += last["delta"].value("reasoning_content", "");
    content += last["delta"].value("content", "");
  }
  EXPECT_EQ(reasoning, "hm");
  EXPECT_EQ(content, "I look.");
  EXPECT_EQ(last["delta"]["tool_calls"][0]["index"], 0);
  EXPECT_EQ(last["delta"]["tool_calls"][0]["id"], choice["message"]["tool_calls"][0]["id"]);
  EXPECT_EQ(last["finish_reason"], "tool_calls");
  // A call without words before it has no content.
  Responder call(request, "id", 7, "m", answer_form(thinking), false);
  const Json alone = Json::parse(
      call.whole({{.text = "<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>",
                   .finish = "stop"}},
                 {}));
  EXPECT_TRUE(alone["choices"][0]["message"]["content"].is_null());
}

TEST(ServeChat, TakesToolsAndTheirCalls) {
  const AnswerRequest request = parse_chat(R"({"messages": [
      {"role": "user", "content": [{"type": "text", "text": "Warm?", "cache_control": {"type": "ephemeral"}}], "name": "Ann"},
      {"role": "assistant", "content": null, "refusal": null, "annotations": [], "audio": null, "reasoning_content": "hm",
       "tool_calls": [{"id": "x", "type": "function", "index": 0,
                       "function": {"name": "weather", "arguments": "{\"z\": 1, \"a\": 2}"}}]},
      {"role": "tool", "tool_call_id": "x", "content": "21"},
      {"role": "assistant", "content": "Yes.", "tool_calls": []}],
      "tools": [{"type": "function", "cache_control": {}, "function": {"name": "weather", "strict": true, "description": "d"}}],
      "tool_choice": "auto", "parallel_tool_calls": false, "reasoning_effort": "low",
      "chat_template_kwargs": {"enable_thinking": false}, "top_p": 0, "max_tokens": -1})");
  EXPECT_EQ(request.messages[0].content, "Warm?");
  EXPECT_EQ(request.messages[0].fields, R"({"name":"Ann"})");
  EXPECT_EQ(
      request.messages[1].fields,
      R"({"reasoning_content":"hm","thinking":"hm","tool_calls":[{"id":"x","type":"function","function":)"
      R"({"name":"weather","arguments":{"z":1,"a":2}}}]})");
  EXPECT_EQ(request.messages[2].fields, R"({"tool_call_id":"x"})");
  EXPECT_EQ(request.messages[3].fields, "");
  EXPECT_EQ(
      request.variables,
      R"({"enable_thinking":false,"reasoning_effort":"low","tools":[{"type":"function","function":)"
      R"({"name":"weather","description":"d"}}]})");
  EXPECT_TRUE(request.one_call && request.options.unlimited && !request.options.max_tokens);
  EXPECT_EQ(request.options.temperature, 0) << "top_p 0 is the likeliest token alone";
  const AnswerRequest none = parse_chat(
      R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": {"name": "w"}}],
          "tool_choice": "none"})");
  EXPECT_TRUE(none.tools.empty() && none.variables.empty());
}

TEST(ServeChat, ACallThatIsRequiredHasASchema) {
  const std::string tools = R"("tools": [
      {"type": "function", "function": {"name": "now"}},
      {"type": "function", "function": {"name": "weather", "strict": true, "parameters": {
          "type": "object", "properties": {"z": {"$ref": "#/$defs/t"}, "a": {"type": "null"}},
          "$defs": {"t": {"type": "string"}}}}}])";
  const auto schema = [&](const std::string& choice) {
    return parse_chat(R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": )" +
                      choice + ", " + tools + "}")
        .schema;
  };
  EXPECT_EQ(schema("\"auto\"").text, "");
  const std::string weather =
      R"({"type":"object","properties":{"z":{"$ref":"#/$defs/tool0/$defs/t"},"a":{"type":"null"}},)"
      R"("$defs":{"t":{"type":"string"}}})";
  const AnswerSchema named = schema(R"({"type": "function", "function": {"name": "weather"}})");
  EXPECT_TRUE(named.calls);
  EXPECT_EQ(named.field, "tool_choice");
  EXPECT_EQ(named.text,
            R"({"anyOf":[{"type":"object","properties":{"name":{"const":"weather"},"arguments":)"
            R"({"$ref":"#/$defs/tool0"}},"required":["name","arguments"]}],"$defs":{"tool0":)" +
                weather + "}}");
  const auto any = nlohmann::json::parse(schema("\"required\"").text);
  EXPECT_EQ(any["anyOf"].size(), 2U);
  EXPECT_EQ(any["$defs"]["tool0"], (nlohmann::json{{"type", "object"}}));
}

TEST(ServeChat, RefusesToolsNamingTheField) {
  const auto body = [](const std::string& message, const std::string& more) {
    return R"({"messages": [{"role": "user", "content": "a"})" + message + "]" + more + "}";
  };
  const auto call = [&](const std::string& what) {
    return body(R"(, {"role": "assistant", "tool_calls": )" + what + "}", "");
  };
  const std::vector<std::pair<std::string, const char*>> bad = {
      {body("", R"(, "tools": {})"), "tools"},
      {body("", R"(, "tools": [{"type": "web_search"}])"), "tools[0].type"},
      {body("", R"(, "tools": [{"type": "function"}])"), "tools[0]"},
      {body("", R"(, "tools": [{"type": "function", "function": {}}])"), "tools[0].function.name"},
      {body("", R"(, "tools": [{"type": "function", "function": {"name": ""}}])"),
       "tools[0].function.name"},
      {body("", R"(, "tool_choice": "required")"), "tool_choice"},
      {body("", R"(, "tool_choice": {"type": "function", "function": {"name": "w"}})"),
       "tool_choice"},
      {body("", R"(, "tool_choice": {"type": "custom"})"), "tool_choice.type"},
      {body("", R"(, "tool_choice": {"type": "function"})"), "tool_choice"},
      {body("", R"(, "tool_choice": "any")"), "tool_choice"},
      {body("", R"(, "parallel_tool_calls": 1)"), "parallel_tool_calls"},
      {body("", R"(, "chat_template_kwargs": [])"), "chat_template_kwargs"},
      {body("", R"(, "chat_template_kwargs": {"tools": []})"), "chat_template_kwargs"},
      {body("", R"(, "reasoning_effort": 3)"), "reasoning_effort"},
      {body("", R"(, "functions": [])"), "functions"},
      {call("7"), "messages[1].tool_calls"},
      {call("[]"), "messages[1].content"},
      {call(R"([{"id": 7}])"), "messages[1].tool_calls[0].id"},
      {call(R"([{"type": "function"}])"), "messages[1].tool_calls[0]"},
      {call(R"([{"function": {"name": "w", "arguments": "{"}}])"),
       "messages[1].tool_calls[0].function.arguments"},
      {call(R"([{"function": {"name": "w", "arguments": "[1]"}}])"),
       "messages[1].tool_calls[0].function.arguments"},
      {body(R"(, {"role": "assistant", "content": "a", "refusal": "no"})", ""),
       "messages[1].refusal"},
      {body(R"(, {"role": "assistant", "content": "a", "function_call": {}})", ""),
       "messages[1].function_call"}};
  for (const auto& [text, param] : bad) {
    try {
      parse_chat(text);
      ADD_FAILURE() << "taken: " << text;
    } catch (const Problem& problem) {
      EXPECT_EQ(problem.status(), 400) << text;
      EXPECT_EQ(problem.param(), param) << text << problem.message();
    }
  }
}

}  // namespace
}  // namespace topkv::serve
