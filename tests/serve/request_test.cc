// Bodies of requests: what is taken, and what of anybody's bytes is refused, in one line that names
// the field.

#include "src/serve/request/request.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "src/core/text/utf8.h"
#include "src/serve/answer/echo.h"
#include "src/serve/answer/response.h"
#include "src/serve/answer/token_name.h"
#include "src/serve/request/guard.h"
#include "src/serve/request/problem.h"
#include "src/serve/run/served_names.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

using Json = nlohmann::json;

template <class Parse>
Problem refused(const Parse& parse, const std::string& body) {
  try {
    parse(body);
  } catch (const Problem& problem) {
    return problem;
  }
  ADD_FAILURE() << "taken: " << body;
  return {0, ""};
}

TEST(ServeRequest, TakesWhatClientsSend) {
  const AnswerRequest request = parse_completion(
      R"({"model":"m","context":"book","prompt":["Why?"],"max_tokens":64.0,"temperature":0,"top_p":0.9,
          "top_k":-1,"min_p":0.05,"stop":"\n","seed":-1,"n":2,"best_of":2,"stream":true,
          "stream_options":{"include_usage":true},"logit_bias":{},"echo":false,"user":"u","suffix":null})");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.context, "book");
  EXPECT_EQ(request.prompts, std::vector<Prompt>{"Why?"});
  EXPECT_EQ(request.options.max_tokens, 64);
  EXPECT_EQ(request.options.temperature, 0);
  EXPECT_EQ(request.options.top_p, 0.9);
  EXPECT_EQ(request.options.top_k, 0);
  EXPECT_EQ(request.options.min_p, 0.05);
  EXPECT_EQ(request.options.stop, std::vector<std::string>{"\n"});
  EXPECT_EQ(request.options.seed, UINT64_MAX);
  EXPECT_EQ(request.options.choices, 2);
  EXPECT_TRUE(request.stream && request.stream_usage);
}

TEST(ServeRequest, TakesPromptsAsTextsAndAsTokens) {
  const auto prompts = [](const char* prompt) {
    return parse_completion(std::string("{\"prompt\":") + prompt + "}").prompts;
  };
  using Ids = std::vector<Token>;
  EXPECT_EQ(prompts(R"("a")"), (std::vector<Prompt>{"a"}));
  EXPECT_EQ(prompts(R"(["a",""])"), (std::vector<Prompt>{"a", ""}));
  EXPECT_EQ(prompts("[5,0]"), (std::vector<Prompt>{Ids{5, 0}}));
  EXPECT_EQ(prompts("[[5],[6,7]]"), (std::vector<Prompt>{Ids{5}, Ids{6, 7}}));
  const AnswerRequest request = parse_completion(
      R"({"prompt":["a","b","c"],"n":2,"echo":true,"max_tokens":0,"logprobs":1,
          "logit_bias":{"0":-100,"50256":2.5}})");
  EXPECT_EQ(request.answers(), 6);
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.options.max_tokens, 0);
  ASSERT_EQ(request.options.logit_bias.size(), 2U);
  EXPECT_EQ(request.options.logit_bias[1].token, 50256);
  EXPECT_EQ(request.options.logit_bias[1].bias, 2.5);
}

// Clients send null for what their users did not give.
TEST(ServeRequest, TakesNullForEveryOptionalFieldAsIfItWasAbsent) {
  std::string completion = R"({"prompt":"a")";
  for (const char* field : {"model",
                            "context",
                            "max_tokens",
                            "temperature",
                            "top_p",
                            "top_k",
                            "min_p",
                            "frequency_penalty",
                            "presence_penalty",
                            "repetition_penalty",
                            "seed",
                            "stop",
                            "n",
                            "best_of",
                            "stream",
                            "stream_options",
                            "logit_bias",
                            "logprobs",
                            "echo",
                            "suffix",
                            "user",
                            "a_field_of_others"})
    completion += std::string(",\"") + field + "\":null";
  const AnswerRequest request = parse_completion(completion + "}");
  EXPECT_FALSE(request.options.max_tokens || request.options.temperature || request.options.top_k ||
               request.options.seed || request.options.logprobs || request.echo || request.stream);
  EXPECT_TRUE(request.options.stop.empty() && request.options.logit_bias.empty());
  EXPECT_EQ(request.answers(), 1);
  EXPECT_FALSE(
      parse_completion(R"({"prompt":"a","stream":true,"stream_options":{"include_usage":null}})")
          .stream_usage);
  std::string chat = R"({"messages":[{"role":"user","content":"a","name":null}])";
  for (const char* field :
       {"model", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs",
        "response_format", "modalities", "tools", "tool_choice", "logit_bias", "stop", "stream"})
    chat += std::string(",\"") + field + "\":null";
  EXPECT_FALSE(parse_chat(chat + "}").options.logprobs);
  const ContextRequest context =
      parse_context(R"({"name":"a","text":"b","chat":null,"system":null})");
  EXPECT_FALSE(context.chat);
}

