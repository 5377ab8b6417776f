// Sessions whose index the application registered: results, tails, failures, and files.
#include "tests/support/own_index.h"

#include <gtest/gtest.h>

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/context/index_growth.h"
#include "tests/support/stream.h"
#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::OwnIndex;
using test::OwnTail;
using test::Registration;
using test::Spoil;
using test::Stream;
using OwnOuts = std::vector<std::vector<float>>;

const AttentionShape own_index_shape{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 16};
constexpr std::int64_t own_context = 400;
constexpr std::int64_t own_total = 430;

const Stream& own_stream() {
  static const Stream stream(own_index_shape, own_total);
  return stream;
}

OwnOuts outs_of(const std::shared_ptr<const Context>& context, const RetrievalOptions& options) {
  Session session(context, options);
  return own_stream().feed(session, own_total, 3);
}

void expect_near(const OwnOuts& got, const OwnOuts& want) {
  for (std::size_t l = 0; l < want.size(); ++l) {
    for (std::size_t i = 0; i < want[l].size(); ++i)
      ASSERT_NEAR(got[l][i], want[l][i], test::tolerance);
  }
}

IndexRegistration with_own_tail() {
  return {.make = [](std::string_view) { return std::make_unique<OwnIndex>(); },
          .make_tail = [](const KeyIndex&,
                          const RowsView& rows) { return std::make_unique<OwnTail>(rows); }};
}

TEST(OwnIndex, GivesTheBitsOfExact) {
  const Registration own(
      "own",
      {.make = [](std::string_view) { return std::make_unique<OwnIndex>(); }, .ranks_keys = true});
  const auto context = own_stream().prefill(own_context)->with_index("own")->with_index("mean");
  EXPECT_TRUE(context->has_index("own"));
  for (const SelectBy select_by : {SelectBy::query_head, SelectBy::group}) {
    for (const char* tail : {"none", "mean"}) {
      RetrievalOptions options{
          .index = "exact", .k = TopK::same(8), .select_by = select_by, .tail = tail, .window = 16};
      const OwnOuts want = outs_of(context, options);
      options.index = "own";
      EXPECT_EQ(outs_of(context, options), want) << tail;
    }
  }
}

TEST(OwnIndex, AllKeysRetrievedEqualsDense) {
  const Registration own("own");
  const auto context = own_stream().prefill(own_context)->with_index("own");
  expect_near(outs_of(context, {.index = "own", .k = TopK::same(1000), .window = 16}),
              outs_of(context, {.dense_layers = own_index_shape.layers}));
}

TEST(OwnIndex, ATailThatKnowsAllRowsMakesAttentionDense) {
  const Registration own("own", with_own_tail());
  EXPECT_TRUE(IndexSpec("own").has_tail());
  const auto context = own_stream().prefill(own_context)->with_index("own");
  const OwnOuts dense = outs_of(context, {.dense_layers = own_index_shape.layers});
  expect_near(outs_of(context, {.index = "own", .k = TopK::same(4), .window = 16}), dense);
  expect_near(outs_of(context, {.index = "exact", .k = TopK::same(4), .tail = "own", .window = 16}),
              dense);
  const auto none =
      outs_of(context, {.index = "own", .k = TopK::same(4), .tail = "none", .window = 16});
  EXPECT_NE(none, dense);
}

TEST(OwnIndex, AnEstimateThatIsNotANumberIsAnError) {
  class Broken final : public IndexTail {
    void estimate(const QueryBlock&, std::span<const std::span<const std::int64_t>>, float, float,
                  const TailEstimate& out) const override {
      out.partial.out[0] = NAN;
    }
  };
  const Registration own(
      "own",
      {.make = [](std::string_view) { return std::make_unique<OwnIndex>(); },
       .make_tail = [](const KeyIndex&, const RowsView&) { return std::make_unique<Broken>(); }});
  const auto context = own_stream().prefill(own_context)->with_index("own");
  try {
    outs_of(context, {.index = "own", .k = TopK::same(4), .window = 16});
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("index \"own\": estimate returned lse -inf"),
              std::string::npos)
        << error.what();
  }
}

TEST(OwnIndex, ASearchThatThrowsRollsTheLayerBack) {
  std::atomic<bool> fails = false;
  const Registration own("own", Spoil([&](const QueryBlock&, SearchResult& result) {
                           if (fails) throw std::runtime_error("disk gone");
                           static_cast<void>(result);
                         }));
  const auto context = own_stream().prefill(own_context)->with_index("own");
  const RetrievalOptions options{.index = "own", .k = TopK::same(8), .window = 16};
  const OwnOuts want = outs_of(context, options);
  Session session(context, options);
  const OwnOuts first = own_stream().feed(session, own_context + 15, 3);
  fails = true;
  std::vector<float> out(static_cast<std::size_t>(3 * own_stream().q_width()));
  for (int round = 0; round < 2; ++round) {
    try {
      session.attend(own_stream().step(0, own_context + 15, 3, out.data()));
      FAIL() << "no exception";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "index \"own\": search failed: disk gone");
    }
    EXPECT_EQ(session.own_tokens(), 15);
  }
  fails = false;
  const OwnOuts rest = own_stream().feed(session, own_total, 3);
  for (std::size_t l = 0; l < want.size(); ++l) {
    std::vector<float> all = first[l];
    all.insert(all.end(), rest[l].begin(), rest[l].end());
    EXPECT_EQ(all, want[l]);
  }
}

