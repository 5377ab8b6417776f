// From requests to answers, on the bundled model: what a request would take is checked, prompts are
// answered one by one as together, and what is echoed is scored as the model scores it.

#include "src/serve/run/service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "src/model/generate/draft_length.h"
#include "src/serve/answer/response.h"
#include "src/serve/run/prompt_boundary.h"
#include "tests/serve/serving.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

using namespace test;

RetrievalOptions exact() { return {.index = "exact", .window = 4096}; }

ServiceOptions options(std::int64_t room = 2000) {
  return {.model_name = "needle",
          .aliases = {"gpt-4"},
          .room = room,
          .limits = {},
          .reading = {{.kv_dtype = DType::f32}, exact()}};
}

ServedContext context_named(const std::string& name, const std::string& text) {
  const KeptPrompt kept = kept_prompt(model().tokenizer(), text);
  return {.name = name,
          .context = model().prefill(kept.tokens, {.kv_dtype = DType::f32}),
          .end = kept.end,
          .tokens = kept.tokens,
          .retrieval = exact()};
}

AnswerRequest asking(std::vector<Prompt> prompts, std::int64_t tokens = 4) {
  AnswerRequest request;
  request.prompts = std::move(prompts);
  request.options.max_tokens = tokens;
  request.options.temperature = 0;
  return request;
}

/// All events of a request, put together by answer.
std::vector<Event> answers(Service& service, const AnswerRequest& request) {
  const Accepted accepted = service.answer(request);
  std::vector<Event> whole(static_cast<std::size_t>(request.answers()));
  for (int i = 0; i < 6000 && !accepted.answer->finished(); ++i) {
    const std::optional<Event> event = accepted.answer->next(10ms);
    if (!event) continue;
    Event& answer = whole.at(event->choice);
    answer.text += event->text;
    answer.finish += event->finish;
    answer.logprobs.insert(answer.logprobs.end(), event->logprobs.begin(), event->logprobs.end());
  }
  EXPECT_TRUE(accepted.answer->finished());
  return whole;
}

/// Log-probabilities of tokens 1 and on, from the model's logits by the definition.
std::vector<double> scores(const std::vector<Token>& tokens) {
  const std::vector<float> logits = model().logits(tokens);
  const auto width = static_cast<std::size_t>(model().config().vocab_size);
  std::vector<double> scores;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    const float* row = logits.data() + i * width;
    double sum = 0;
    for (std::size_t t = 0; t < width; ++t) sum += std::exp(double{row[t]});
    scores.push_back(row[tokens[i + 1]] - std::log(sum));
  }
  return scores;
}

std::string long_text() {
  std::string text = "The grass is green.";
  while (model().tokenizer().encode(text).size() < 300)
    text += " The sky is blue. The sun is yellow.";
  return text;
}

TEST(ServeService, AnswersWithoutAContextWhateverTheIndex) {
  for (const RetrievalOptions& retrieval :
       {RetrievalOptions{.index = "none", .window = 4096},
        RetrievalOptions{.index = "hnsw", .tail = "mean", .window = 4096}}) {
    ServiceOptions with = options(100);
    with.reading.retrieval = retrieval;
    Service service(model(), {}, with);
    EXPECT_FALSE(answers(service, asking({"The grass is"}))[0].text.empty()) << retrieval.index;
  }
}