TEST(ServeRequest, LeavesToTheModelWhatIsNotGiven) {
  const AnswerRequest request = parse_completion(R"({"prompt":"a","temperature":null})");
  EXPECT_FALSE(request.options.temperature || request.options.top_k || request.options.seed ||
               request.options.max_tokens || request.options.logprobs);
  EXPECT_EQ(request.options.choices, 1);
  EXPECT_FALSE(request.stream);
}

TEST(ServeRequest, TakesMessagesWithPartsOfText) {
  const AnswerRequest request = parse_chat(
      R"({"messages":[{"role":"system","content":"Be brief."},
          {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
          "max_completion_tokens":5,"max_tokens":5,"logprobs":true,"top_logprobs":3,"tools":[]})");
  ASSERT_EQ(request.messages.size(), 2U);
  EXPECT_EQ(request.messages[1].role, "user");
  EXPECT_EQ(request.messages[1].content, "ab");
  EXPECT_EQ(request.options.max_tokens, 5);
  EXPECT_EQ(request.options.logprobs, 3);
}

struct Bad {
  const char* body;
  const char* param;
};

TEST(ServeRequest, RefusesCompletionsNamingTheField) {
  for (
      const Bad& bad : std::initializer_list<Bad>{
          {"", ""},
          {"{", ""},
          {"[]", ""},
          {"\"prompt\"", ""},
          {"null", ""},
          {"{\"prompt\":\"\xff\"}", ""},
          {R"({"prompt":"a","prompt":"b"})", ""},
          {"{}", "prompt"},
          {R"({"prompt":null})", "prompt"},
          {R"({"prompt":7})", "prompt"},
          {R"({"prompt":["a",1]})", "prompt"},
          {R"({"prompt":[1,"a"]})", "prompt"},
          {R"({"prompt":[]})", "prompt"},
          {R"({"prompt":[[]]})", "prompt"},
          {R"({"prompt":[[1],["a"]]})", "prompt"},
          {R"({"prompt":[[1],2]})", "prompt"},
          {R"({"prompt":[-1]})", "prompt"},
          {R"({"prompt":[1.5]})", "prompt"},
          {R"({"prompt":[2147483648]})", "prompt"},
          {R"({"prompt":[18446744073709551615]})", "prompt"},
          {R"({"prompt":["a",null]})", "prompt"},
          {R"({"prompt":[true]})", "prompt"},
          {R"({"prompt":{"a":1}})", "prompt"},
          {R"({"prompt":"a","max_tokens":0,"echo":false})", "max_tokens"},
          {R"({"prompt":"a","echo":1})", "echo"},
          {R"({"prompt":"a","max_tokens":0})", "max_tokens"},
          {R"({"prompt":"a","max_tokens":-2})", "max_tokens"},
          {R"({"prompt":"a","max_tokens":1.5})", "max_tokens"},
          {R"({"prompt":"a","max_tokens":1e300})", "max_tokens"},
          {R"({"prompt":"a","max_tokens":18446744073709551615})", "max_tokens"},
          {R"({"prompt":"a","max_tokens":"7"})", "max_tokens"},
          {R"({"prompt":"a","max_tokens":true})", "max_tokens"},
          {R"({"prompt":"a","temperature":-0.1})", "temperature"},
          {R"({"prompt":"a","temperature":"hot"})", "temperature"},
          {R"({"prompt":"a","top_p":-0.1})", "top_p"},
          {R"({"prompt":"a","top_p":1.1})", "top_p"},
          {R"({"prompt":"a","top_k":-2})", "top_k"},
          {R"({"prompt":"a","n":0})", "n"},
          {R"({"prompt":"a","n":9})", "n"},
          {R"({"prompt":"a","best_of":3})", "best_of"},
          {R"({"prompt":"a","stream":1})", "stream"},
          {R"({"prompt":"a","stream":"true"})", "stream"},
          {R"({"prompt":"a","stream_options":{}})", "stream_options"},
          {R"({"prompt":"a","stream":true,"stream_options":{"x":1}})", "stream_options.x"},
          {R"({"prompt":"a","stop":[1]})", "stop"},
          {R"({"prompt":"a","stop":""})", "stop"},
          {R"({"prompt":"a","stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]})",
           "stop"},
          {R"({"prompt":"a","logit_bias":{"a":1}})", "logit_bias"},
          {R"({"prompt":"a","logit_bias":{"-1":1}})", "logit_bias"},
          {R"({"prompt":"a","logit_bias":{"05":1}})", "logit_bias"},
          {R"({"prompt":"a","logit_bias":{"":1}})", "logit_bias"},
          {R"({"prompt":"a","logit_bias":{"5":101}})", "logit_bias"},
          {R"({"prompt":"a","logit_bias":{"5":"1"}})", "logit_bias"},
          {R"({"prompt":"a","logit_bias":{"5":null}})", "logit_bias"},
          {R"({"prompt":"a","logit_bias":[[5,1]]})", "logit_bias"},
          {R"({"prompt":"a","logit_bias":{"4294967296":1}})", "logit_bias"},
          {R"({"prompt":"a","suffix":"z"})", "suffix"},
          {R"({"prompt":"a","context":7})", "context"},
          {R"({"prompt":"a","messages":[]})", "messages"},
          {R"({"prompt":"a","max_token":1})", "max_token"}}) {
    const Problem problem = refused(parse_completion, bad.body);
    EXPECT_EQ(problem.status(), 400) << bad.body;
    EXPECT_EQ(problem.param(), bad.param) << bad.body << problem.message();
    EXPECT_EQ(problem.message().find('\n'), std::string::npos) << bad.body;
    EXPECT_EQ(problem.message().rfind("request body", 0), 0U) << problem.message();
  }
}

