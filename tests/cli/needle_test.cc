// What the flags of `topkv needle` mean.

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "src/cli/flags/bind.h"
#include "src/cli/flags/needle_options.h"
#include "src/cli/flags/run_config.h"
#include "src/cli/terminal/parse_numbers.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

// The flags of `topkv needle` with these words behind it.
NeedleFlags flags_of(const std::string& words) {
  CLI::App command("topkv needle", "needle");
  NeedleFlags flags;
  FlagBinder bind(command);
  visit_flags(flags, bind);
  command.parse("-m . " + words);
  return flags;
}

TEST(NeedleStyles, AnUnknownStyleNamesTheChoicesAndTheNearest) {
  EXPECT_EQ(make_options(flags_of("--needle uuid")).grid.task.style(), NeedleStyle::uuid);
  expect_error<UsageError>([] { flags_of("--needle numbr"); },
                           "--needle: ", {"numbr", "passkey", "did you mean number?"});
}

TEST(NeedleHaystacks, AnUnknownOneNamesTheFlagAndTheNearest) {
  expect_error<UsageError>([] { check_haystack_flag("nosie"); },
                           "--haystack: ", {"nosie", "did you mean noise?"});
}

TEST(NeedleLengths, AreTheContextsOrCountLikeRulers) {
  EXPECT_EQ(make_options(flags_of("")).grid.context_room(4096, 40), 4096);
  const NeedleGrid grid = make_options(flags_of("--ruler-length")).grid;
  EXPECT_EQ(grid.context_room(4096, 40), 4096 - 40 - 128);
  expect_error<InvalidArgument>([&] { grid.context_room(168, 40); }, "-c: 168 tokens",
                                {"--ruler-length", "128"});
}

Json settings_of(const std::string& words) {
  NeedleFlags flags = flags_of(words);
  flags.model.directory = "models/caf\xe9";
  return configuration(flags, make_options(flags), 2, "host");
}

TEST(NeedleSettings, AreTheSameInAnySpelling) {
  const Json usual = settings_of("");
  EXPECT_EQ(settings_of("--kv-window 1K --kv-topk 0128 --kv-dense-layers 00 --temp 0.0 --seed 042"),
            usual);
  EXPECT_EQ(Json::parse(usual.dump()), usual);  // throws where it is not UTF-8
}

TEST(NeedleSettings, HaveTheModeInWhichAllContextsWereRead) {
  PrefillFlags flags;
  flags.mode = "auto";
  std::vector<EvalResult> answers(2);
  const auto mode = [&] { return as_read(flags, answers).mode; };
  EXPECT_EQ(mode(), "auto");  // unknown
  answers[0].prefill = "dense";
  EXPECT_EQ(mode(), "auto");
  answers[1].prefill = "sparse";
  EXPECT_EQ(mode(), "auto");
  answers[1].prefill = "dense";
  EXPECT_EQ(mode(), "dense");
  answers.clear();
  EXPECT_EQ(mode(), "auto");
}

// The names, the order and the spelling are those of folders that earlier runs left.
TEST(NeedleSettings, AreWrittenAsBefore) {
  Json json = settings_of("");
  for (const char* member : {"version", "model", "depths"}) json.erase(member);
  EXPECT_EQ(json.dump(),
            R"({"lengths":[131072],"haystack":"generated","needle":"number","ruler_length":false,)"
            R"("separate":false,"predict":32,"kv_index":[],"kv_topk":"128","kv_window":1024,)"
            R"("kv_sinks":4,"kv_select":"query_head","kv_dense_layers":0,"kv_recall":false,)"
            R"("kv_dtype":"bf16","prefill":"window","prefill_window":1024,"chunk":"auto",)"
            R"("temperature":0.0,"top_p":1.0,"top_k":0,"seed":42,"gpu_mem":"auto","threads":2,)"
            R"("device":"host"})");
  json = settings_of(
      "--needle-text a --question b --answer c --kv-host-search --kv-dense-layers all --kv-tail "
      "codes --kv-mass 0.9 --kv-error 0.1 --prefill dense --chunk 512 --weights int8 --gpu-mem "
      "8GiB");
  for (const char* member : {"version", "model", "depths"}) json.erase(member);
  EXPECT_EQ(json.dump(),
            R"({"lengths":[131072],"haystack":"generated","needle":"custom","needle_text":"a",)"
            R"("question":"b","answer":"c","ruler_length":false,"separate":true,"predict":32,)"
            R"("kv_index":[],"kv_topk":"128","kv_window":1024,"kv_sinks":4,)"
            R"("kv_select":"query_head","kv_host_search":true,"kv_dense_layers":"all",)"
            R"("kv_tail":"codes","kv_mass":0.9,"kv_error":0.1,"kv_recall":false,)"
            R"("kv_dtype":"bf16","prefill":"dense","chunk":512,"temperature":0.0,"top_p":1.0,)"
            R"("top_k":0,"seed":42,"weights":"int8","gpu_mem":8589934592,"threads":2,)"
            R"("device":"host"})");
}

}  // namespace
}  // namespace topkv::cli
