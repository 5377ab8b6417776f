// Ollama's API: bodies of requests, answers as its clients read them, how a model thinks.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/serve/answer/ollama_response.h"
#include "src/serve/request/ollama_request.h"
#include "src/serve/request/problem.h"
#include "src/serve/run/thinking.h"
#include "tests/serve/serving.h"

namespace topkv::serve {
namespace {

using namespace test;
using Json = nlohmann::json;

OllamaRequest generate(const std::string& body, bool in_template = true) {
  return parse_ollama_generate(body, [&](const AnswerRequest&) { return in_template; });
}

/// A request with these options.
AnswerRequest with_options(const std::string& options) {
  return generate(R"({"model": "m", "prompt": "a", "options": )" + options + "}").answer;
}

TEST(Ollama, OptionsAreThoseOfTheOtherApi) {
  const AnswerRequest request = with_options(
      R"({"num_predict": 7, "temperature": 0.5, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "seed": 3,
          "stop": ["\n", "b"], "repeat_penalty": 1.1, "repeat_last_n": -1, "presence_penalty": 0.5,
          "frequency_penalty": 0.25, "num_ctx": 4096, "num_gpu": 99, "mirostat": 0, "typical_p": 1.0,
          "use_mmap": true, "num_keep": null})");
  const AnswerOptions& options = request.options;
  EXPECT_EQ(options.max_tokens, 7);
  EXPECT_FALSE(options.unlimited);
  EXPECT_EQ(options.temperature, 0.5);
  EXPECT_EQ(options.top_k, 40);
  EXPECT_EQ(options.top_p, 0.9);
  EXPECT_EQ(options.min_p, 0.1);
  EXPECT_EQ(options.seed, 3U);
  EXPECT_EQ(options.stop, (std::vector<std::string>{"\n", "b"}));
  EXPECT_EQ(options.repetition_penalty, 1.1);
  EXPECT_EQ(options.presence_penalty, 0.5);
  EXPECT_EQ(options.frequency_penalty, 0.25);
  EXPECT_EQ(options.choices, 1);
  // An answer ends by itself or with the room, unless it is bounded.
  for (const char* none : {"{}", R"({"num_predict": -1})", R"({"num_predict": -2})", "null"}) {
    EXPECT_TRUE(with_options(none).options.unlimited) << none;
    EXPECT_FALSE(with_options(none).options.max_tokens) << none;
  }
  EXPECT_FALSE(with_options(R"({"seed": -1})").options.seed) << "any";
  EXPECT_EQ(with_options(R"({"top_k": 0})").options.top_k, 0);
}

TEST(Ollama, PenaltiesCountAllTokensOrNone) {
  EXPECT_FALSE(with_options(R"({"repeat_last_n": 64})").options.repetition_penalty) << "no penalty";
  const AnswerOptions off =
      with_options(R"({"repeat_last_n": 0, "repeat_penalty": 1.3, "presence_penalty": 1})").options;
  EXPECT_EQ(off.repetition_penalty, 1);
  EXPECT_EQ(off.presence_penalty, 0);
  const Problem refused =
      problem_of([] { with_options(R"({"repeat_last_n": 64, "repeat_penalty": 1.3})"); });
  EXPECT_EQ(refused.param(), "options.repeat_last_n");
}

TEST(Ollama, APromptIsAChatWhereThereIsATemplate) {
  const AnswerRequest chat =
      generate(R"({"model": "m", "prompt": "a", "system": "Be brief.", "context": "book"})").answer;
  EXPECT_TRUE(chat.chat && chat.stream);
  EXPECT_EQ(chat.context, "book");
  ASSERT_EQ(chat.messages.size(), 2U);
  EXPECT_EQ(chat.messages[0].role, "system");
  EXPECT_EQ(chat.messages[1].content, "a");
  EXPECT_TRUE(chat.prompts.empty());
  const AnswerRequest plain =
      generate(R"({"model": "m", "prompt": "a", "stream": false, "context": []})", false).answer;
  EXPECT_FALSE(plain.chat || plain.stream);
  EXPECT_EQ(plain.prompts, std::vector<Prompt>{"a"});
  bool asked = false;
  const OllamaRequest raw =
      parse_ollama_generate(R"({"model": "m", "prompt": "a", "raw": true})",
                            [&](const AnswerRequest&) { return asked = true; });
  EXPECT_FALSE(raw.answer.chat || asked);
  EXPECT_EQ(problem_of([] {
              generate(R"({"model": "m", "prompt": "a", "system": "b", "raw": true})");
            }).param(),
            "system");
  EXPECT_EQ(problem_of([] {
              generate(R"({"model": "m", "prompt": "a", "think": true})", false);
            }).param(),
            "think");
}

TEST(Ollama, NothingToAnswerLoadsTheModel) {
  EXPECT_TRUE(generate(R"({"model": "m"})").loads);
  EXPECT_TRUE(generate(R"({"model": "m", "prompt": "", "keep_alive": 0})", false).loads);
  EXPECT_TRUE(parse_ollama_chat(R"({"model": "m", "messages": [], "keep_alive": "5m"})").loads);
  EXPECT_TRUE(parse_ollama_chat(R"({"model": "m"})").loads);
  const Json json = Json::parse(ollama_loaded(OllamaRoute::chat, "m", 0));
  EXPECT_EQ(json["done_reason"], "load");
  EXPECT_EQ(json["message"]["content"], "");
  EXPECT_EQ(json["created_at"], "1970-01-01T00:00:00.000000000Z");
  EXPECT_EQ(Json::parse(ollama_loaded(OllamaRoute::generate, "m", 0))["response"], "");
}

TEST(Ollama, MessagesHaveItsNames) {
  const AnswerRequest request =
      parse_ollama_chat(R"({"model": "m", "think": "max", "logprobs": true, "top_logprobs": 2,
      "messages": [{"role": "System", "content": "s"}, {"role": "user", "content": "Warm?", "images": []},
        {"role": "assistant", "thinking": "hm", "content": "",
         "tool_calls": [{"function": {"index": 0, "name": "weather", "arguments": {"z": 1, "a": 2}}}]},
        {"role": "tool", "tool_name": "weather", "content": "21"}, {"role": "assistant"}],
      "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]})")
          .answer;
  ASSERT_EQ(request.messages.size(), 5U);
  EXPECT_EQ(request.messages[0].role, "system");
  EXPECT_EQ(
      request.messages[2].fields,
      R"({"reasoning_content":"hm","thinking":"hm","tool_calls":[{"type":"function","function":)"
      R"({"name":"weather","arguments":{"z":1,"a":2}}}]})");
  EXPECT_EQ(request.messages[3].fields, R"({"name":"weather"})");
  EXPECT_EQ(request.messages[4].content, "");
  EXPECT_EQ(
      request.variables,
      R"({"tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}]})");
  EXPECT_EQ(request.tools.size(), 1U);
  EXPECT_EQ(request.thinking, Thinking::high);
  EXPECT_EQ(request.options.logprobs, 2);
  EXPECT_TRUE(request.stream);
}

