// Rows whose key is their value, as multi-head latent attention has them: prefills and sessions
// give what a model gives that was given the keys as values once more, to the bit on the host. They
// take half the memory, and half the file.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/session_feed.h"
#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using ::test::Feed;
using ::test::Place;
using ::test::TokenStream;

constexpr std::int64_t latent_tokens = 120;
constexpr std::int64_t latent_total = 180;

AttentionShape latent_shape(std::int64_t head_dim = 72) {
  return {.layers = 2,
          .q_heads = 4,
          .kv_heads = 1,
          .head_dim = head_dim,
          .scale = 0.1F,
          .keys_are_values = true};
}

/// The stream of a model that stores the values.
TokenStream with_values(const TokenStream& stream) {
  AttentionShape shape = stream.shape;
  shape.keys_are_values = false;
  TokenStream other(shape, stream.total);
  other.q = stream.q;
  other.q_next = stream.q_next;
  other.q_far = stream.q_far;
  other.replace_rows(stream.k, stream.k);
  return other;
}

struct LatentCase {
  std::string device;
  const char* index;
  const char* tail = "";
  KvDType dtype = {};
  std::int64_t dense_layers = 0;
  std::int64_t chunk_len = 0;
};

void PrintTo(const LatentCase& c, std::ostream* out) {
  *out << c.device << " " << c.index << " " << c.tail << " " << c.dtype.name() << " "
       << c.dense_layers << " " << c.chunk_len;
}

using LatentOuts = std::vector<std::vector<std::vector<float>>>;

/// What sessions give that are stepped, forked, truncated, saved and loaded.
LatentOuts goes_on_with(const TokenStream& stream, const LatentCase& c) {
  const Place place(c.device);
  const RetrievalOptions options{.index = c.index,
                                 .k = TopK::same(8),
                                 .tail = c.tail,
                                 .dense_layers = c.dense_layers,
                                 .window = 16,
                                 .capacity = latent_total - latent_tokens};
  const auto context = stream.context(latent_tokens, c.dtype)->ready_for(options);
  LatentOuts all;
  Session session(context, options, place.device());
  const auto feed = [&](Session& to, std::int64_t until, std::int64_t step) {
    Feed given(place, stream, latent_tokens, latent_total);
    given.run(to, until, step);
    all.push_back(given.outs());
  };
  feed(session, latent_tokens + 3, 1);
  feed(session, latent_tokens + 40, 7);
  Session fork = session.fork();
  feed(session, latent_total, 20);
  session.truncate(38);
  feed(session, latent_tokens + 50, 4);
  feed(fork, latent_tokens + 50, 10);
  const TempDirectory folder;
  save_context(*context, folder.path() / "text.tkv");
  save_context(*fork.own_rows(), folder.path() / "turns.tkv");
  verify_context(folder.path() / "text.tkv");
  for (const bool mapped : {false, true}) {
    Session resumed(load_context(folder.path() / "text.tkv", {.mapped = mapped}).context, options,
                    place.device());
    resumed.resume(*load_context(folder.path() / "turns.tkv", {.mapped = mapped}).context);
    feed(resumed, latent_tokens + 54, 2);
  }
  return all;
}

class KeysAreValues : public testing::TestWithParam<LatentCase> {};

TEST_P(KeysAreValues, GiveWhatTheKeysGivenAsValuesGive) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const bool cuda = GetParam().device == "cuda";
  AttentionShape shape = latent_shape(cuda ? 128 : 72);
  shape.chunk_len = GetParam().chunk_len;
  const TokenStream stream(shape, latent_total);
  const LatentOuts got = goes_on_with(stream, GetParam());
  const LatentOuts want = goes_on_with(with_values(stream), GetParam());
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    for (std::size_t l = 0; l < want[i].size(); ++l) {
      if (!cuda) {
        ASSERT_EQ(std::memcmp(got[i][l].data(), want[i][l].data(), want[i][l].size() * 4), 0)
            << "part " << i << " layer " << l;
        continue;
      }
      for (std::size_t j = 0; j < want[i][l].size(); ++j) {
        ASSERT_EQ(std::isnan(got[i][l][j]), std::isnan(want[i][l][j]));
        if (std::isnan(want[i][l][j])) continue;
        ASSERT_NEAR(got[i][l][j], want[i][l][j], 0x1p-9 * (1 + std::abs(want[i][l][j])))
            << "part " << i << " layer " << l;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Everywhere, KeysAreValues,
    testing::Values(
        LatentCase{"cpu", "exact"}, LatentCase{"cpu", "exact", "mean", DType::f32, 1},
        LatentCase{"cpu", "codes:k=16,v=8"},
        LatentCase{"cpu", "codes:k=16,v=8", "none", DType::f16}, LatentCase{"cpu", "hnsw"},
        LatentCase{"cpu", "quest:page=4"}, LatentCase{"cpu", "exact", "", {}, 0, 50},
        LatentCase{"cuda", "exact"}, LatentCase{"cuda", "exact", "mean", {}, 1},
        LatentCase{"cuda", "codes:k=16,v=8"}, LatentCase{"cuda", "codes:k=16,v=8", "none"},
        LatentCase{"cuda", "quest:page=4"}, LatentCase{"cuda", "exact", "", {}, 0, 50}));

class KeysAreValuesOn : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Everywhere, KeysAreValuesOn, testing::ValuesIn(::test::devices));