TEST(ServeRequest, RefusesChatsNamingTheField) {
  for (
      const Bad& bad : std::initializer_list<Bad>{
          {"{}", "messages"},
          {R"({"messages":[]})", "messages"},
          {R"({"messages":{}})", "messages"},
          {R"({"messages":[7]})", "messages[0]"},
          {R"({"messages":[{"content":"a"}]})", "messages[0].role"},
          {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
          {R"({"messages":[{"role":"user","content":7}]})", "messages[0].content"},
          {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
           "messages[0].content.type"},
          {R"({"messages":[{"role":"user","content":"a","tool_call":[]}]})",
           "messages[0].tool_call"},
          {R"({"messages":[{"role":"user","content":"a"}],"prompt":"a"})", "prompt"},
          {R"({"messages":[{"role":"user","content":"a"}],"max_tokens":1,"max_completion_tokens":2})",
           "max_completion_tokens"},
          {R"({"messages":[{"role":"user","content":"a"}],"logprobs":3})", "logprobs"},
          {R"({"messages":[{"role":"user","content":"a"}],"top_logprobs":3})", "top_logprobs"},
          {R"({"messages":[{"role":"user","content":"a"}],"response_format":"json"})",
           "response_format"},
          {R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"xml"}})",
           "response_format.type"},
          {R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema"}})",
           "response_format.json_schema"},
          {R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"schema":[]}}})",
           "response_format.json_schema.schema"},
          {R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_object"},
              "tools":[{"type":"function","function":{"name":"w"}}]})",
           "response_format"},
          {R"({"messages":[{"role":"user","content":"a"}],"tools":[7]})", "tools[0]"}}) {
    const Problem problem = refused(parse_chat, bad.body);
    EXPECT_EQ(problem.status(), 400) << bad.body;
    EXPECT_EQ(problem.param(), bad.param) << bad.body << problem.message();
  }
}

