// OpenAI's Responses API: bodies of requests, response objects, and events that build one.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/serve/answer/responses_response.h"
#include "src/serve/request/problem.h"
#include "src/serve/request/responses_request.h"
#include "tests/serve/serving.h"

namespace topkv::serve {
namespace {

using namespace test;
using Json = nlohmann::json;

TEST(Responses, ATextIsAMessage) {
  const ResponsesRequest request = parse_responses(
      R"({"model": "m:book", "input": "Why?", "instructions": "Be brief.", "max_output_tokens": 9,
          "temperature": 0.5, "top_p": 0.9, "stream": true, "stream_options": {"include_obfuscation": false},
          "store": true, "metadata": {"a": "b"}, "reasoning": {"effort": "low", "summary": "auto"},
          "text": {"format": {"type": "text"}, "verbosity": "medium"}, "truncation": "disabled",
          "include": ["reasoning.encrypted_content"], "background": false, "previous_response_id": null,
          "tool_choice": "auto", "tools": [], "parallel_tool_calls": true, "user": "u", "seed": 3,
          "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "s"})");
  const AnswerRequest& answer = request.answer;
  EXPECT_TRUE(answer.chat && answer.stream && !answer.one_call);
  EXPECT_EQ(answer.model, "m:book");
  ASSERT_EQ(answer.messages.size(), 2U);
  EXPECT_EQ(answer.messages[0].role, "system");
  EXPECT_EQ(answer.messages[0].content, "Be brief.");
  EXPECT_EQ(answer.messages[1].role, "user");
  EXPECT_EQ(answer.messages[1].content, "Why?");
  EXPECT_EQ(answer.options.max_tokens, 9);
  EXPECT_EQ(answer.options.temperature, 0.5);
  EXPECT_EQ(answer.options.seed, 3U);
  EXPECT_EQ(answer.thinking, Thinking::low);
  EXPECT_EQ(answer.variables, "");
  EXPECT_EQ(request.repeated["instructions"], "Be brief.");
  EXPECT_EQ(request.repeated["metadata"]["a"], "b");
  EXPECT_EQ(request.repeated["max_output_tokens"], 9);
  EXPECT_TRUE(parse_responses(R"({"input": "a"})").repeated["temperature"].is_null());
  EXPECT_EQ(parse_responses(R"({"input": "a", "reasoning": {"effort": "none"}})").answer.thinking,
            Thinking::off);
}

TEST(Responses, ItemsOfOneTurnAreOneMessage) {
  const ResponsesRequest request = parse_responses(R"({"input": [
      {"role": "developer", "content": "Be kind."},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Is it "}, {"type": "input_text", "text": "warm?"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}], "status": "completed"},
      {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
       "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
      {"type": "function_call", "id": "fc_1", "call_id": "x", "name": "weather", "arguments": "{\"z\": 1, \"a\": 2}", "status": "completed"},
      {"type": "function_call", "call_id": "y", "name": "weather", "arguments": ""},
      {"type": "function_call_output", "call_id": "x", "output": "21"},
      {"type": "function_call_output", "call_id": "y", "output": [{"type": "input_text", "text": "22"}]},
      {"role": "assistant", "content": "Yes."}, {"role": "assistant", "content": "Very."},
      {"role": "user", "content": "Thanks."}],
      "tools": [{"type": "function", "name": "weather", "description": "d", "strict": true,
                 "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}], "parallel_tool_calls": false})");
  const std::vector<ChatMessage>& messages = request.answer.messages;
  ASSERT_EQ(messages.size(), 8U);
  EXPECT_EQ(messages[0].role, "developer");
  EXPECT_EQ(messages[1].content, "Is it warm?");
  EXPECT_EQ(messages[2].role, "assistant");
  EXPECT_EQ(messages[2].content, "I look.");
  EXPECT_EQ(
      messages[2].fields,
      R"({"reasoning_content":"hm","thinking":"hm","tool_calls":[{"id":"x","type":"function","function":)"
      R"({"name":"weather","arguments":{"z":1,"a":2}}},{"id":"y","type":"function","function":)"
      R"({"name":"weather","arguments":{}}}]})");
  EXPECT_EQ(messages[3].role, "tool");
  EXPECT_EQ(messages[3].fields, R"({"tool_call_id":"x"})");
  EXPECT_EQ(messages[4].content, "22");
  EXPECT_EQ(messages[5].content, "Yes.");
  EXPECT_EQ(messages[5].fields, "");
  EXPECT_EQ(messages[6].content, "Very.");
  EXPECT_EQ(messages[7].role, "user");
  const std::string function =
      R"("name":"weather","description":"d","parameters":{"type":"object","properties":{"z":{},"a":{}}})";
  EXPECT_EQ(request.answer.variables,
            R"({"tools":[{"type":"function","function":{)" + function + "}}]}");
  EXPECT_EQ(request.repeated["tools"].dump(),
            R"([{"type":"function",)" + function + R"(,"strict":false}])");
  EXPECT_TRUE(request.answer.one_call);
  const ResponsesRequest none = parse_responses(
      R"({"input": "a", "tools": [{"type": "function", "name": "w"}], "tool_choice": "none"})");
  EXPECT_TRUE(none.answer.tools.empty() && none.answer.variables.empty());
  EXPECT_EQ(none.repeated["tools"].size(), 1U);
}

TEST(Responses, ObjectsKeepTheirOrderAndHaveALimit) {
  const auto with_metadata = [](const std::string& metadata) {
    return parse_responses(R"({"input": "a", "metadata": )" + metadata + "}");
  };
  EXPECT_EQ(with_metadata(R"({"z": 1, "a": {"y": 2, "b": 3}})").repeated["metadata"].dump(),
            R"({"z":1,"a":{"y":2,"b":3}})");
  std::string keys = "{\"k\": 0";
  for (int i = 1; i < 1024; ++i) keys += ", \"k" + std::to_string(i) + "\": 0";
  EXPECT_EQ(with_metadata(keys + "}").repeated["metadata"].size(), 1024U);
  const Problem many = problem_of([&] { with_metadata(keys + R"(, "more": 0})"); });
  EXPECT_EQ(many.code(), "invalid_json");
  EXPECT_NE(many.message().find("more than 1024 keys"), std::string::npos) << many.message();
  const Problem twice = problem_of([&] { with_metadata(R"({"b": 1, "a": 1, "b": 2})"); });
  EXPECT_NE(twice.message().find("the key \"b\" twice"), std::string::npos) << twice.message();
}

TEST(Responses, RefusesNamingTheField) {
  for (
      const auto& [more, param] : std::vector<std::pair<std::string, const char*>>{
          {R"("previous_response_id": "resp_1")", "previous_response_id"},
          {R"("conversation": "conv_1")", "conversation"},
          {R"("prompt": {"id": "p"})", "prompt"},
          {R"("background": true)", "background"},
          {R"("truncation": "auto")", "truncation"},
          {R"("include": ["file_search_call.results"])", "include"},
          {R"("tools": [{"type": "web_search"}])", "tools[0].type"},
          {R"("tools": [{"type": "function", "function": {"name": "w"}}])", "tools[0].name"},
          {R"("tools": [{"type": "function", "name": ""}])", "tools[0].name"},
          {R"("tools": [{"type": "function", "name": "w", "defer_loading": true}])",
           "tools[0].defer_loading"},
          {R"("tools": {})", "tools"},
          {R"("tool_choice": "required")", "tool_choice"},
          {R"("tool_choice": {"type": "file_search"})", "tool_choice.type"},
          {R"("text": {"format": {"type": "xml"}})", "text.format.type"},
          {R"("text": {"format": {"type": "json_schema", "name": "a"}})", "text.format"},
          {R"("text": {"format": {"type": "json_schema", "schema": {}, "more": 1}})",
           "text.format.more"},
          {R"("tools": [{"type": "function", "name": "w"}], "text": {"format": {"type": "json_object"}})",
           "text.format"},
          {R"("text": {"verbosity": "low"})", "text.verbosity"},
          {R"("reasoning": {"effort": "endless"})", "reasoning.effort"},
          {R"("reasoning": "low")", "reasoning"},
          {R"("max_output_tokens": 0)", "max_output_tokens"},
          {R"("max_tokens": 5)", "max_tokens"},
          {R"("n": 2)", "n"},
          {R"("messages": [])", "messages"},
          {R"("instructions": [])", "instructions"},
          {R"("stream_options": {"include_usage": true})", "stream_options.include_usage"}}) {
    const Problem problem = problem_of([&] { parse_responses(R"({"input": "a", )" + more + "}"); });
    EXPECT_EQ(problem.param(), param) << more << problem.message();
    EXPECT_EQ(problem.status(), 400);
  }
  for (const auto& [input, param] : std::vector<std::pair<std::string, const char*>>{
           {"null", "input"},
           {"7", "input"},
           {"[]", "input"},
           {"[7]", "input[0]"},
           {R"([{"role": "user"}])", "input[0].content"},
           {R"([{"content": "a"}])", "input[0].role"},
           {R"([{"role": "user", "content": 7}])", "input[0].content"},
           {R"([{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}])",
            "input[0].content[0].type"},
           {R"([{"role": "user", "content": [{"type": "input_text"}]}])",
            "input[0].content[0].text"},
           {R"([{"type": "item_reference", "id": "a"}])", "input[0].type"},
           {R"([{"type": "function_call", "name": "w", "arguments": "{}"}])", "input[0].call_id"},
           {R"([{"type": "function_call", "call_id": "x", "name": "w"}])", "input[0].arguments"},
           {R"([{"type": "function_call", "call_id": "x", "name": "w", "arguments": "{"}])",
            "input[0].arguments"},
           {R"([{"type": "function_call_output", "output": "a"}])", "input[0].call_id"},
           {R"([{"type": "function_call_output", "call_id": "x"}])", "input[0].output"},
           {R"([{"role": "user", "content": "a", "tool_calls": []}])", "input[0].tool_calls"}}) {
    const Problem problem = problem_of([&] { parse_responses(R"({"input": )" + input + "}"); });
    EXPECT_EQ(problem.param(), param) << input << problem.message();
  }
  const std::string deep = R"({"input": )" + std::string(5000, '[') + std::string(5000, ']') + "}";
  EXPECT_EQ(problem_of([&] { parse_responses(deep); }).code(), "invalid_json");
}

const std::vector<Event> with_call = {
    {.text = "<think>\nhm"},
    {.text = " so\n</think>\n"},
    {.text = "I look"},
    {.text = " up.\n<tool_call>{\"name\": \"weather\","},
    {.text = " \"arguments\": {\"b\": 1}}</tool_call>", .finish = "stop"}};
const AnswerTotals taken = {.usage = {.context = 100, .prompt = 3, .kept = 2, .generated = 4}};

ResponsesWriter* new_writer() {
  static const ResponsesRequest request = parse_responses(
      R"({"input": "a", "tools": [{"type": "function", "name": "weather"}], "instructions": "i"})");
  return new ResponsesWriter(request, "7", 9, "m", answer_form("<think></think><tool_call>"),
                             false);
}

/// The data of events, each checked for its name and number.
std::vector<Json> events_of(const std::string& text) {
  std::vector<Json> events;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find("\n\n", at);
    EXPECT_NE(end, text.npos);
    const std::string event = text.substr(at, end - at);
    at = end + 2;
    if (event.starts_with(':')) continue;
    const std::size_t data = event.find("\ndata: ");
    EXPECT_NE(data, event.npos) << event;
    Json json = Json::parse(event.substr(data + 7));
    EXPECT_EQ(event.substr(0, data), "event: " + json["type"].get<std::string>());
    EXPECT_EQ(json["sequence_number"], events.size());
    events.push_back(std::move(json));
  }
  return events;
}

TEST(Responses, AResponseHasItemsOfEachKind) {
  const std::unique_ptr<ResponsesWriter> writer(new_writer());
  const Json json = Json::parse(writer->whole(with_call, taken));
  EXPECT_EQ(json["object"], "response");
  EXPECT_EQ(json["status"], "completed");
  EXPECT_EQ(json["instructions"], "i");
  EXPECT_EQ(json["tools"][0]["name"], "weather");
  ASSERT_EQ(json["output"].size(), 3U);
  EXPECT_EQ(json["output"][0]["type"], "reasoning");
  EXPECT_EQ(json["output"][0]["content"][0]["text"], "hm so");
  EXPECT_EQ(json["output"][1]["content"][0]["text"], "I look up.");
  EXPECT_EQ(json["output"][1]["role"], "assistant");
  EXPECT_EQ(json["output"][2]["arguments"], R"({"b":1})");
  EXPECT_EQ(json["output"][2]["call_id"].get<std::string>().size(), 9U);
  for (const Json& item : json["output"]) EXPECT_EQ(item["status"], "completed") << item;
  EXPECT_EQ(json["usage"]["input_tokens"], 103);
  EXPECT_EQ(json["usage"]["input_tokens_details"]["cached_tokens"], 102);
  EXPECT_EQ(json["usage"]["total_tokens"], 107);

  const std::unique_ptr<ResponsesWriter> cut(new_writer());
  const Json length = Json::parse(cut->whole({{.text = "a", .finish = "length"}}, taken));
  EXPECT_EQ(length["status"], "incomplete");
  EXPECT_EQ(length["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(length["output"][0]["status"], "incomplete");
  const std::unique_ptr<ResponsesWriter> silent(new_writer());
  EXPECT_TRUE(Json::parse(silent->whole({{.finish = "stop"}}, taken))["output"].empty());
}

TEST(Responses, EventsBuildTheSameResponse) {
  const std::unique_ptr<ResponsesWriter> writer(new_writer());
  const std::unique_ptr<ResponsesWriter> whole(new_writer());
  std::string text = writer->waiting({}) + writer->opening();
  for (const Event& event : with_call) text += writer->piece(event);
  text += writer->waiting({.begun = true}) + writer->closing(taken);
  const std::vector<Json> events = events_of(text);
  EXPECT_EQ(events[0]["type"], "response.created");
  EXPECT_EQ(events[0]["response"]["status"], "in_progress");
  EXPECT_EQ(events[1]["type"], "response.in_progress");
  // What a client builds of the events.
  Json output = Json::array();
  std::vector<Json> done;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (type == "response.output_item.added") {
      ASSERT_EQ(event["output_index"], output.size());
      output.push_back(event["item"]);
    } else if (type == "response.content_part.added") {
      output.back()["content"].push_back(event["part"]);
    } else if (type == "response.output_text.delta" || type == "response.reasoning_text.delta") {
      Json& built = output.back()["content"][event["content_index"].get<std::size_t>()]["text"];
      built = built.get<std::string>() + event["delta"].get<std::string>();
    } else if (type == "response.function_call_arguments.delta") {
      output.back()["arguments"] =
          output.back()["arguments"].get<std::string>() + event["delta"].get<std::string>();
    } else if (type == "response.output_item.done") {
      output.back()["status"] = "completed";
      EXPECT_EQ(event["item"], output.back());
      done.push_back(event["item"]);
    } else if (type.ends_with("_text.done")) {
      EXPECT_EQ(event["text"], output.back()["content"][0]["text"]);
    }
    if (event.contains("item_id")) {
      EXPECT_EQ(event["item_id"], output.back()["id"]) << event;
    }
  }
  EXPECT_EQ(events.back()["type"], "response.completed");
  EXPECT_EQ(events.back()["response"]["output"], output);
  EXPECT_EQ(Json(done), output);
  EXPECT_EQ(events.back()["response"], Json::parse(whole->whole(with_call, taken)));
}

TEST(Responses, ProblemsAndLimitsEndAStream) {
  const std::unique_ptr<ResponsesWriter> failed(new_writer());
  std::string text = failed->opening();
  text += failed->piece({.text = "a"});
  text += failed->broken({503, "out of memory"});
  const std::vector<Json> events = events_of(text);
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_EQ(events.back()["response"]["status"], "failed");
  EXPECT_EQ(events.back()["response"]["error"]["message"], "out of memory");
  const std::unique_ptr<ResponsesWriter> cut(new_writer());
  text = cut->opening();
  text += cut->piece({.text = "a", .finish = "length"});
  text += cut->closing(taken);
  EXPECT_EQ(events_of(text).back()["type"], "response.incomplete");
}

}  // namespace
}  // namespace topkv::serve
