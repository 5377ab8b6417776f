// Layers that attend the rows of an earlier layer: sessions and prefills give what a model gives to
// whose layers the same rows were given twice, to the bit on the host, and float64's result on each
// device. They have rows, indices and tails once.
#include <gtest/gtest.h>

#include <algorithm>
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

constexpr std::int64_t sharing_tokens = 120;
constexpr std::int64_t sharing_total = 180;

AttentionShape sharing_shape() {
  return {.layers = 5,
          .q_heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .sliding_window = {0, 24, 0, 24, 0},
          .row_layer = {0, 1, 0, 1, 0}};
}

/// A stream of a model with the same rows in layers of their own.
TokenStream twice(const TokenStream& stream) {
  AttentionShape shape = stream.shape;
  shape.row_layer = {};
  TokenStream other(shape, stream.total);
  other.q = stream.q;
  other.q_next = stream.q_next;
  other.q_far = stream.q_far;
  other.replace_rows(stream.k, stream.v);
  return other;
}

struct SharingCase {
  std::string device;
  const char* index;
  const char* tail = "";
  KvDType dtype = {};
  std::int64_t dense_layers = 0;
  std::int64_t chunk_len = 0;
};

void PrintTo(const SharingCase& c, std::ostream* out) {
  *out << c.device << " " << c.index << " " << c.tail << " " << c.dtype.name() << " "
       << c.dense_layers << " " << c.chunk_len;
}

std::vector<SharingCase> sharing_cases() {
  std::vector<SharingCase> all;
  for (const std::string& device : ::test::devices) {
    all.push_back({device, "exact"});
    all.push_back({device, "exact", "mean", DType::q8, 2});
    all.push_back({device, "codes:k=16,v=8"});
    all.push_back({device, "codes:k=16,v=8", "none", DType::q8});
    all.push_back({device, "quest:page=4", "", {}, 1});
    all.push_back({device, "exact", "", {DType::q8, DType::q4}, 1, 50});
  }
  return all;
}

class SharedRows : public testing::TestWithParam<SharingCase> {};

/// What sessions give that are stepped, forked, truncated, saved and loaded.
std::vector<std::vector<std::vector<float>>> goes_on(const Place& place, const TokenStream& stream,
                                                     const std::shared_ptr<const Context>& context,
                                                     const RetrievalOptions& options) {
  std::vector<std::vector<std::vector<float>>> all;
  Session session(context, options, place.device());
  const auto feed = [&](Session& to, std::int64_t until, std::int64_t step) {
    Feed given(place, stream, sharing_tokens, sharing_total);
    given.run(to, until, step);
    all.push_back(given.outs());
  };
  feed(session, sharing_tokens + 3, 1);
  feed(session, sharing_tokens + 40, 7);
  Session fork = session.fork();
  feed(session, sharing_total, 20);
  session.truncate(38);
  feed(session, sharing_tokens + 50, 4);
  feed(fork, sharing_tokens + 50, 10);
  const TempDirectory folder;
  save_context(*context, folder.path() / "text.tkv");
  save_context(*fork.own_rows(), folder.path() / "turns.tkv");
  verify_context(folder.path() / "text.tkv");
  for (const bool mapped : {false, true}) {
    Session resumed(load_context(folder.path() / "text.tkv", {.mapped = mapped}).context, options,
                    place.device());
    resumed.resume(*load_context(folder.path() / "turns.tkv", {.mapped = mapped}).context);
    feed(resumed, sharing_tokens + 54, 2);
  }
  return all;
}

