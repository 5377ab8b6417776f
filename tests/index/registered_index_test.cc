// Registering an application's index: names, parameters, and what is checked of what it returns.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/own_index.h"
#include "tests/support/reference.h"
#include "topkv/error.h"
#include "topkv/index_spec.h"
#include "topkv/register_index.h"

namespace topkv {
namespace {

using test::OwnIndex;
using test::Registration;
using test::Spoil;

constexpr std::int64_t own_dim = 24;
constexpr std::int64_t own_keys = 300;

IndexRegistration makes_own(std::string spec = "own") {
  return {.make = [spec](std::string_view) { return std::make_unique<OwnIndex>(spec); }};
}

/// Returns the message of what `call` throws.
template <class Thrown, class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Thrown& error) {
    return error.what();
  }
  return "nothing was thrown";
}

struct OwnKeys {
  std::vector<float> data = reference::random_bf16(own_keys * own_dim, 3);
  std::vector<float> queries = reference::random_bf16(2 * own_dim, 4);
  KeyView view() const {
    return {reinterpret_cast<const std::byte*>(data.data()), DType::f32, own_keys, own_dim,
            4 * own_dim};
  }
  void search(const KeyIndex& index, SearchResult& result, std::int64_t k = 9) const {
    const std::vector<PositionRange> allowed = {{10, 200}, {0, own_keys}};
    index.search({.data = queries.data(), .count = 2, .dim = own_dim, .allowed = allowed}, k,
                 result);
  }
  std::unique_ptr<KeyIndex> built(const std::string& spec) const {
    auto index = make_index(spec);
    index->add(view());
    index->build();
    return index;
  }
};

TEST(RegisterIndex, RefusesInvalidAndTakenNames) {
  const Registration taken("own");
  for (const std::string& name :
       {std::string(), std::string("1own"), std::string("o n"), std::string("own:x"),
        std::string("ö"), std::string("o\nn"), std::string(65, 'a')}) {
    EXPECT_NE(message_of<InvalidArgument>([&] {
                register_index(name, makes_own());
              }).find("the name is invalid; expected a letter"),
              std::string::npos)
        << name;
  }
  for (const char* name : {"exact", "codes", "mean", "none", "sample", "faiss"}) {
    EXPECT_EQ(message_of<InvalidArgument>([&] { register_index(name, makes_own()); }),
              "register_index \"" + std::string(name) +
                  "\": topkv has an index or a tail of this name; expected another name");
  }
  EXPECT_EQ(message_of<InvalidArgument>([&] { register_index("own", makes_own()); }),
            "register_index \"own\": the name is registered already; expected another name, or "
            "unregister_index first");
}

TEST(RegisterIndex, RefusesRegistrationsThatLackFunctions) {
  EXPECT_EQ(message_of<InvalidArgument>([] { register_index("own", {}); }),
            "register_index \"own\": make is empty; expected a function that makes an index");
  IndexRegistration saves = makes_own();
  saves.save = [](const KeyIndex&) { return std::vector<std::byte>(); };
  EXPECT_EQ(message_of<InvalidArgument>([&] { register_index("own", saves); }),
            "register_index \"own\": load is empty; expected both save and load, or neither");
  EXPECT_FALSE(unregister_index("own"));
}

TEST(RegisterIndex, MakesSpecsOfTheNameUntilItIsForgotten) {
  EXPECT_THROW(IndexSpec("own"), InvalidArgument);
  std::unique_ptr<KeyIndex> kept;
  {
    const Registration own("own");
    const IndexSpec spec("own");
    EXPECT_EQ(spec.text(), "own");
    EXPECT_FALSE(spec.grows() || spec.has_tail() || spec.has_code_tail() || spec.learns_queries());
    spec.check(own_dim, own_keys);
    spec.check_index();
    kept = spec.make();
    EXPECT_EQ(message_of<InvalidArgument>([] { IndexSpec("own:"); }),
              "index \"own:\": parameters are missing after the colon; write \"own\" or \"own:…\"");
    EXPECT_NE(message_of<InvalidArgument>([] {
                IndexSpec("owm");
              }).find("did you mean own?; known are exact"),
              std::string::npos);
  }
  EXPECT_THROW(IndexSpec("own"), InvalidArgument);
  const OwnKeys keys;
  kept->add(keys.view());
  kept->build();
  SearchResult found;
  keys.search(*kept, found);
  EXPECT_EQ(found.positions(0).size(), 9U);
}