TEST(ServeRequest, RefusesDepthAndLengthWithinBounds) {
  const std::string deep =
      "{\"prompt\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_EQ(refused(parse_completion, deep).code(), "invalid_json");
  const std::string name(100000, 'x');
  EXPECT_LT(refused(parse_completion, "{\"prompt\":\"a\",\"" + name + "\":1}").message().size(),
            400U);
  EXPECT_LT(refused(parse_completion, "{\"prompt\":\"a\",\"n\":\"" + name + "\"}").message().size(),
            400U);
  std::string prompts = "\"a\"", biases = "\"0\":1";
  for (int i = 1; i <= 1024; ++i) {
    prompts += ",\"a\"";
    biases += ",\"" + std::to_string(i) + "\":1";
  }
  EXPECT_EQ(refused(parse_completion, "{\"prompt\":[" + prompts + "]}").param(), "prompt");
  EXPECT_EQ(refused(parse_completion, "{\"prompt\":\"a\",\"logit_bias\":{" + biases + "}}").param(),
            "logit_bias");
  EXPECT_EQ(
      refused(parse_completion, "{\"n\":8,\"prompt\":[" + prompts.substr(0, 4 * 500 - 1) + "]}")
          .param(),
      "n");
}

TEST(ServeRequest, NamesOfContextsAreNoPaths) {
  for (const char* name : {"a", "book-2_v1.0", "0"}) EXPECT_TRUE(is_context_name(name)) << name;
  for (const std::string& name :
       {std::string(), std::string("."), std::string("../a"), std::string("a/b"),
        std::string("a b"), std::string("\xc3\xa9"), std::string(65, 'a'), std::string("a\0b", 3)})
    EXPECT_FALSE(is_context_name(name)) << name;
  EXPECT_EQ(parse_context(R"({"name":"a","text":"b","chat":true,"system":"c"})").system, "c");
  for (const Bad& bad :
       std::initializer_list<Bad>{{R"({"text":"b"})", "name"},
                                  {R"({"name":"../b","text":"b"})", "name"},
                                  {R"({"name":"a"})", "text"},
                                  {R"({"name":"a","text":""})", "text"},
                                  {R"({"name":"a","text":"b","system":"c"})", "system"},
                                  {R"({"name":"a","text":"b","file":"/etc/passwd"})", "file"}})
    EXPECT_EQ(refused(parse_context, bad.body).param(), bad.param) << bad.body;
}

AnswerRequest chat_of(std::int64_t choices) {
  AnswerRequest request;
  request.chat = true;
  request.options.choices = choices;
  return request;
}

