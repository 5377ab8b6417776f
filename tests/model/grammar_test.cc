// Answers held to a JSON schema: the tokens that may follow are those of a list of all texts that
// conform, and answers of the bundled model, which writes no JSON, conform with drafts as without.
#include "topkv/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "src/text/grammar/json_grammar.h"
#include "src/text/grammar/json_schema.h"
#include "tests/support/bundled_model.h"
#include "tests/support/drafts.h"
#include "topkv/draft_model.h"
#include "topkv/error.h"
#include "topkv/generation.h"

namespace topkv {
namespace {

using ::test::bundled;
using ::test::ForcedDrafts;
using Json = nlohmann::json;

bool allows(std::span<const std::int32_t> words, std::size_t token) {
  return (static_cast<std::uint32_t>(words[token / 32]) >> (token % 32) & 1) != 0;
}

/// Goes through every text that the grammar can reach and compares what may follow with the list.
void expect_texts(const std::string& schema, const std::set<std::string>& texts) {
  std::vector<std::string> tokens = {"",     "",     R"({")",      R"("a")",  R"(":)",
                                     "tru",  "e}",   "12",         "]}",      R"(,")",
                                     "\xc3", "\xa9", "\xc3\xa9\"", R"("x"])", "[["};
  for (char c = '!'; c <= '~'; ++c) tokens.emplace_back(1, c);
  while (tokens.size() % 32 != 5) tokens.emplace_back();
  constexpr Token end = 1;
  const auto vocabulary = grammar_vocabulary(tokens, {end});
  const auto grammar = compile_json_grammar(*vocabulary, checked_json_schema(schema));
  std::set<std::string> seen;
  std::size_t whole = 0;
  std::vector<std::vector<Token>> ways = {{}};
  while (!ways.empty()) {
    const std::vector<Token> way = ways.back();
    ways.pop_back();
    const auto state = grammar->begin();
    std::string text;
    for (const Token token : way) {
      state->accept(token);
      text += tokens[static_cast<std::size_t>(token)];
    }
    const auto allowed = state->allowed();
    for (std::size_t token = 0; token < tokens.size(); ++token) {
      const std::string next = text + tokens[token];
      const auto at = texts.lower_bound(next);
      const bool wanted =
          token == end ? texts.contains(text)
                       : !tokens[token].empty() && at != texts.end() && at->starts_with(next);
      ASSERT_EQ(allows(allowed, token), wanted) << schema << "\n" << text << "|" << tokens[token];
      if (!wanted || token == end || !seen.insert(next).second) continue;
      ways.push_back(way);
      ways.back().push_back(static_cast<Token>(token));
    }
    if (texts.contains(text)) ++whole;
  }
  EXPECT_EQ(whole, texts.size());
}

TEST(Grammar, AllowsTheTokensOfAllTextsThatConform) {
  std::set<std::string> objects;
  for (const char* a : {R"("x")", R"("é")", "12", "null"}) {
    objects.insert(std::string(R"({"a":)") + a + "}");
    for (const char* b : {"true", "false"})
      objects.insert(std::string(R"({"a":)") + a + R"(,"b":)" + b + "}");
  }
  expect_texts(R"({"type": "object", "required": ["a"], "properties": {
      "a": {"enum": ["x", "é", 12, null]}, "b": {"type": "boolean"}}})",
               objects);
  std::set<std::string> lists;
  for (int first = 7; first <= 13; ++first) {
    lists.insert("[" + std::to_string(first) + "]");
    for (int second = 7; second <= 13; ++second)
      lists.insert("[" + std::to_string(first) + "," + std::to_string(second) + "]");
  }
  expect_texts(R"({"type": "array", "minItems": 1, "maxItems": 2, "items": {"$ref": "#/$defs/n"},
                   "$defs": {"n": {"type": "integer", "minimum": 7, "exclusiveMaximum": 14}}})",
               lists);
}