TEST(Ollama, RefusesNamingTheField) {
  const auto in_generate = [](const std::string& more) {
    return problem_of([&] { generate(R"({"model": "m", "prompt": "a", )" + more + "}"); });
  };
  for (const auto& [more, param] : std::vector<std::pair<std::string, const char*>>{
           {R"("options": [])", "options"},
           {R"("options": {"temperature": "hot"})", "options.temperature"},
           {R"("options": {"num_predict": 0})", "options.num_predict"},
           {R"("options": {"num_predict": -3})", "options.num_predict"},
           {R"("options": {"mirostat": 2})", "options.mirostat"},
           {R"("options": {"typical_p": 0.5})", "options.typical_p"},
           {R"("options": {"tfs_z": 0.5})", "options.tfs_z"},
           {R"("options": {"embedding_only": true})", "options.embedding_only"},
           {R"("options": {"stop": 7})", "options.stop"},
           {R"("options": {"repeat_penalty": 0})", "options.repeat_penalty"},
           {R"("options": {"n": 2})", "options.n"},
           {R"("temperature": 0)", "temperature"},
           {R"("format": "xml")", "format"},
           {R"("format": [])", "format"},
           {R"("keep_alive": [])", "keep_alive"},
           {R"("think": "deeply")", "think"},
           {R"("think": 1)", "think"},
           {R"("stream": "no")", "stream"},
           {R"("truncate": 1)", "truncate"},
           {R"("images": ["iVBORw0KGgo="])", "images"},
           {R"("suffix": "b")", "suffix"},
           {R"("template": "{{ .Prompt }}")", "template"},
           {R"("context": [1, 2])", "context"},
           {R"("context": {})", "context"},
           {R"("top_logprobs": 3)", "top_logprobs"},
           {R"("messages": [])", "messages"}}) {
    const Problem problem = in_generate(more);
    EXPECT_EQ(problem.param(), param) << more << problem.message();
    EXPECT_EQ(problem.status(), 400);
  }
  for (
      const auto& [body, param] : std::vector<std::pair<std::string, const char*>>{
          {R"({"messages": []})", "model"},
          {R"({"model": 7})", "model"},
          {R"({"model": "m", "messages": {}})", "messages"},
          {R"({"model": "m", "messages": ["a"]})", "messages[0]"},
          {R"({"model": "m", "messages": [{"content": "a"}]})", "messages[0].role"},
          {R"({"model": "m", "messages": [{"role": "user", "images": ["a"]}]})",
           "messages[0].images"},
          {R"({"model": "m", "messages": [{"role": "user", "annotations": []}]})",
           "messages[0].annotations"},
          {R"({"model": "m", "messages": [{"role": "user", "tool_calls": [{"function": {"name": "f", "arguments": 7}}]}]})",
           "messages[0].tool_calls[0].function.arguments"},
          {R"({"model": "m", "tool_choice": "none"})", "tool_choice"},
          {R"({"model": "m", "tools": 7})", "tools"}}) {
    const Problem problem = problem_of([&] { parse_ollama_chat(body); });
    EXPECT_EQ(problem.param(), param) << body << problem.message();
  }
  const std::string deep =
      R"({"model": "m", "messages": )" + std::string(5000, '[') + std::string(5000, ']') + "}";
  EXPECT_EQ(problem_of([&] { parse_ollama_chat(deep); }).code(), "invalid_json");
  EXPECT_EQ(problem_of([] { generate("{"); }).code(), "invalid_json");
  EXPECT_EQ(Json::parse(ollama_error_body({400, "a \"b\"", "x"})), (Json{{"error", "a \"b\""}}));
}