TEST(ServeService, ChecksWhatARequestWouldTake) {
  Service service(model(), {}, options(100));
  AnswerRequest request = asking({"The grass is"});
  request.options.max_tokens.reset();
  const auto refused = [&] { return problem_of([&] { service.answer(request); }); };
  EXPECT_FALSE(answers(service, request)[0].text.empty());
  const std::string tokens = std::to_string(model().tokenizer().encode("The grass is").size());
  const std::string left = std::to_string(100 - std::stoll(tokens));
  // litellm and LangChain look for these words, and for the code.
  const std::string length =
      "This model's maximum context length is 100 tokens, for a prompt and its answer together, "
      "beside the context (the "
      "server's --room); prompt has ";
  request.options.max_tokens = 100;
  EXPECT_EQ(refused().code(), "context_length_exceeded");
  EXPECT_EQ(refused().param(), "max_tokens");
  EXPECT_EQ(refused().message(), length + tokens +
                                     " tokens and max_tokens is 100, expected up to " + left +
                                     ": lower it, or shorten prompt "
                                     "(context_length_exceeded)");
  request.options.max_tokens = std::int64_t{1} << 62;
  EXPECT_EQ(refused().param(), "max_tokens");
  request.prompts = {"The grass is", long_text()};
  request.options.max_tokens = 5;
  EXPECT_EQ(refused().param(), "prompt");
  EXPECT_EQ(refused().code(), "context_length_exceeded");
  EXPECT_EQ(refused().message().rfind(length, 0), 0U) << refused().message();
  EXPECT_NE(refused().message().find("(context_length_exceeded)"), std::string::npos)
      << refused().message();
  request.prompts = {""};
  EXPECT_EQ(refused().param(), "prompt");
  for (const Token id : {static_cast<Token>(4096), INT32_MAX}) {
    request.prompts = {std::vector<Token>{5, id}};
    EXPECT_EQ(refused().param(), "prompt");
    request.prompts = {"a"};
    request.options.logit_bias = {{id, 1}};
    EXPECT_EQ(refused().param(), "logit_bias");
    request.options.logit_bias.clear();
  }
  request.prompts = std::vector<Prompt>(33, "a");
  request.options.choices = 2;
  EXPECT_EQ(refused().status(), 400) << "such a request never fits into the queue";
  EXPECT_EQ(refused().code(), "too_many_answers");
  request.options.choices = 1;
  request.chat = true;
  EXPECT_EQ(refused().code(), "no_chat_template");
}

TEST(ServeService, BoundsWhatEchoedPromptsAreScoredWith) {
  Service service(model(), {}, options(20000));
  AnswerRequest request = asking(std::vector<Prompt>(50, std::vector<Token>(2000, 70)), 0);
  request.echo = true;
  request.options.logprobs = 20;
  const Problem problem = problem_of([&] { service.answer(request); });
  EXPECT_EQ(problem.status(), 400);
  EXPECT_EQ(problem.param(), "logprobs");
}

TEST(ServeService, BoundsTheLogProbabilitiesOfAnswers) {
  Service service(model(), {}, options(20000));
  AnswerRequest request = asking({"a"}, 10000);
  request.options.choices = 20;
  request.options.logprobs = 20;  // with the token's own: 4,200,000
  const Problem problem = problem_of([&] { service.answer(request); });
  EXPECT_EQ(problem.status(), 400);
  EXPECT_EQ(problem.param(), "logprobs");
  EXPECT_NE(std::string(problem.what()).find("4200000"), std::string::npos) << problem.what();
}

TEST(ServeService, ModelsAreNamedByAliasesAndWithContexts) {
  Service service(model(), {}, options());
  service.contexts().add(context_named("sky", "The grass is green. The sky is blue.\n"));
  AnswerRequest request = asking({"The sky is"});
  request.context = "sky";
  const std::string over = answers(service, request)[0].text;
  request.context.clear();
  for (const char* name : {"needle:sky", "gpt-4:sky"}) {
    request.model = name;
    EXPECT_EQ(service.answer(request).context, "sky");
    EXPECT_EQ(answers(service, request)[0].text, over);
    EXPECT_NE(service.one_model(name).find("\"context\":\"sky\""), std::string::npos);
  }
  for (const char* name : {"needle", "gpt-4"}) {
    request.model = name;
    EXPECT_EQ(service.answer(request).context, "");
    EXPECT_NE(service.one_model(name).find("\"context_length\":2000"), std::string::npos);
  }
  request.context = "sky";
  EXPECT_EQ(service.answer(request).context, "sky");
  request.model = "needle:other";
  EXPECT_EQ(problem_of([&] { service.answer(request); }).param(), "context");
  request.context = "";
  EXPECT_EQ(problem_of([&] { service.answer(request); }).status(), 404);
  EXPECT_EQ(problem_of([&] { service.one_model("needle:other"); }).status(), 404);
  for (const char* name : {"gpt-5", "gpt-5:sky", "sky"}) {
    request.model = name;
    EXPECT_EQ(problem_of([&] { service.answer(request); }).code(), "model_not_found");
    EXPECT_EQ(problem_of([&] { service.one_model(name); }).code(), "model_not_found");
  }
  const std::string all = service.models();
  for (const char* name : {"\"needle\"", "\"gpt-4\"", "\"needle:sky\""})
    EXPECT_NE(all.find(std::string("\"id\":") + name), std::string::npos) << all;
}