constexpr const char* order = R"({
  "type": "object", "required": ["name", "count", "kind", "tags", "next"],
  "properties": {
    "name": {"type": "string", "maxLength": 12},
    "count": {"type": "integer", "minimum": 0, "maximum": 999},
    "kind": {"enum": ["red", "blue", null]},
    "tags": {"type": "array", "minItems": 1, "maxItems": 3,
             "items": {"type": "string", "pattern": "^[a-z]{2,5}$"}},
    "next": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]}},
  "$defs": {"leaf": {"type": "object", "properties": {"on": {"type": "boolean"}},
                     "required": ["on"], "additionalProperties": false}}})";

void expect_order(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  ASSERT_TRUE(json.is_object() && json.size() == 5) << text;
  ASSERT_TRUE(json["name"].is_string() && json["count"].is_number_unsigned()) << text;
  EXPECT_LE(json["count"], 999);
  EXPECT_TRUE(json["kind"] == "red" || json["kind"] == "blue" || json["kind"].is_null()) << text;
  ASSERT_TRUE(json["tags"].is_array() && !json["tags"].empty() && json["tags"].size() <= 3) << text;
  for (const Json& tag : json["tags"]) {
    const auto& word = tag.get_ref<const std::string&>();
    EXPECT_TRUE(word.size() >= 2 && word.size() <= 5 &&
                std::ranges::all_of(word, [](char c) { return c >= 'a' && c <= 'z'; }))
        << text;
  }
  const Json& next = json["next"];
  EXPECT_TRUE(next.is_null() || (next.size() == 1 && next["on"].is_boolean())) << text;
}

/// A text with such an order in it, so that drafts are found, and a question.
std::vector<Token> order_text(const Model& model) {
  return model.tokenizer().encode(
      "<|bos|>An order: {\"name\": \"quiet-river\", \"count\": 482, \"kind\": \"blue\", \"tags\": "
      "[\"green\", \"sky\"], \"next\": {\"on\": true}}\nAnother order: {\"name\": \"quiet-lake\", "
      "\"count\": 17, \"kind\": null, \"tags\": [\"sun\"], \"next\": null}\n");
}

