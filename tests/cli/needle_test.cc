// What the flags of `topkv needle` mean.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/cli/flags/needle_options.h"
#include "src/cli/terminal/parse_numbers.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

TEST(NeedleStyles, AnUnknownStyleNamesTheChoicesAndTheNearest) {
  NeedleFlags flags;
  flags.style = "uuid";
  EXPECT_EQ(make_plan(flags).grid.task.style(), NeedleStyle::uuid);
  flags.style = "numbr";
  expect_error<UsageError>([&] { make_plan(flags); },
                           "--needle: ", {"numbr", "passkey", "did you mean number?"});
}

TEST(NeedleHaystacks, AnUnknownOneNamesTheFlagAndTheNearest) {
  expect_error<UsageError>([] { check_haystack_flag("nosie"); },
                           "--haystack: ", {"nosie", "did you mean noise?"});
}

TEST(NeedleLengths, AreTheContextsOrCountLikeRulers) {
  NeedleFlags flags;
  EXPECT_EQ(make_plan(flags).grid.context_room(4096, 40), 4096);
  flags.ruler_length = true;
  EXPECT_EQ(make_plan(flags).grid.context_room(4096, 40), 4096 - 40 - 128);
  expect_error<InvalidArgument>([&] { make_plan(flags).grid.context_room(168, 40); },
                                "-c: 168 tokens", {"--ruler-length", "128"});
}

TEST(NeedleSettings, AreTheSameInAnySpelling) {
  const auto settings = [](auto&& change) {
    NeedleFlags flags;
    flags.model.directory = "models/caf\xe9";
    change(flags);
    return configuration(flags, make_plan(flags), 2, "host");
  };
  const Json usual = settings([](NeedleFlags&) {});
  EXPECT_EQ(settings([](NeedleFlags& flags) {
              flags.retrieval.window = "1K";
              flags.retrieval.k = "064";
              flags.retrieval.dense_layers = "00";
              flags.sampling.temperature = "0.0";
              flags.sampling.seed = "042";
            }),
            usual);
  EXPECT_EQ(Json::parse(usual.dump()), usual);  // throws where it is not UTF-8
}

}  // namespace
}  // namespace topkv::cli