TEST(ServeService, PromptsTogetherAreAnsweredAsEachAlone) {
  Service service(model(), {}, options());
  const std::vector<Prompt> prompts = {"The grass is", model().tokenizer().encode("The sky"),
                                       "The sun is yellow. Here"};
  AnswerRequest request = asking(prompts, 6);
  request.options.temperature = 1;
  request.options.seed = 5;
  request.options.choices = 2;
  const std::vector<Event> together = answers(service, request);
  ASSERT_EQ(together.size(), 6U);
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    request.prompts = {prompts[i]};
    const std::vector<Event> alone = answers(service, request);
    for (std::size_t n = 0; n < 2; ++n)
      EXPECT_EQ(together[2 * i + n].text, alone[n].text) << i << " " << n;
    tokens += service.answer(request).answer->usage().prompt;
  }
  request.prompts = prompts;
  EXPECT_EQ(service.answer(request).answer->usage().prompt, tokens);
}

// Answers that are asked for alone, together, and by a next turn of a kept session.
TEST(ServeService, ADraftModelChangesNoAnswer) {
  const std::shared_ptr<const Model> itself(std::shared_ptr<void>(), &model());
  const auto drafts =
      std::make_shared<const DraftModel>(itself, model(), DraftModelOptions{.window = 128});
  ServiceOptions drafting = options();
  drafting.kept_bytes = std::int64_t{1} << 30;
  drafting.draft_model = drafts;
  ServiceOptions plain = drafting;
  plain.draft_model = nullptr;
  plain.draft = Draft::none;
  Service with(model(), {}, drafting);
  Service without(model(), {}, plain);
  DraftLength::forced = 4;
  std::string prompt = "The grass is green, and then there was";
  for (int turn = 0; turn < 3; ++turn) {
    AnswerRequest request = asking({prompt}, 20);
    if (turn == 1) request.options.choices = 2;
    const std::vector<Event> got = answers(with, request);
    const std::vector<Event> want = answers(without, request);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].text, want[i].text) << turn;
      EXPECT_EQ(got[i].finish, want[i].finish) << turn;
    }
    prompt += got[0].text;
  }
  DraftLength::forced = 0;
  // What is kept of an answer has the rows of the draft model, too.
  const auto kept_bytes = [](const Service& service) {
    const std::string text = service.metrics_text();
    const std::string name = "\ntopkv_kept_sessions_bytes ";
    return std::stoll(text.substr(text.find(name) + name.size()));
  };
  EXPECT_TRUE(becomes_idle(with.scheduler()) && becomes_idle(without.scheduler()));
  EXPECT_GE(kept_bytes(with) - kept_bytes(without), drafts->session_bytes());
}

TEST(ServeService, EchoedPromptsAreScoredAsTheModelScoresThem) {
  ServiceOptions keeping = options();
  keeping.kept_bytes = std::int64_t{1} << 30;  // a session that has the prompt is of no use here
  Service service(model(), {}, keeping);
  const std::vector<Token> ids = model().tokenizer().encode(long_text());
  const std::vector<double> want = scores(ids);
  for (const Prompt& prompt : {Prompt(long_text()), Prompt(ids)}) {
    for (const std::int64_t tokens : {0, 1}) {
      AnswerRequest request = asking({prompt}, tokens);
      request.echo = true;
      request.options.logprobs = 1;
      const Event answer = answers(service, request)[0];
      EXPECT_EQ(answer.text.rfind(long_text(), 0), 0U);
      EXPECT_EQ(tokens == 0, answer.text == long_text());
      EXPECT_EQ(answer.finish, "length");
      ASSERT_EQ(answer.logprobs.size(), ids.size() + static_cast<std::size_t>(tokens));
      EXPECT_FALSE(answer.logprobs[0].logprob);
      EXPECT_TRUE(answer.logprobs[0].top.empty());
      std::string spelled;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        spelled += answer.logprobs[i].bytes;
        if (i == 0) continue;
        ASSERT_TRUE(answer.logprobs[i].logprob);
        EXPECT_NEAR(*answer.logprobs[i].logprob, want[i - 1], 1e-3) << i;
        ASSERT_EQ(answer.logprobs[i].top.size(), 1U);
        EXPECT_GE(answer.logprobs[i].top[0].logprob, *answer.logprobs[i].logprob);
      }
      EXPECT_EQ(spelled, long_text());
    }
  }
  AnswerRequest request = asking({"The grass is"});
  request.echo = true;
  const Event plain = answers(service, request)[0];
  EXPECT_TRUE(plain.logprobs.empty());
  request.echo = false;
  EXPECT_EQ(plain.text, "The grass is" + answers(service, request)[0].text);
}