TEST(Ollama, ShowsAModelByEitherName) {
  EXPECT_EQ(parse_ollama_show(R"({"model": "m", "verbose": true})"), "m");
  EXPECT_EQ(parse_ollama_show(R"({"name": "m", "system": "", "template": "", "options": {}})"),
            "m");
  EXPECT_EQ(problem_of([] { parse_ollama_show("{}"); }).param(), "model");
}

std::int64_t a_time() { return 1'700'000'000'000'000'005; }

constexpr const char* thinking_template =
    "{% if enable_thinking %}<think>{% endif %}</think><tool_call>";

AnswerRequest request_of(bool chat) {
  AnswerRequest request;
  request.chat = chat;
  request.model = "m:book";
  request.tools = Tools::parse(R"([{"type": "function", "function": {"name": "weather"}}])");
  return request;
}

const std::vector<Event> call_events = {
    {.text = "<think>\nhm"},
    {.text = "\n</think>\n"},
    {.text = "I look.\n<tool_call>{\"name\": \"weather\","},
    {.text = " \"arguments\": {\"b\": 1, \"a\": [2]}}</tool_call>", .finish = "stop"}};
const AnswerTotals some_totals = {.usage = {.context = 100, .prompt = 3, .generated = 4},
                                  .times = {.waited = 1, .read = 2, .generated = 0.5}};