TEST(RegisterIndex, FunctionsMayCallTopkvWhenTheyEnd) {
  int ends = 0;
  std::shared_ptr<void> last(nullptr, [&](void*) {
    EXPECT_FALSE(unregister_index("own"));
    ++ends;
  });
  IndexRegistration registration = makes_own();
  registration.load = [last](KeyIndex&, const KeyView&, std::span<const std::byte>) {};
  registration.save = [](const KeyIndex&) { return std::vector<std::byte>(); };
  register_index("own", std::move(registration));
  last.reset();  // the registration has the other copy
  EXPECT_TRUE(unregister_index("own"));
  EXPECT_EQ(ends, 1);
}

TEST(RegisterIndex, ParametersReachTheIndexAndItsSpecSpellsThemOut) {
  const Registration own("own", {.make = [](std::string_view params) {
                           if (!params.empty() && params != "lists=4" && params != "lists=8")
                             throw InvalidArgument("lists must be 4 or 8");
                           return std::make_unique<OwnIndex>(
                               "own:" + std::string(params.empty() ? "lists=4" : params));
                         }});
  EXPECT_EQ(IndexSpec("own").text(), "own:lists=4");
  EXPECT_EQ(IndexSpec("own"), IndexSpec("own:lists=4"));
  EXPECT_FALSE(IndexSpec("own") == IndexSpec("own:lists=8"));
  EXPECT_EQ(make_index("own:lists=8")->spec(), "own:lists=8");
  EXPECT_EQ(message_of<InvalidArgument>([] { IndexSpec("own:x"); }),
            "index \"own:x\": make failed: lists must be 4 or 8");
}

TEST(RegisterIndex, RefusesASpecOfAnotherNameOrThatChanges) {
  {
    const Registration own("own", makes_own("other"));
    EXPECT_EQ(message_of<Error>([] { IndexSpec("own"); }),
              "index \"own\": spec() is \"other\", expected \"own\", or a spec of this name that "
              "makes an index with an equal spec()");
  }
  const Registration own("own", {.make = [](std::string_view params) {
                           return std::make_unique<OwnIndex>("own:" + std::string(params) + "x");
                         }});
  EXPECT_THROW(IndexSpec("own:a"), Error);
}

TEST(RegisterIndex, RefusesAFactoryThatMakesNothing) {
  const Registration own(
      "own", {.make = [](std::string_view) -> std::unique_ptr<KeyIndex> { return nullptr; }});
  EXPECT_EQ(message_of<Error>([] { IndexSpec("own"); }),
            "index \"own\": make returned null, expected an index");
}

TEST(RegisterIndex, ThreadsMayRegisterAndParseAtOnce) {
  std::atomic<int> registered = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        try {
          const Registration own("own");
          ++registered;
          EXPECT_EQ(IndexSpec("own").text(), "own");
        } catch (const InvalidArgument&) {  // another thread has it
        }
      }
    });
  }
  threads.clear();
  EXPECT_GT(registered, 0);
  EXPECT_FALSE(unregister_index("own"));
}

TEST(RegisteredIndex, FindsTheBitsOfExact) {
  const Registration own("own");
  const OwnKeys keys;
  SearchResult want, got;
  for (const std::int64_t k : {1, 9, 1000}) {
    keys.search(*keys.built("exact"), want, k);
    keys.search(*keys.built("own"), got, k);
    for (std::int64_t q = 0; q < 2; ++q) {
      EXPECT_TRUE(std::ranges::equal(want.positions(q), got.positions(q)));
      EXPECT_TRUE(std::ranges::equal(want.scores(q), got.scores(q)));
    }
  }
}