// A choice of several endings is scored by all of its tokens, the first among them: the context is
// before it.
TEST(ServeService, OverAContextAnEchoHasThePromptAlone) {
  const std::string text = long_text() + "\nThe sky", prompt = " is blue. The sun is";
  Service service(model(), {}, options());
  service.contexts().add(context_named("a", text));
  const std::vector<Token> all = model().tokenizer().encode(text + prompt);
  const std::vector<Token> ids = model().tokenizer().encode(prompt);
  const std::vector<double> want = scores(all);
  for (const Prompt& asked : {Prompt(prompt), Prompt(ids)}) {
    AnswerRequest request = asking({asked}, 0);
    request.context = "a";
    request.echo = true;
    request.options.logprobs = 0;
    const Event answer = answers(service, request)[0];
    EXPECT_EQ(answer.text, prompt);
    ASSERT_EQ(answer.logprobs.size(), ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ASSERT_TRUE(answer.logprobs[i].logprob) << i;
      EXPECT_NEAR(*answer.logprobs[i].logprob, want[want.size() - ids.size() + i], 1e-3) << i;
    }
  }
}

// Clients that score multiple choice leave the one generated token away: it has to be there.
TEST(ServeService, AnEndTokenIsAmongTheLogprobsOfACompletion) {
  Service service(model(), {}, options());
  const Token end = model().config().eos.at(0);
  AnswerRequest request = asking({"The grass is"}, 1);
  request.echo = true;
  request.options.logprobs = 1;
  request.options.logit_bias = {{end, 100}};
  const Event answer = answers(service, request)[0];
  EXPECT_EQ(answer.finish, "stop");
  EXPECT_EQ(answer.text, "The grass is");
  ASSERT_EQ(answer.logprobs.size(), model().tokenizer().encode("The grass is").size() + 1);
  EXPECT_EQ(answer.logprobs.back().name, model().tokenizer().content_of_token(end));
  EXPECT_EQ(answer.logprobs.back().bytes, "");
}

TEST(ServeService, TokensBeyondTheModelsReachAreReportedWithEachRequest) {
  const std::int64_t reach = model().config().reach();
  Service service(model(), {}, options(2 * reach));
  for (int i = 0; i < 2; ++i) {
    const Accepted accepted = service.answer(asking({"The grass is"}, reach));
    accepted.answer->cancel();
    EXPECT_NE(accepted.warning.find("more than the " + std::to_string(reach)), std::string::npos)
        << accepted.warning;
    EXPECT_TRUE(std::ranges::all_of(accepted.warning, [](char c) { return c >= ' ' && c <= '~'; }))
        << "it is a header";
  }
  EXPECT_EQ(service.answer(asking({"The grass is"})).warning, "");
}

/// The bundled model without a token for the byte 0x04.
Model model_without_a_byte(const TempDirectory& folder) {
  const std::filesystem::path needle =
      std::filesystem::path(TOPKV_SOURCE_DIR) / "models/needle-14m";
  for (const char* file : {"config.json", "generation_config.json", "model.safetensors"})
    std::filesystem::create_symlink(needle / file, folder.path() / file);
  std::ifstream file(needle / "tokenizer.json");
  nlohmann::json json = nlohmann::json::parse(file);
  EXPECT_EQ(json["model"]["vocab"].erase("Ą"), 1U);
  folder.write("tokenizer.json", json.dump());
  return Model::load(folder.path());
}