TEST(Grammar, AnswersConformWithDraftsAsWithoutThem) {
  const Device device;
  const auto model = std::make_shared<Model>(bundled(device));
  const auto drafts = std::make_shared<DraftModel>(model, *model, DraftModelOptions{.window = 64});
  const auto context = model->prefill(order_text(*model));
  const std::vector<Token> prompt = model->tokenizer().encode("The third order:");
  const auto grammar = Grammar::json_schema(*model, order);
  EXPECT_GT(grammar->bytes(), 0);
  std::int64_t accepted = 0;
  for (unsigned seed = 0; seed < 3; ++seed) {
    GenerateOptions options = test::varied_options(seed);
    options.max_tokens = 300;
    options.grammar = grammar;
    const auto asked = [&](Draft draft) {
      Session session(context, {.capacity = 400}, device);
      return test::ask(*model, session, prompt, options, draft, true);
    };
    const test::Asked want = asked(Draft::none);
    EXPECT_TRUE(want.result.ended());
    expect_order(want.result.text);
    for (const bool guesses : {false, true}) {
      const ForcedDrafts forced(3);
      options.draft_model = guesses ? drafts : nullptr;
      const test::Asked got = asked(Draft::lookup);
      test::expect_equal(got, want);
      accepted += got.result.accepted;
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(Grammar, SessionsOfABatchHaveTheirOwn) {
  const Device device;
  const Model model = bundled(device);
  const auto context = model.prefill(order_text(model));
  const std::vector<Token> prompt = model.tokenizer().encode("The third order:");
  std::vector<Session> sessions;
  for (int i = 0; i < 3; ++i)
    sessions.emplace_back(context, RetrievalOptions{.capacity = 400}, device);
  GenerationBatch batch(model);
  std::vector<std::string> texts(3);
  for (std::size_t i = 0; i < 3; ++i) {
    GenerateOptions options{.max_tokens = i == 2 ? 8 : 300};
    if (i == 0) options.grammar = Grammar::json_schema(model, order);
    if (i == 1) options.grammar = Grammar::json_schema(model, R"({"enum": ["one", "two"]})");
    if (i == 1) options.sampling = {.temperature = 2, .seed = 7};
    batch.add(sessions[i], prompt, options, {}, [&texts, i](std::string_view piece) {
      texts[i] += piece;
      return true;
    });
  }
  while (batch.size() > 0) {
    for (const auto& one : batch.step()) {
      EXPECT_FALSE(one.error);
      EXPECT_EQ(one.result.finish, one.id == 2 ? Finish::length : Finish::end_token);
    }
  }
  expect_order(texts[0]);
  EXPECT_TRUE(texts[1] == R"("one")" || texts[1] == R"("two")") << texts[1];
  EXPECT_FALSE(Json::accept(texts[2])) << texts[2];
}

TEST(Grammar, RefusesSchemasThatItCannotHoldAnswersTo) {
  const Model model = bundled(Device());
  const std::string deep = [] {
    std::string text = R"({"type": "null"})";
    for (int i = 0; i < 70; ++i) text = R"({"anyOf": [)" + text + "]}";
    return text;
  }();
  const struct {
    std::string schema;
    const char* found;
  } cases[] = {
      {"", "JSON schema"},
      {"[]", "# is []"},
      {"false", "# is false"},
      {deep, "64 deep"},
      {std::string(70000, ' ') + "{}", "70002 bytes"},
      {R"({"type": "thing"})", "thing"},
      {R"({"not": {"type": "null"}})", "has not"},
      {R"({"minLength": 3})", "a type beside it"},
      {R"({"type": "array", "uniqueItems": true})", "has uniqueItems"},
      {R"({"type": "array", "contains": {}})", "has contains"},
      {R"({"type": "number", "multipleOf": 0.1})", "multipleOf"},
      {R"({"type": "string", "maxLength": 5000})", "maxLength 5000"},
      {R"({"type": "string", "pattern": "(a{60}){60}"})", "pattern"},
      {R"({"type": "string", "pattern": "(?<!a)b"})", ""},
      {R"({"anyOf": [{"type": "string", "pattern": ")" + std::string(512, 'a') + R"("}, )" +
           R"({"type": "string", "pattern": ")" + std::string(513, 'a') + R"("}]})",
       "up to 512 bytes"},
      {R"({"type": "string", "pattern": "a+", "minLength": 2})", "minLength"},
      {R"({"type": "number", "minimum": 1e-300})", "minimum 1e-300"},
      {R"({"type": "object", "minProperties": 65})", "minProperties 65"},
      {R"({"type": "object", "patternProperties": {"a": {}}})", "patternProperties"},
      {R"({"type": "object", "properties": {"a": {}}, "required": ["b"]})", "requires \"b\""},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", ""},
      {R"({"enum": ["a", 1], "type": "string"})", "enum 1 and type"},
      {R"({"anyOf": [{"type": "null"}], "type": "object"})", "has type"},
      {R"({"allOf": [{"type": "null"}, {"type": "object"}]})", "allOf"},
      {R"({"$ref": "#/$defs/a"})", "refers to #/$defs/a"},
      {R"({"$ref": "http://a.example/b"})", "refers to http"},
      {R"({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})", ""},
  };
  for (const auto& [schema, found] : cases) {
    try {
      Grammar::json_schema(model, schema);
      ADD_FAILURE() << "taken: " << schema.substr(0, 100);
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(found), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  const Model other = bundled(Device());
  const auto context = other.prefill(order_text(other));
  Session session(context, {.capacity = 64}, other.device());
  GenerateOptions options{.max_tokens = 8};
  options.grammar = Grammar::json_schema(model, "{}");
  EXPECT_THROW(other.generate(session, std::vector<Token>{5}, options), InvalidArgument);
  EXPECT_EQ(session.own_tokens(), 0);
}

}  // namespace
}  // namespace topkv
