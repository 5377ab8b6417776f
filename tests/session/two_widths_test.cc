// Layers with a sliding window whose heads differ in number and width from those of the other
// layers: a prefill, sessions and files give for each layer what a model of layers of one kind
// gives, to the bit on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
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
using Outs = std::vector<std::vector<float>>;

constexpr std::int64_t wide_tokens = 150;
constexpr std::int64_t wide_total = 220;

/// The layers with a sliding window by themselves. The last attends the rows of the one before.
AttentionShape narrow_shape(std::int64_t head_dim) {
  return {.layers = 3,
          .q_heads = 8,
          .kv_heads = 4,
          .head_dim = head_dim,
          .scale = 0.2F,
          .sliding_window = {16, 9, 9},
          .row_layer = {0, 1, 1}};
}

AttentionShape wide_shape(std::int64_t head_dim = 128) {
  return {.layers = 3,
          .q_heads = 8,
          .kv_heads = 2,
          .head_dim = head_dim,
          .scale = 0.2F,
          .row_layer = {0, 1, 1}};
}

/// Layers of both, in turns.
AttentionShape both_shape(std::int64_t narrow = 64, std::int64_t wide = 128) {
  return {.layers = 6,
          .q_heads = 8,
          .kv_heads = 2,
          .head_dim = wide,
          .scale = 0.2F,
          .sliding_window = {16, 0, 9, 0, 9, 0},
          .row_layer = {0, 1, 2, 3, 2, 3},
          .sliding_kv_heads = 4,
          .sliding_head_dim = narrow};
}

struct WidthCase {
  std::string device;
  const char* index;
  const char* tail = "";
  KvDType dtype = {};
  std::int64_t narrow = 64;
  std::int64_t wide = 128;
};

void PrintTo(const WidthCase& c, std::ostream* out) {
  *out << c.device << " " << c.index << " " << c.tail << " " << c.dtype.name() << " " << c.narrow
       << " " << c.wide;
}

class TwoWidths : public testing::TestWithParam<WidthCase> {
 protected:
  void SetUp() override { TOPKV_NEEDS_DEVICE(GetParam().device); }
};

/// The layers of the streams in turns.
class Fed {
 public:
  Fed(const Place& place, const std::vector<const TokenStream*>& streams, std::int64_t first)
      : streams_(streams) {
    for (const TokenStream* stream : streams)
      feeds_.emplace_back(place, *stream, first, wide_total);
  }

  template <class Reader>
  void run(Reader& reader, std::int64_t from, std::int64_t until, std::int64_t step) {
    for (std::int64_t t = from; t < until; t += step) {
      std::int64_t number = 0;
      for (std::int64_t l = 0; l < streams_[0]->shape.layers; ++l) {
        for (const Feed& feed : feeds_) {
          AttentionStep given = feed.step(l, t, std::min(step, until - t));
          given.layer = number++;
          reader.attend(given);
        }
      }
    }
  }

  std::vector<Outs> outs() const {
    std::vector<Outs> all;
    for (const Feed& feed : feeds_) all.push_back(feed.outs());
    return all;
  }

 private:
  std::vector<const TokenStream*> streams_;
  std::vector<Feed> feeds_;
};

/// What a prefill and sessions give that are stepped, forked, truncated, saved and loaded.
std::vector<std::vector<Outs>> goes_on(const Place& place, const WidthCase& c,
                                       const AttentionShape& shape,
                                       const std::vector<const TokenStream*>& streams) {
  std::vector<std::vector<Outs>> all;
  const RetrievalOptions options{.index = c.index,
                                 .k = TopK::same(8),
                                 .tail = c.tail,
                                 .window = 16,
                                 .capacity = wide_total - wide_tokens};
  ContextBuilder builder(shape, {.capacity = wide_tokens, .dtype = c.dtype, .keep_queries = true},
                         place.device());
  Fed read(place, streams, 0);
  read.run(builder, 0, 60, 60);
  read.run(builder, 60, 80, 20);
  builder.truncate(70);
  read.run(builder, 70, wide_tokens, 11);
  all.push_back(read.outs());
  const auto context = builder.freeze()->ready_for(options);
  EXPECT_EQ(context->memory().rows_bytes, shape.context_bytes(c.dtype, wide_tokens));
  const auto feed = [&](Session& to, std::int64_t until, std::int64_t step) {
    Fed given(place, streams, wide_tokens);
    given.run(to, to.tokens(), until, step);
    all.push_back(given.outs());
  };
  Session session(context, options, place.device());
  feed(session, wide_tokens + 3, 1);
  feed(session, wide_tokens + 40, 7);
  Session fork = session.fork();
  feed(session, wide_total, 20);
  session.truncate(38);
  feed(session, wide_tokens + 50, 4);
  feed(fork, wide_tokens + 50, 10);
  const TempDirectory folder;
  save_context(*context, folder.path() / "text.tkv");
  save_context(*fork.own_rows(), folder.path() / "turns.tkv");
  verify_context(folder.path() / "text.tkv");
  for (const bool mapped : {false, true}) {
    const auto loaded = load_context(folder.path() / "text.tkv", {.mapped = mapped}).context;
    Session resumed(loaded, options, place.device());
    resumed.resume(*load_context(folder.path() / "turns.tkv", {.mapped = mapped}).context);
    feed(resumed, wide_tokens + 54, 2);
    ContextBuilder on(shape, {.capacity = wide_total, .dtype = c.dtype}, place.device());
    on.resume(*loaded);
    Fed more(place, streams, 0);
    more.run(on, wide_tokens, wide_tokens + 30, 30);
    all.push_back(more.outs());
  }
  return all;
}