TEST(ServeResponse, PutsEventsTogether) {
  Responder responder(chat_of(2), "id", 7, "m");
  const Json json = Json::parse(responder.whole({{.choice = 1, .text = "x"},
                                                 {.choice = 0, .text = "a"},
                                                 {.choice = 0, .text = "b", .finish = "stop"},
                                                 {.choice = 1, .finish = "length"}},
                                                {.context = 100, .prompt = 3, .generated = 4}));
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["choices"][0]["message"]["content"], "ab");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["choices"][1]["message"]["content"], "x");
  EXPECT_EQ(json["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 103);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 100);
  EXPECT_EQ(json["usage"]["total_tokens"], 107);
}

TEST(ServeResponse, StreamsAreChunksOfTheSame) {
  Responder responder(chat_of(1), "id", 7, "m");
  ASSERT_EQ(responder.opening().size(), 1U);
  EXPECT_EQ(Json::parse(responder.opening()[0])["choices"][0]["delta"]["role"], "assistant");
  const Json chunk = Json::parse(responder.chunk({.text = "a\nb"}));
  EXPECT_EQ(chunk["object"], "chat.completion.chunk");
  EXPECT_EQ(chunk["choices"][0]["delta"]["content"], "a\nb");
  EXPECT_TRUE(chunk["choices"][0]["finish_reason"].is_null());
  const std::string event = sse(responder.chunk({.text = "\n\ndata: x\n\n"}));
  EXPECT_EQ(event.find("\n\n"), event.size() - 2);  // text begins no event of its own
}

TEST(ServeResponse, LogprobsTellWhereTokensBegin) {
  AnswerRequest request;
  Responder responder(request, "id", 7, "m");
  responder.chunk(
      {.text = "\xc3\xa9", .logprobs = {{"bytes:\\xc3", "\xc3", -1}, {"bytes:\\xa9", "\xa9", -2}}});
  const Json json = Json::parse(responder.chunk(
      {.text = "b", .logprobs = {{"b", "b", -0.5, {{"b", "b", -0.5}, {"c", "c", -1}}}}}));
  EXPECT_EQ(json["choices"][0]["logprobs"]["text_offset"][0], 1);
  EXPECT_EQ(json["choices"][0]["logprobs"]["top_logprobs"][0]["c"], -1);
  EXPECT_EQ(json["choices"][0]["logprobs"]["tokens"][0], "b");
}

TEST(ServeResponse, CommentsTellHowFarAPromptIsRead) {
  EXPECT_EQ(sse_comment({.total = 4300}), ": waiting in the queue\n\n");
  EXPECT_EQ(sse_comment({.begun = true, .read = 512, .total = 4300}),
            ": reading, 512 of 4300 tokens\n\n");
  EXPECT_EQ(sse_comment({.begun = true, .read = 4300, .total = 4300}), ": answering\n\n");
}

TEST(ServeResponse, AlternativesDoNotOverwriteEachOther) {
  AnswerRequest request;
  Responder responder(request, "id", 7, "m");
  const std::vector<ToldToken> tokens = {
      {"<s>", ""},
      {"bytes:\\xe2",
       "\xe2",
       -0.099,
       {{"bytes:\\xe2", "\xe2", -0.099}, {"<e>", "", -3}, {"a", "a", -4}, {"a", "a", -5}}}};
  const Json told = Json::parse(responder.chunk({.logprobs = tokens}))["choices"][0]["logprobs"];
  EXPECT_EQ(told["tokens"], (Json{"<s>", "bytes:\\xe2"}));
  EXPECT_EQ(told["token_logprobs"], (Json{nullptr, -0.099}));
  EXPECT_TRUE(told["top_logprobs"][0].is_null());
  EXPECT_EQ(told["top_logprobs"][1], (Json{{"bytes:\\xe2", -0.099}, {"<e>", -3}, {"a", -4}}));
  Responder chat(chat_of(1), "id", 7, "m");
  const Json content =
      Json::parse(chat.chunk({.logprobs = tokens}))["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(content[1]["bytes"], Json{0xe2});
  EXPECT_EQ(content[1]["top_logprobs"][1]["token"], "<e>");
  EXPECT_TRUE(content[1]["top_logprobs"][1]["bytes"].is_null()) << "it is no part of the text";
}

TEST(ServeTokenName, NoTwoTokensOfAVocabularyHaveOneName) {
  for (const char* file :
       {"models/needle-14m/tokenizer.json", "tests/fixtures/tokenizer/pieces.json"}) {
    const Tokenizer tokenizer = Tokenizer::load(std::string(TOPKV_SOURCE_DIR "/") + file);
    std::map<std::string, Token> names;
    for (Token token = 0; token < tokenizer.vocab_size() + 8; ++token) {  // a padded vocabulary
      const std::string name = token_name(tokenizer, token);
      EXPECT_EQ(valid_utf8_bytes(name), name.size()) << token;
      const auto [at, is_new] = names.emplace(name, token);
      // Pieces have some bytes twice: as a piece, and as <0x41>.
      EXPECT_TRUE(is_new || tokenizer.bytes_of_token(token) == tokenizer.bytes_of_token(at->second))
          << name;
    }
  }
  const Tokenizer tokenizer = Tokenizer::load(TOPKV_SOURCE_DIR "/models/needle-14m/tokenizer.json");
  EXPECT_EQ(token_name(tokenizer, tokenizer.find("<|bos|>")), "<|bos|>");
  EXPECT_EQ(token_name(tokenizer, 4096), "token_id:4096");
  EXPECT_EQ(token_name(tokenizer, tokenizer.encode("a").front()), "a");
  EXPECT_EQ(token_name(tokenizer, tokenizer.encode("\xf0\x9f\x92\xa9").front()), "bytes:\\xf0");
}

TEST(ServeNames, StandForTheModelOrForAContextBehindIt) {
  const ServedNames names("m", {"org/chat:7b", "m:whole"});
  for (const char* name : {"m", "org/chat:7b", "m:whole"}) {
    ASSERT_TRUE(names.find(name)) << name;
    EXPECT_EQ(names.find(name)->context, "") << name;
  }
  for (const char* name : {"m:book", "org/chat:7b:book", "m:whole:book"}) {
    ASSERT_TRUE(names.find(name)) << name;
    EXPECT_EQ(names.find(name)->context, "book") << name;
  }
  for (const char* name : {"", "M", "m:", "m:../x", ":book", "other", "other:book", "book"})
    EXPECT_FALSE(names.find(name)) << name;
  EXPECT_EQ(names.with_context("book"), "m:book");
  for (const char* alias : {"", "a b", "a\"", "a\\", "\xc3\xa9", "a\n"})
    EXPECT_FALSE(is_alias(alias)) << alias;
}

TEST(ServeEcho, TokensWithinABeginningAreCounted) {
  const Tokenizer tokenizer = Tokenizer::load(TOPKV_SOURCE_DIR "/models/needle-14m/tokenizer.json");
  const std::string left = " There and back", prompt = " again.";
  const std::vector<Token> tokens = tokenizer.encode(left + prompt);
  for (std::size_t cut = 0; cut <= left.size(); ++cut) {
    const std::int64_t within = tokens_within(tokenizer, tokens, left.substr(0, cut));
    std::string before;
    for (std::int64_t i = 0; i < within; ++i)
      before += tokenizer.bytes_of_token(tokens[static_cast<std::size_t>(i)]);
    EXPECT_LE(before.size(), cut);
    EXPECT_GT(
        before.size() + tokenizer.bytes_of_token(tokens[static_cast<std::size_t>(within)]).size(),
        cut);
  }
}

TEST(ServeProblem, HasTheFormOfOpenAI) {
  const Json json = Json::parse(error_body({429, "a \"b\" \xff", "", "queue_full"}));
  EXPECT_EQ(json["error"]["type"], "rate_limit_error");
  EXPECT_EQ(json["error"]["code"], "queue_full");
  EXPECT_TRUE(json["error"]["param"].is_null());
}

TEST(ServeGuard, KeysAreComparedWhole) {
  EXPECT_TRUE(same_secret("secret", "secret"));
  for (const char* given : {"", "s", "secre", "secret2", "Secret", "secretsecret"})
    EXPECT_FALSE(same_secret(given, "secret")) << given;
  EXPECT_FALSE(same_secret("a", ""));
  EXPECT_EQ(bearer_key("Bearer abc"), "abc");
  EXPECT_EQ(bearer_key("bearer abc"), "abc");
  EXPECT_EQ(bearer_key("Basic abc"), "");
  EXPECT_EQ(bearer_key("Bearer "), "");
}

TEST(ServeGuard, HostsOfThisMachine) {
  for (const char* host : {"localhost", "LocalHost:80", "127.0.0.1:8080", "[::1]:1", "127.9.9.9"})
    EXPECT_TRUE(is_loopback_host_header(host)) << host;
  for (const char* host :
       {"", "evil.example", "127.0.0.1.evil.example", "[::2]", "localhost.evil", "10.0.0.1"})
    EXPECT_FALSE(is_loopback_host_header(host)) << host;
  EXPECT_TRUE(is_loopback(std::string("::1")));
  EXPECT_FALSE(is_loopback(std::string("0.0.0.0")));
}

}  // namespace
}  // namespace topkv::serve