TEST(OwnIndex, AHostileResultEndsTheStep) {
  const Registration own("own", Spoil([](const QueryBlock& queries, SearchResult& result) {
                           for (std::int64_t q = 0; q < queries.count; ++q) {
                             if (!result.positions(q).empty())
                               result.position_slots(q)[0] = std::int64_t{1} << 40;
                           }
                         }));
  const auto context = own_stream().prefill(own_context)->with_index("own");
  EXPECT_THROW(outs_of(context, {.index = "own", .k = TopK::same(8), .window = 16}), Error);
}

TEST(OwnIndex, AFailedBuildLeavesTheContextAsItWas) {
  class Refuses final : public OwnIndex {
    void build(const std::stop_token&) override { throw std::runtime_error("too few keys"); }
  };
  const Registration own("own",
                         {.make = [](std::string_view) { return std::make_unique<Refuses>(); }});
  const auto context = own_stream().prefill(own_context);
  EXPECT_THROW(context->with_index("own"), Error);
  EXPECT_FALSE(context->has_index("own"));
}

TEST(OwnIndex, GrowsBesideAPrefill) {
  const Registration own(
      "own",
      {.make = [](std::string_view) { return std::make_unique<OwnIndex>(); }, .grows = true});
  const RetrievalOptions options{.index = "own", .k = TopK::same(8), .window = 16};
  const OwnOuts want = outs_of(own_stream().prefill(own_context)->with_index("own"), options);
  ContextBuilder builder(own_index_shape, {.capacity = own_context});
  IndexGrowth growth({"own"}, builder);
  for (std::int64_t l = 0; l < own_index_shape.layers; ++l) {
    const auto view = [&](const std::vector<float>& rows) {
      return TensorView::tokens_first(rows.data(), DType::f32, own_context,
                                      own_index_shape.kv_heads, own_index_shape.head_dim);
    };
    builder.append(l, view(own_stream().k[static_cast<std::size_t>(l)]),
                   view(own_stream().v[static_cast<std::size_t>(l)]));
  }
  EXPECT_EQ(outs_of(growth.freeze({}), options), want);
}

/// How an index comes back from a file.
enum class Comes { loaded, built };

class OwnIndexInAFile : public testing::TestWithParam<Comes> {};

TEST_P(OwnIndexInAFile, AnswersAsBefore) {
  std::atomic<int> loads = 0;
  IndexRegistration registration = with_own_tail();
  if (GetParam() == Comes::loaded) {
    registration.save = [](const KeyIndex& index) {
      return static_cast<const OwnIndex&>(index).save();
    };
    registration.load = [&](KeyIndex& index, const KeyView& keys,
                            std::span<const std::byte> saved) {
      static_cast<OwnIndex&>(index).load(keys, saved);
      ++loads;
    };
  }
  const topkv::TempDirectory directory;
  const auto path = directory.path() / "own.topkv";
  const RetrievalOptions options{.index = "own", .k = TopK::same(8), .window = 16};
  OwnOuts want;
  {
    const Registration own("own", registration);
    const auto context = own_stream().prefill(own_context)->with_index("own");
    want = outs_of(context, options);
    save_context(*context, path);
    verify_context(path);
    loads = 0;
    const LoadedContext again = load_context(path);
    EXPECT_EQ(loads, GetParam() == Comes::loaded ? 4 : 0);
    EXPECT_EQ(outs_of(again.context, options), want);
    save_context(*again.context, directory.path() / "again.topkv");
    EXPECT_EQ(outs_of(load_context(directory.path() / "again.topkv").context, options), want);
  }
  EXPECT_EQ(context_file_info(path).unknown_indices, std::vector<std::string>{"own"});
  try {
    load_context(path);
    FAIL() << "no exception";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what())
                  .find("(own); register an index of your own with register_index first"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(load_context(path, {.indices = std::vector<std::string>{}}).context->indices(),
            std::vector<std::string>{"exact"});
}

INSTANTIATE_TEST_SUITE_P(SavedOrNot, OwnIndexInAFile, testing::Values(Comes::loaded, Comes::built),
                         [](const auto& test) {
                           return test.param == Comes::loaded ? "Loaded" : "BuiltAgain";
                         });

TEST(OwnIndex, BytesThatLoadRefusesAreAnErrorOfTheFile) {
  IndexRegistration registration = with_own_tail();
  registration.save = [](const KeyIndex&) { return std::vector<std::byte>(3); };
  registration.load = [](KeyIndex&, const KeyView&, std::span<const std::byte>) {
    throw InvalidArgument("three bytes");
  };
  const Registration own("own", registration);
  const topkv::TempDirectory directory;
  const auto path = directory.path() / "own.topkv";
  save_context(*own_stream().prefill(own_context)->with_index("own"), path);
  try {
    load_context(path);
    FAIL() << "no exception";
  } catch (const FileError& error) {
    EXPECT_NE(std::string(error.what()).find("own.topkv: "), std::string::npos) << error.what();
    EXPECT_THROW(std::rethrow_if_nested(error), InvalidArgument);
  }
}

TEST(OwnIndex, SavedBytesThatChangeWhileAFileIsWrittenAreAnError) {
  std::atomic<int> calls = 0;
  IndexRegistration registration = with_own_tail();
  registration.save = [&](const KeyIndex&) {
    return std::vector<std::byte>(static_cast<std::size_t>(++calls));
  };
  registration.load = [](KeyIndex&, const KeyView&, std::span<const std::byte>) {};
  const Registration own("own", registration);
  const topkv::TempDirectory directory;
  const auto context = own_stream().prefill(own_context)->with_index("own");
  EXPECT_THROW(save_context(*context, directory.path() / "own.topkv"), InvalidArgument);
}

}  // namespace
}  // namespace topkv