TEST_P(SharedRows, GiveWhatTheSameRowsTwiceGive) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const SharingCase& c = GetParam();
  const Place place(c.device);
  AttentionShape shape = sharing_shape();
  shape.chunk_len = c.chunk_len;
  if (c.chunk_len > 0) shape.sliding_window = {};
  const TokenStream shared(shape, sharing_total);
  const TokenStream plain = twice(shared);
  const RetrievalOptions options{.index = c.index,
                                 .k = TopK::same(8),
                                 .tail = c.tail,
                                 .dense_layers = c.dense_layers,
                                 .window = 16,
                                 .capacity = sharing_total - sharing_tokens};
  const auto outs = [&](const TokenStream& stream) {
    return goes_on(place, stream, stream.context(sharing_tokens, c.dtype)->ready_for(options),
                   options);
  };
  const auto got = outs(shared);
  const auto want = outs(plain);
  for (std::size_t i = 0; i < want.size(); ++i) {
    for (std::size_t l = 0; l < want[i].size(); ++l) {
      const std::vector<float>& a = got[i][l];
      const std::vector<float>& b = want[i][l];
      if (!place.is_cuda()) {  // NaN where nothing was given
        ASSERT_EQ(std::memcmp(a.data(), b.data(), b.size() * 4), 0)
            << "part " << i << " layer " << l;
        continue;
      }
      // A step of several tokens may be merged in other parts: weights are bf16.
      for (std::size_t j = 0; j < b.size(); ++j) {
        if (!std::isnan(b[j])) {
          ASSERT_NEAR(a[j], b[j], 0.04) << "part " << i << " layer " << l;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, SharedRows, testing::ValuesIn(sharing_cases()));

class SharedRowsOn : public testing::TestWithParam<std::string> {};

TEST_P(SharedRowsOn, EqualFloat64InPrefillAndInSessions) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  constexpr std::int64_t total = sharing_tokens + 330;
  const TokenStream stream(sharing_shape(), total);
  ContextBuilder builder(stream.shape, {.capacity = sharing_tokens}, place.device());
  Feed read(place, stream, 0, sharing_tokens);
  for (std::int64_t t = 0; t < sharing_tokens; t += 50) {
    for (std::int64_t l = 0; l < stream.shape.layers; ++l)
      builder.attend(read.step(l, t, std::min<std::int64_t>(50, sharing_tokens - t)));
  }
  const auto context = builder.freeze();
  EXPECT_EQ(context->rows(2, 1).keys.data, context->rows(0, 1).keys.data);
  std::vector<std::int64_t> positions;
  for (std::int64_t p = 0; p < sharing_tokens; p += 11) positions.push_back(p);
  RetrievalOptions all{.dense_layers = stream.shape.layers};
  EXPECT_LE(read.worst(all, positions), 1);

  RetrievalOptions options{.k = TopK::same(8), .dense_layers = 1, .window = 16, .capacity = 400};
  Session session(context, options, place.device());
  Feed feed(place, stream, sharing_tokens, total);
  feed.run(session, sharing_tokens + 10, 1);
  // More tokens than a device keeps: layers without rows of their own fall behind.
  feed.run(session, sharing_tokens + 320, 310);
  feed.run(session, 5);
  positions.clear();
  for (std::int64_t p = sharing_tokens; p < total; p += 19) positions.push_back(p);
  EXPECT_LE(feed.worst(options, positions), 1);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, SharedRowsOn, testing::ValuesIn(::test::devices));

TEST(SharedRows, TakeMemoryFilesAndIndicesOnceAndAreReadByEachLayer) {
  const TokenStream stream(sharing_shape(), sharing_tokens);
  const TokenStream plain = twice(stream);
  const char* const spec = "codes:k=16,v=8";
  const auto shared_context = stream.context(sharing_tokens)->with_index(spec);
  const auto plain_context = plain.context(sharing_tokens)->with_index(spec);
  const std::int64_t row = 2 * KvDType{}.row_bytes(64);
  EXPECT_EQ(shared_context->memory().rows_bytes, (sharing_tokens + 24) * row);
  EXPECT_EQ(plain_context->memory().rows_bytes, (3 * sharing_tokens + 2 * 24) * row);
  EXPECT_EQ(3 * shared_context->index_memory(spec), plain_context->index_memory(spec));
  EXPECT_EQ(shared_context->bytes_read_to_search(spec), plain_context->bytes_read_to_search(spec));
  EXPECT_EQ(shared_context->bytes_read_to_estimate(spec, spec),
            plain_context->bytes_read_to_estimate(spec, spec));
  EXPECT_EQ(&shared_context->index(spec, 4, 1), &shared_context->index(spec, 0, 1));
  const TempDirectory folder;
  save_context(*shared_context, folder.path() / "shared.tkv");
  save_context(*plain_context, folder.path() / "plain.tkv");
  const ContextFileInfo shared = context_file_info(folder.path() / "shared.tkv");
  const ContextFileInfo other = context_file_info(folder.path() / "plain.tkv");
  EXPECT_EQ(shared.version, 5);  // of its tail of codes
  EXPECT_TRUE(other.shape.row_layer.empty());
  EXPECT_EQ(shared.shape.row_layer, stream.shape.row_layer);
  EXPECT_EQ(shared.rows_bytes, shared_context->memory().rows_bytes);
  EXPECT_EQ(other.rows_bytes, plain_context->memory().rows_bytes);
  EXPECT_EQ(3 * shared.index_bytes, other.index_bytes);
  EXPECT_EQ(stream.shape.bytes_per_token(DType::q8), 2 * 2 * 2 * 68);
}

TEST(SharedRows, TakeNoKAndVAndFollowTheLayerThatHasThem) {
  const Place place("cpu");
  const TokenStream stream(sharing_shape(), sharing_total);
  const auto context = stream.context(sharing_tokens);
  Session session(context, {.capacity = 100});
  Feed feed(place, stream, sharing_tokens, sharing_total);
  AttentionStep with_rows = feed.step(2, sharing_tokens, 1);
  with_rows.k = feed.step(0, sharing_tokens, 1).k;
  EXPECT_THROW(session.attend(with_rows), InvalidArgument);
  feed.attend(session, 0, sharing_tokens, 2);
  EXPECT_THROW(feed.attend(session, 3, sharing_tokens, 2), InvalidArgument);  // before layer 1
  feed.attend(session, 2, sharing_tokens, 2);
  for (const std::int64_t layer : {1, 3, 4}) feed.attend(session, layer, sharing_tokens, 2);
  EXPECT_EQ(session.own_rows()->tokens(), 2);
  ContextBuilder builder(stream.shape, {.capacity = 10});
  const TensorView row = TensorView::tokens_first(stream.k[0].data(), DType::f32, 1, 2, 64);
  EXPECT_THROW(builder.append(2, row, row), InvalidArgument);
  builder.append(0, row, row);
  EXPECT_EQ(builder.tokens(4), 1);
  EXPECT_THROW(builder.freeze(), InvalidArgument);  // layers 1 and 3 have none
  builder.append(1, row, row);
  EXPECT_EQ(builder.freeze()->tokens(), 1);
}

TEST(SharedRows, WithAnotherWindowOrOfALaterLayerAreRefused) {
  const auto refused = [](const std::vector<std::int64_t>& row_layer) {
    AttentionShape shape = sharing_shape();
    shape.row_layer = row_layer;
    EXPECT_THROW(shape.check(), InvalidArgument) << testing::PrintToString(row_layer);
  };
  refused({0, 1, 0, 1});
  refused({0, 1, 2, 0, 4});  // a layer with a window and one without
  refused({0, 1, 0, 1, 2});  // layer 2 has no rows of its own
  refused({0, 1, 4, 1, 4});  // later
  refused({0, 1, -1, 1, 4});
  refused({0, 1, 5, 1, 4});
  sharing_shape().check();
}

}  // namespace
}  // namespace topkv