TEST_P(TwoWidths, GiveWhatLayersOfOneKindGive) {
  const WidthCase& c = GetParam();
  const Place place(c.device);
  const TokenStream narrow(narrow_shape(c.narrow), wide_total, 1);
  const TokenStream wide(wide_shape(c.wide), wide_total, 500);
  const auto both = goes_on(place, c, both_shape(c.narrow, c.wide), {&narrow, &wide});
  const auto alone = std::vector{goes_on(place, c, narrow.shape, {&narrow}),
                                 goes_on(place, c, wide.shape, {&wide})};
  for (std::size_t part = 0; part < both.size(); ++part) {
    for (std::size_t kind = 0; kind < 2; ++kind) {
      for (std::size_t layer = 0; layer < 3; ++layer) {
        const std::vector<float>& got = both[part][kind][layer];
        const std::vector<float>& want = alone[kind][part][0][layer];
        ASSERT_EQ(got.size(), want.size());
        if (!place.is_cuda()) {  // NaN where nothing was given
          ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * 4), 0)
              << "part " << part << " kind " << kind << " layer " << layer;
          continue;
        }
        for (std::size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(std::isnan(got[i]), std::isnan(want[i]));
          if (std::isnan(got[i])) continue;
          ASSERT_NEAR(got[i], want[i], 0x1p-9 * (1 + std::abs(want[i])));
        }
      }
    }
  }
}

std::vector<WidthCase> width_cases() {
  std::vector<WidthCase> all;
  for (const std::string& device : ::test::devices) {
    all.push_back({device, "exact"});
    all.push_back({device, "exact", "mean", DType::q8});
    all.push_back({device, "codes:k=16,v=8"});
    all.push_back({device, "codes:k=16,v=8", "none", {DType::q8, DType::q4}});
    all.push_back({device, "quest:page=4"});
    all.push_back({device, "codes:k=16,v=8", "", {}, 256, 512});
    all.push_back({device, "exact", "mean", {DType::q8, DType::q4}, 256, 512});
    all.push_back({device, "exact", "", {}, 128, 64});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Everywhere, TwoWidths, testing::ValuesIn(width_cases()));

std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "(not refused)";
}

TEST(TwoWidths, AreCheckedAndCompared) {
  const auto expect = [](const std::function<void(AttentionShape&)>& change, const char* told) {
    AttentionShape shape = both_shape();
    change(shape);
    const std::string message = refused([&] { shape.check(); });
    EXPECT_NE(message.find(told), message.npos) << message;
  };
  expect([](AttentionShape& s) { s.sliding_kv_heads = 3; }, "a divisor of the 8 query heads");
  expect([](AttentionShape& s) { s.sliding_kv_heads = -1; }, "sliding_kv_heads is -1");
  expect([](AttentionShape& s) { s.sliding_head_dim = -1; }, "sliding_head_dim is -1");
  expect([](AttentionShape& s) { s.scale = 0; }, "give one scale for both");
  const AttentionShape shape = both_shape();
  // K and V in bf16: two layers of each kind have rows.
  EXPECT_EQ(shape.bytes_per_token({}), 4 * (2 * 4 * 64 + 2 * 2 * 128));
  EXPECT_EQ(shape.context_bytes({}, 100), 4 * ((16 + 9) * 4 * 64 + 2 * 100 * 2 * 128));
  EXPECT_TRUE(shape.has_two_widths());
  EXPECT_FALSE(wide_shape().has_two_widths());
  ContextBuilder builder(shape, {.capacity = 9});
  AttentionShape other = shape;
  other.sliding_head_dim = 32;
  const auto context = ContextBuilder(other, {.capacity = 9}).freeze();
  EXPECT_NE(refused([&] {
              builder.resume(*context);
            }).find("head dim of layers with a window 32, not 64"),
            std::string::npos);
  EXPECT_NE(refused([&] { (void)context->rows(1, 2); }).find("layers of 2 KV heads"),
            std::string::npos);
  EXPECT_NE(refused([&] { (void)context->rows(0, 4); }).find("layers of 4 KV heads"),
            std::string::npos);
  EXPECT_NE(refused([&] {
              ContextBuilder(shape,
                             {.capacity = 9, .key_bias = std::vector<float>(6 * 2 * 3 * 128)});
            }).find("key_bias is given"),
            std::string::npos);
}

}  // namespace
}  // namespace topkv