TEST(ServeService, BytesThatTheVocabularyLacksAreReportedWithEachRequestAndContext) {
  const TempDirectory folder;
  const Model incomplete = model_without_a_byte(folder);
  const std::string lost =
      "the vocabulary has no token for 2 bytes of the text, left out: 0x04 (2)";
  Service service(incomplete, {}, options());
  const auto warning = [&](std::vector<Prompt> prompts) {
    const Accepted accepted = service.answer(asking(std::move(prompts), 1));
    accepted.answer->cancel();
    return accepted.warning;
  };
  for (int i = 0; i < 2; ++i) EXPECT_EQ(warning({"The grass", "The\x04 sky\x04"}), lost);
  EXPECT_EQ(warning({"The grass", std::vector<Token>{5}}), "");
  const std::string text = "The grass is green.\x04\x04 The sky is blue.\n";
  service.contexts().create({.name = "lossy", .text = text, .chat = false, .system = ""});
  ContextInfo info;
  for (int i = 0; i < 6000 && info.state != "ready"; ++i) {
    std::this_thread::sleep_for(10ms);
    info = service.contexts().info("lossy");
  }
  EXPECT_EQ(info.state, "ready") << info.error;
  EXPECT_EQ(info.warning, lost);
  EXPECT_NE(service.one_context("lossy").find("\"warning\":\"" + lost), std::string::npos);
}

TEST(ServeService, ATextIsNotSaidToLackBytesThatItDoesNotHave) {
  const TempDirectory temp;
  const nlohmann::json json = {
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", {{"a", 0}, {"b", 1}, {"Ġ", 2}, {"?", 3}}},
        {"merges", nlohmann::json::array()}}}};
  std::vector<std::string> told;
  const Tokenizer tokenizer =
      Tokenizer::load(temp.write("tokenizer.json", json.dump()),
                      [&](const std::string& warning) { told.push_back(warning); });
  const KeptPrompt kept = kept_prompt(tokenizer, "ab ab ");
  EXPECT_EQ(kept.tokens.size() + kept.end.text_left.size(), 6U);
  EXPECT_TRUE(told.empty());
  kept_prompt(tokenizer, "ab c ");
  EXPECT_EQ(told.size(), 1U);
}

TEST(ServeService, ABeginningIsKeptWhateverTheVocabularyLacks) {
  const TempDirectory temp;
  const nlohmann::json json = {
      {"added_tokens",
       {nlohmann::json{{"id", 2},
                       {"content", "<s>"},
                       {"special", true},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"single_word", false},
                       {"normalized", false}}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
        {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {2}}}}}}}},
      {"model",
       {{"type", "BPE"}, {"vocab", {{"b", 0}, {"Ġ", 1}}}, {"merges", nlohmann::json::array()}}}};
  std::vector<std::string> warnings;
  const Tokenizer tokenizer =
      Tokenizer::load(temp.write("tokenizer.json", json.dump()),
                      [&](const std::string& warning) { warnings.push_back(warning); });
  const KeptPrompt kept = kept_prompt(tokenizer, "bb b bb ");
  ASSERT_FALSE(kept.tokens.empty());
  EXPECT_EQ(kept.tokens.front(), 2);
  EXPECT_EQ(kept.tokens.size() + kept.end.text_left.size(), 9U);
  EXPECT_TRUE(warnings.empty()) << warnings.front();
}

TEST(ServeService, LineEndsThatJoinAreNotCutWhateverElseTheVocabularyLacks) {
  const TempDirectory temp;
  const nlohmann::json json = {
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", {{"A", 0}, {"B", 1}, {"Ġ", 2}, {"Ċ", 3}, {"ĊĊ", 4}, {"ĠĊĊ", 5}, {"?", 6}}},
        {"merges", {"Ċ Ċ", "Ġ ĊĊ"}}}}};
  const Tokenizer tokenizer = Tokenizer::load(temp.write("tokenizer.json", json.dump()));
  const std::string text = "AB \n";
  const KeptPrompt kept = kept_prompt(tokenizer, text);
  for (const std::string prompt : {"\nAB", "AB", "B\n"}) {
    std::vector<Token> joined = kept.tokens;
    const auto rest = tokens_of_prompt(tokenizer, kept.end, {}, prompt);
    joined.insert(joined.end(), rest.begin(), rest.end());
    EXPECT_EQ(joined, tokenizer.encode(text + prompt)) << prompt;
  }
}