TEST(RegisteredIndex, ScoresAndOrderOfAResultDoNotMatter) {
  const Registration own("own", Spoil([](const QueryBlock& queries, SearchResult& result) {
                           for (std::int64_t q = 0; q < queries.count; ++q) {
                             auto slots = result.position_slots(q);
                             std::ranges::reverse(slots.first(result.positions(q).size()));
                             std::ranges::fill(result.score_slots(q),
                                               std::numeric_limits<float>::quiet_NaN());
                           }
                         }));
  const OwnKeys keys;
  SearchResult want, got;
  keys.search(*keys.built("exact"), want);
  keys.search(*keys.built("own"), got);
  for (std::int64_t q = 0; q < 2; ++q) {
    EXPECT_TRUE(std::ranges::equal(want.positions(q), got.positions(q)));
    EXPECT_TRUE(std::ranges::equal(want.scores(q), got.scores(q)));
  }
}

TEST(RegisteredIndex, ResultsThatBreakTheContractAreErrors) {
  const auto set_first = [](std::int64_t position) {
    return [position](const QueryBlock&, SearchResult& result) {
      result.position_slots(0)[0] = position;
    };
  };
  const std::vector<std::pair<Spoil, std::string>> cases = {
      {set_first(-1), "search returned position -1 for query 0, expected positions from 10 to 199"},
      {set_first(9), "search returned position 9 for query 0, expected positions from 10 to 199"},
      {set_first(200),
       "search returned position 200 for query 0, expected positions from 10 to 199"},
      {[](const QueryBlock&, SearchResult& result) {
         result.position_slots(0)[0] = result.position_slots(0)[1] = 50;
       },
       "search returned position 50 twice for query 0, expected it once"},
      {[](const QueryBlock&, SearchResult& result) { result.set_count(1, 10); },
       "search returned 10 positions for query 1, expected at most 9"},
      {[](const QueryBlock&, SearchResult& result) { result.set_count(1, -1); },
       "search returned -1 positions for query 1, expected at most 9"},
      {[](const QueryBlock&, SearchResult& result) { result.reset(1, 9); },
       "search returned results of 1 queries, expected 2"},
      {[](const QueryBlock&, SearchResult&) { throw std::runtime_error("out of luck"); },
       "search failed: out of luck"},
      {[](const QueryBlock&, SearchResult&) { throw 7; },
       "search failed: it threw something that is not a std::exception"}};
  const OwnKeys keys;
  for (const auto& [spoil, message] : cases) {
    const Registration own("own", spoil);
    const auto index = keys.built("own");
    SearchResult result;
    EXPECT_EQ(message_of<Error>([&] { keys.search(*index, result); }), "index \"own\": " + message);
  }
}

TEST(RegisteredIndex, ErrorsHoldTheExceptionOfTheApplication) {
  const Registration own(
      "own", Spoil([](const QueryBlock&, SearchResult&) { throw std::out_of_range("row 7"); }));
  const OwnKeys keys;
  const auto index = keys.built("own");
  SearchResult result;
  try {
    keys.search(*index, result);
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
}

TEST(RegisteredIndex, MemoryErrorsAndStopsArriveAsTheyAre) {
  const OwnKeys keys;
  SearchResult result;
  {
    const Registration own("own",
                           Spoil([](const QueryBlock&, SearchResult&) { throw std::bad_alloc(); }));
    EXPECT_THROW(keys.search(*keys.built("own"), result), std::bad_alloc);
  }
  const Registration own("own",
                         Spoil([](const QueryBlock&, SearchResult&) { throw Stopped("now"); }));
  EXPECT_THROW(keys.search(*keys.built("own"), result), Stopped);
}

TEST(RegisteredIndex, AnIndexThatLosesKeysIsAnError) {
  class Forgets final : public OwnIndex {
    std::int64_t size() const override { return std::max<std::int64_t>(0, OwnIndex::size() - 1); }
  };
  const Registration own("own",
                         {.make = [](std::string_view) { return std::make_unique<Forgets>(); }});
  const OwnKeys keys;
  const auto index = make_index("own");
  EXPECT_EQ(message_of<Error>([&] { index->add(keys.view()); }),
            "index \"own\": size() is 299 after add, expected 300 keys");
  EXPECT_EQ(index->size(), 0);
}

}  // namespace
}  // namespace topkv
