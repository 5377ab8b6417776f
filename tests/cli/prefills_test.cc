// Prefills that `topkv fidelity` compares.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/cli/commands/compare_prefills.h"
#include "src/eval/report/prefill_lines.h"
#include "tests/support/bundled_model.h"

namespace topkv::cli {
namespace {

struct Resolved {
  std::vector<std::string> ways;
  std::string notes;
};

/// The ways in which the bundled model reads a text of 9,000 tokens: sparse ones, if it may.
Resolved resolved(const std::vector<PrefillAttention>& given) {
  static const Model model = test::bundled(Device());
  Resolved result;
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* file = open_memstream(&text, &size);
  {
    ProgressBar bar{file, false};
    for (const PrefillAttention& way : resolved_ways(model, given, {}, 9000, bar))
      result.ways.push_back(way_text(way));
  }
  std::fclose(file);
  result.notes = text;
  std::free(text);
  return result;
}

TEST(ComparedPrefills, OfEqualWaysTheOneThatHasAnotherNameIsExplained) {
  const PrefillAttention automatic = {.mode = Prefill::automatic, .keys = 2048};
  const PrefillAttention sparse = {.mode = Prefill::sparse, .keys = 2048};
  const std::string row = "sparse 1024 + 512 to 2048 keys, mass 0.98";
  const std::string note = "auto 1024 + 512 to 2048 keys, mass 0.98: reads this text as " + row +
                           ", which is measured once\n";
  for (const auto& given : {std::vector{automatic, sparse}, std::vector{sparse, automatic}}) {
    const Resolved both = resolved(given);
    EXPECT_EQ(both.ways, std::vector{row});
    EXPECT_EQ(both.notes, note);
  }
  EXPECT_EQ(resolved({automatic}).notes, "");
}

TEST(ComparedPrefills, OneWayInTwoFormsIsMeasuredOnce) {
  // --prefill-mass none and --prefill-mass 1
  const PrefillAttention all = {.mode = Prefill::sparse, .mass = 1};
  const Resolved twice = resolved({all, all});
  EXPECT_EQ(twice.ways, std::vector<std::string>{"sparse 1024 + 8192 keys"});
  EXPECT_EQ(twice.notes, "sparse 1024 + 8192 keys: is given in two forms, and is measured once\n");
}

}  // namespace
}  // namespace topkv::cli