TEST(Ollama, ChatsHavePartsStreamedOrNot) {
  OllamaWriter whole(request_of(true), OllamaRoute::chat, "id", answer_form(thinking_template),
                     false, a_time);
  const Json all = Json::parse(whole.whole(call_events, some_totals));
  EXPECT_EQ(all["model"], "m:book");
  EXPECT_EQ(all["created_at"], "2023-11-14T22:13:20.000000005Z");
  EXPECT_EQ(all["message"]["role"], "assistant");
  EXPECT_EQ(all["message"]["thinking"], "hm");
  EXPECT_EQ(all["message"]["content"], "I look.");
  EXPECT_EQ(all["message"]["tool_calls"][0]["function"]["arguments"].dump(), R"({"a":[2],"b":1})");
  EXPECT_EQ(all["message"]["tool_calls"][0]["function"]["index"], 0);
  EXPECT_EQ(all["done"], true);
  EXPECT_EQ(all["done_reason"], "stop");
  EXPECT_EQ(all["prompt_eval_count"], 103);
  EXPECT_EQ(all["eval_count"], 4);
  EXPECT_EQ(all["total_duration"], 3'500'000'000);
  EXPECT_EQ(all["load_duration"], 1'000'000'000);
  EXPECT_EQ(all["prompt_eval_duration"], 2'000'000'000);
  EXPECT_EQ(all["eval_duration"], 500'000'000);

  OllamaWriter streamed(request_of(true), OllamaRoute::chat, "id", answer_form(thinking_template),
                        false, a_time);
  std::string thinking, content, lines = streamed.opening();
  for (const Event& event : call_events) lines += streamed.piece(event);
  lines += streamed.waiting({}) + streamed.closing(some_totals);
  std::vector<Json> pieces;
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = lines.find('\n', at);
    ASSERT_NE(end, lines.npos);
    pieces.push_back(Json::parse(lines.substr(at, end - at)));
    at = end + 1;
    thinking += pieces.back()["message"].value("thinking", "");
    content += pieces.back()["message"].value("content", "");
    EXPECT_EQ(pieces.back()["done"], at == lines.size());
  }
  EXPECT_EQ(thinking, "hm");
  EXPECT_EQ(content, "I look.");
  const Json& last = pieces.back();
  EXPECT_EQ(last["done_reason"], "stop");
  EXPECT_EQ(last["eval_count"], 4);
  EXPECT_EQ(pieces[pieces.size() - 3]["message"]["tool_calls"], all["message"]["tool_calls"]);
  EXPECT_EQ(streamed.broken({503, "out"}), "{\"error\":\"out\"}\n");
}

TEST(Ollama, CompletionsAreResponses) {
  const std::vector<Event> events = {
      {.text = "a<think>", .logprobs = {{"a", "a", -0.5, {{"b", "b", -1}}}}},
      {.text = "b", .finish = "length"}};
  OllamaWriter whole(request_of(false), OllamaRoute::generate, "id", answer_form(thinking_template),
                     false, a_time);
  const Json all = Json::parse(whole.whole(events, some_totals));
  EXPECT_EQ(all["response"], "a<think>b") << "a text has no parts";
  EXPECT_EQ(all["done_reason"], "length");
  EXPECT_EQ(all["logprobs"][0]["top_logprobs"][0]["token"], "b");
  EXPECT_FALSE(all.contains("message"));
  // A prompt in the chat template has parts.
  OllamaWriter parts(request_of(true), OllamaRoute::generate, "id", answer_form(thinking_template),
                     false, a_time);
  const Json chat = Json::parse(parts.whole(call_events, some_totals));
  EXPECT_EQ(chat["response"], "I look.");
  EXPECT_EQ(chat["thinking"], "hm");
  EXPECT_EQ(chat["tool_calls"][0]["function"]["name"], "weather");
}

TEST(Ollama, ArgumentsMayBeAsDeepAsTheyAreTaken) {
  const std::string deep = std::string(64, '[') + std::string(64, ']');
  OllamaWriter writer(request_of(true), OllamaRoute::chat, "id", answer_form(thinking_template),
                      false, a_time);
  const Json all = Json::parse(writer.whole({{.text = "<tool_call><function=weather><parameter=a>" +
                                                      deep + "</parameter></function></tool_call>",
                                              .finish = "stop"}},
                                            {}));
  EXPECT_EQ(all["message"]["tool_calls"][0]["function"]["arguments"]["a"].dump(), deep);
}

TEST(Ollama, ThinkingIsAVariableOfTheTemplate) {
  const auto variables = [](const std::string& source, Thinking thinking,
                            const std::string& given = "") {
    AnswerRequest request;
    request.thinking = thinking;
    request.variables = given;
    return variables_with_thinking(request, source, answer_form(source));
  };
  const std::string none = "{{ messages }}";
  const std::string gpt_oss = "<|channel|><|message|>{{ reasoning_effort }}";
  const std::string deepseek = "{% if not thinking is defined %}</think>{% endif %}";
  const std::string always = "<think></think>";
  EXPECT_EQ(variables(thinking_template, Thinking::by_template, R"({"a":1})"), R"({"a":1})");
  EXPECT_EQ(variables(thinking_template, Thinking::off), R"({"enable_thinking":false})");
  EXPECT_EQ(variables(thinking_template, Thinking::low), R"({"enable_thinking":true})");
  EXPECT_EQ(variables(thinking_template, Thinking::on, R"({"tools":[]})"),
            R"({"tools":[],"enable_thinking":true})");
  EXPECT_EQ(variables(deepseek, Thinking::on), R"({"thinking":true})");
  EXPECT_EQ(variables(gpt_oss, Thinking::high), R"({"reasoning_effort":"high"})");
  EXPECT_EQ(variables(gpt_oss, Thinking::on), "");
  EXPECT_EQ(variables(always, Thinking::on), "");
  EXPECT_EQ(variables(none, Thinking::off), "");
  for (const std::string& source : {gpt_oss, always})
    EXPECT_EQ(problem_of([&] { variables(source, Thinking::off); }).status(), 400) << source;
  EXPECT_EQ(problem_of([&] { variables(none, Thinking::on); }).status(), 400);
}

}  // namespace
}  // namespace topkv::serve
