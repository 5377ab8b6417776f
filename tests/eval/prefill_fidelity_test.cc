// What `topkv fidelity` measures of prefills: nothing where everything is attended, and less where
// more is.
#include "src/eval/run/prefill_fidelity.h"

#include <gtest/gtest.h>

#include <vector>

#include "topkv/model.h"

namespace topkv {
namespace {

TEST(PrefillFidelity, IsNothingWhereEverythingIsAttendedAndLessWhereMoreIs) {
  const Model model = Model::load(TOPKV_SOURCE_DIR "/models/needle-14m");
  std::vector<Token> tokens;
  for (std::int64_t i = 0; i < 2500; ++i)
    tokens.push_back(static_cast<Token>(300 + (i * i + i / 7) % 1500));
  const std::vector<Probe> probes = {{310, 420, 530, 640, 750}};
  const auto sparse = [](std::int64_t keys, double mass) {
    return PrefillAttention{.mode = Prefill::sparse,
                            .window = 64,
                            .sinks = 4,
                            .keys = keys,
                            .least_keys = 64,
                            .mass = mass};
  };
  const std::vector<PrefillAttention> ways = {{.mode = Prefill::window, .window = 64},
                                              sparse(128, 1),
                                              sparse(1024, 1),
                                              sparse(1024, 0.5),
                                              sparse(4096, 1)};
  const std::vector<PrefillFidelity> results =
      measure_prefills(model, tokens, probes, ways, {.kv_dtype = DType::f32}, {});
  ASSERT_EQ(results.size(), 6U);
  const PrefillFidelity& dense = results[0];
  const PrefillFidelity& window = results[1];
  const PrefillFidelity& few = results[2];
  const PrefillFidelity& many = results[3];
  const PrefillFidelity& enough = results[4];
  const PrefillFidelity& all = results[5];
  for (const PrefillFidelity* same : {&dense, &all}) {
    EXPECT_EQ(same->text_kl, 0);
    EXPECT_EQ(same->answer_kl, 0);
    EXPECT_EQ(same->key_error, 0);
    EXPECT_EQ(same->value_error, 0);
    EXPECT_EQ(same->text_agreement, 1);
    EXPECT_EQ(same->answer_agreement, 1);
    EXPECT_EQ(same->perplexity, dense.perplexity);
    EXPECT_EQ(same->keys, 1);
  }
  EXPECT_GT(window.text_kl, few.text_kl);
  EXPECT_GT(few.text_kl, many.text_kl);
  EXPECT_GT(many.text_kl, 0);
  EXPECT_GT(window.value_error, many.value_error);
  EXPECT_GT(few.answer_kl, 0);
  EXPECT_LT(window.keys, few.keys);
  EXPECT_LT(few.keys, many.keys);
  EXPECT_LT(enough.keys, many.keys);
  EXPECT_TRUE(window.shares.empty() || window.shares[0].queries == 0);
  double mass = 0;
  for (const PrefillShare& share : many.shares) {
    ASSERT_GT(share.queries, 0);
    EXPECT_LE(share.mass, static_cast<double>(share.queries) * (1 + 1e-6));
    mass += share.mass / static_cast<double>(share.queries);
  }
  EXPECT_GT(mass / static_cast<double>(many.shares.size()), 0.5);
}

}  // namespace
}  // namespace topkv