TEST_P(KeysAreValuesOn, EqualFloat64InPrefillAndInSessions) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(latent_shape(576), latent_total);
  ContextBuilder builder(stream.shape, {.capacity = latent_tokens}, place.device());
  Feed read(place, stream, 0, latent_tokens);
  for (std::int64_t t = 0; t < latent_tokens; t += 50) {
    for (std::int64_t l = 0; l < stream.shape.layers; ++l)
      builder.attend(read.step(l, t, std::min<std::int64_t>(50, latent_tokens - t)));
  }
  const auto context = builder.freeze();
  EXPECT_EQ(context->rows(1, 0).keys.data, context->rows(1, 0).values.data);
  std::vector<std::int64_t> positions;
  for (std::int64_t p = 0; p < latent_tokens; p += 11) positions.push_back(p);
  EXPECT_LE(read.worst({.dense_layers = stream.shape.layers}, positions), 1);
  const RetrievalOptions options{.k = TopK::same(8), .dense_layers = 1, .window = 16};
  Session session(context, options, place.device());
  Feed feed(place, stream, latent_tokens, latent_total);
  feed.run(session, 3);
  positions.clear();
  for (std::int64_t p = latent_tokens; p < latent_total; p += 7) positions.push_back(p);
  EXPECT_LE(feed.worst(options, positions), 1);
}

/// Relative error of what a session gives over rows of a dtype, in the norm.
double error_of(const Place& place, KvDType dtype) {
  const TokenStream stream(latent_shape(576), latent_total);
  const auto outs = [&](KvDType of) {
    Session session(stream.context(latent_tokens, of), {.dense_layers = 2, .capacity = 60},
                    place.device());
    Feed feed(place, stream, latent_tokens, latent_total);
    feed.run(session, 5);
    return feed.outs();
  };
  return reference::distance(outs(dtype), outs(DType::bf16));
}

TEST_P(KeysAreValuesOn, InBlocksAreAsNearAsTheirBits) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const double q8 = error_of(place, DType::q8);
  const double q4 = error_of(place, DType::q4);
  EXPECT_GT(q8, 1e-4);
  EXPECT_LT(q8, 0.03);
  EXPECT_GT(q4, 2 * q8);
  EXPECT_LT(q4, 0.5);
}

TEST(KeysAreValues, TakeMemoryAndFilesOnce) {
  const TokenStream stream(latent_shape(), latent_tokens);
  const std::int64_t row = vector_bytes(DType::bf16, 72);
  EXPECT_EQ(stream.shape.bytes_per_token({}), 2 * row);
  EXPECT_EQ(stream.shape.context_bytes({}, 10), 20 * row);
  const auto context = stream.context(latent_tokens);
  EXPECT_EQ(context->memory().rows_bytes, 2 * latent_tokens * row);
  const TempDirectory folder;
  save_context(*context, folder.path() / "text.tkv");
  const ContextFileInfo info = context_file_info(folder.path() / "text.tkv");
  EXPECT_EQ(info.version, 3);
  EXPECT_TRUE(info.shape.keys_are_values);
  EXPECT_EQ(info.rows_bytes, 2 * latent_tokens * row);
  const auto loaded = load_context(folder.path() / "text.tkv").context;
  EXPECT_EQ(std::memcmp(loaded->rows(1, 0).values.data,
                        stream.context(latent_tokens)->rows(1, 0).keys.data,
                        static_cast<std::size_t>(latent_tokens * row)),
            0);
  save_context(*stream.context(latent_tokens, DType::q8), folder.path() / "q8.tkv");
  const auto q8 = load_context(folder.path() / "q8.tkv").context;
  EXPECT_EQ(q8->rows(0, 0).keys.channels, nullptr);
  EXPECT_EQ(q8->memory().rows_bytes, 2 * latent_tokens * vector_bytes(DType::q8, 72));
}

TEST(KeysAreValues, TakeNoVAndOneDtype) {
  const Place place("cpu");
  const TokenStream stream(latent_shape(), latent_total);
  EXPECT_THROW(stream.context(latent_tokens, {DType::q8, DType::q4}), InvalidArgument);
  ContextBuilder builder(stream.shape, {.capacity = 10});
  const TensorView row = TensorView::tokens_first(stream.k[0].data(), DType::f32, 1, 1, 72);
  EXPECT_THROW(builder.append(0, row, row), InvalidArgument);
  builder.append(0, row, {});
  Session session(stream.context(latent_tokens), {.capacity = 100});
  Feed feed(place, stream, latent_tokens, latent_total);
  AttentionStep step = feed.step(0, latent_tokens, 1);
  step.v = step.k;
  EXPECT_THROW(session.attend(step), InvalidArgument);
  step.k = step.v = nullptr;
  EXPECT_THROW(session.attend(step), InvalidArgument);
  session.attend(feed.step(0, latent_tokens, 1));
  // A session's rows are not those of a model that stores values.
  Session other(with_values(stream).context(latent_tokens), {.capacity = 100});
  for (std::int64_t l = 1; l < 2; ++l) session.attend(feed.step(l, latent_tokens, 1));
  EXPECT_THROW(other.resume(*session.own_rows()), InvalidArgument);
}

}  // namespace
}  // namespace topkv