#if TOPKV_JINJA
TEST(ServeService, AChatIsAnsweredWholeOrRefused) {
  Service service(model(), ChatTemplate::load(TOPKV_SOURCE_DIR "/tests/fixtures/chat/qwen2.5"),
                  options());
  const auto refused = [&](const std::string& more) {
    try {
      service.answer(parse_chat(R"({"messages":[{"role":"user","content":"a"})" + more + "}"))
          .answer->cancel();
    } catch (const Problem& problem) {
      EXPECT_EQ(problem.status(), 400);
      EXPECT_EQ(problem.param(), "messages");
      return problem.message();
    }
    return std::string();
  };
  const std::string lost = refused(R"(,{"role":"critic","content":"b"}])");
  EXPECT_NE(lost.find("message 1 "), std::string::npos) << lost;
  EXPECT_NE(lost.find("critic"), std::string::npos) << lost;
  EXPECT_EQ(refused(R"(,{"role":"developer","content":"b"}])"), "")
      << "a system message to this template";
  EXPECT_EQ(refused(R"(],"tools":[{"type":"function","function":{"name":"w"}}],"max_tokens":-1)"),
            "");
  EXPECT_NE(refused(R"(],"chat_template_kwargs":{"enable_thinking":false})").find("does not use"),
            std::string::npos);
}

TEST(ServeService, AToolThatIsRequiredIsCalled) {
  Service service(model(), ChatTemplate::load(TOPKV_SOURCE_DIR "/tests/fixtures/chat/qwen2.5"),
                  options());
  const AnswerRequest request = parse_chat(R"({"messages": [{"role": "user", "content": "Warm?"}],
      "tools": [{"type": "function", "function": {"name": "weather", "parameters": {
          "type": "object", "properties": {"day": {"$ref": "#/$defs/day"}}, "required": ["day"],
          "$defs": {"day": {"enum": ["mon", "tue"]}}}}}],
      "tool_choice": "required", "max_tokens": 200, "temperature": 0})");
  Accepted accepted = [&] {
    try {
      return service.answer(request);
    } catch (const Problem& problem) {
      if (problem.message().find("not in this build") == std::string::npos) throw;
      return Accepted{};
    }
  }();
  if (!accepted.answer) GTEST_SKIP() << "without grammars";
  std::vector<Event> events;
  while (!accepted.answer->finished())
    if (std::optional<Event> event = accepted.answer->next(10ms)) events.push_back(*event);
  Responder responder(request, "id", 1, "needle", accepted.form, accepted.in_thought);
  const auto choice = nlohmann::json::parse(responder.whole(events, {}))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
  const auto& call = choice["message"]["tool_calls"].at(0)["function"];
  EXPECT_EQ(call["name"], "weather");
  const auto arguments = nlohmann::json::parse(call["arguments"].get<std::string>());
  EXPECT_TRUE(arguments["day"] == "mon" || arguments["day"] == "tue") << call;
}

TEST(ServeService, AChatContextTakesTheSystemMessageThatItWasReadWith) {
  const TempDirectory temp;
  temp.write("chat_template.jinja",
             "{% for m in messages %}{{ '<' ~ m.role ~ '>' }}{{ m.content }}{{ '\\n' }}{% endfor %}"
             "{{ '<a>' if add_generation_prompt }}");
  const ChatTemplate chat = ChatTemplate::load(temp.path());
  const Tokenizer& tokenizer = model().tokenizer();
  const std::string text = "The grass is green. The sky is blue.\n";
  const ChatMessage user = {"user", "Why?"};
  for (const std::string system : {"Be brief.", ""}) {
    const KeptPrompt kept = kept_prompt(tokenizer, chat, system, text);
    const std::vector<ChatMessage> without = {user};
    const std::vector<Token> want = tokens_of_conversation(tokenizer, kept.end, chat, without);
    for (const char* role : {"system", "developer"}) {
      const std::vector<ChatMessage> with = {{role, system}, user};
      EXPECT_EQ(tokens_of_conversation(tokenizer, kept.end, chat, with), want) << role;
      const std::vector<ChatMessage> other = {{role, "Be long."}, user};
      try {
        tokens_of_conversation(tokenizer, kept.end, chat, other);
        ADD_FAILURE() << "another system message was taken";
      } catch (const InvalidArgument& error) {
        const std::string message = error.what();
        EXPECT_NE(message.find("another system message"), std::string::npos) << message;
        EXPECT_NE(message.find(system.empty() ? "has none" : system), std::string::npos) << message;
      }
    }
  }
}
#endif

}  // namespace
}  // namespace topkv::serve
