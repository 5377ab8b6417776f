// Context::ready_for: the context that sessions with given options can open, with the index and the
// tail that the options name.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/stream.h"
#include "topkv/context.h"
#include "topkv/error.h"
#include "topkv/index_spec.h"
#include "topkv/session.h"

namespace topkv {
namespace {

constexpr std::int64_t ready_tokens = 600;

/// A small stack, whose layer 1 has a sliding window.
const test::Stream& ready_stream() {
  static const test::Stream stream(
      {.layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .sliding_window = {0, 8, 0}},
      ready_tokens + 8);
  return stream;
}

/// Options with an index and a tail, under which few rows take part for certain.
RetrievalOptions ready_options(const std::string& index, const std::string& tail) {
  return {.index = index, .k = TopK::same(8), .tail = tail, .window = 8, .sinks = 2};
}

struct ReadyCase {
  std::vector<std::string> has;  ///< indices of the context before
  const char* index;
  const char* tail;
  std::vector<std::string> gets;  ///< specs that are added, in order; empty: this context
};

class ReadyFor : public testing::TestWithParam<ReadyCase> {};

TEST_P(ReadyFor, AddsWhatIsMissingAlone) {
  const auto& [has, index, tail, gets] = GetParam();
  std::shared_ptr<const Context> context =
      test::prefilled(ready_stream(), ready_tokens, ready_tokens);
  for (const std::string& spec : has) context = context->with_index(spec);
  const std::vector<std::string> before = context->indices();
  const RetrievalOptions options = ready_options(index, tail);

  const auto ready = context->ready_for(options);
  EXPECT_EQ(ready == context, gets.empty());
  EXPECT_EQ(context->indices(), before);
  std::vector<std::string> want = before;
  for (const std::string& spec : gets) want.push_back(IndexSpec(spec).text());
  EXPECT_EQ(ready->indices(), want);
  EXPECT_EQ(ready->ready_for(options), ready);

  // A session attends as over a context that was made by hand.
  std::shared_ptr<const Context> by_hand = context;
  for (const std::string& spec : gets) by_hand = by_hand->with_index(spec);
  Session session(ready, options), other(by_hand, options);
  EXPECT_EQ(session.options().index, IndexSpec(index).text());
  const auto out = ready_stream().feed(session, ready_tokens + 8, 4);
  EXPECT_EQ(out, ready_stream().feed(other, ready_tokens + 8, 4));
}

INSTANTIATE_TEST_SUITE_P(
    Context, ReadyFor,
    testing::Values(
        // Nothing is missing.
        ReadyCase{{}, "exact", "", {}}, ReadyCase{{}, "exact", "none", {}},
        ReadyCase{{"hnsw:M=8", "mean"}, "hnsw:efc=100,M=8", "mean", {}},
        ReadyCase{{"codes:k=8,v=8"}, "codes:k=8,v=8", "", {}},
        ReadyCase{{"codes:k=8,v=8"}, "exact", "codes:v=8,k=8", {}},
        ReadyCase{{"codes:k=8,v=8"}, "codes:k=8,v=8", "codes:k=8,v=8", {}},
        // The index is missing.
        ReadyCase{{}, "hnsw:M=8", "", {"hnsw:M=8"}},
        ReadyCase{{}, "hnsw:M=8", "none", {"hnsw:M=8"}},
        ReadyCase{{"mean"}, "hnsw:M=8", "mean", {"hnsw:M=8"}},
        // The tail is missing.
        ReadyCase{{}, "exact", "mean", {"mean"}},
        ReadyCase{{"hnsw:M=8"}, "hnsw:M=8", "pages:size=16", {"pages:size=16"}},
        ReadyCase{{"codes:k=8,v=8"}, "codes:k=8,v=8", "mean", {"mean"}},
        // Both are missing. An index of other codes does not serve as the tail.
        ReadyCase{{}, "hnsw:M=8", "codes:k=8,v=8", {"hnsw:M=8", "codes:k=8,v=8"}},
        ReadyCase{{}, "codes:k=8,v=0", "codes:k=8,v=8", {"codes:k=8,v=0", "codes:k=8,v=8"}},
        // One spec is the index and the tail.
        ReadyCase{{}, "codes:k=8,v=8", "codes:k=8,v=8", {"codes:k=8,v=8"}},
        // A method that has a tail of its own: it comes with the index, and another tail goes
        // beside.
        ReadyCase{{}, "retroinfer:segment=256", "", {"retroinfer:segment=256"}},
        ReadyCase{{}, "retroinfer:segment=256", "none", {"retroinfer:segment=256"}},
        ReadyCase{{}, "sparq:r=8,v=1", "mean", {"sparq:r=8,v=1", "mean"}},
        // A method that learns from the prefill's queries.
        ReadyCase{{}, "h2o", "mean", {"h2o", "mean"}},
        // "none" as an index is an index, as a tail it is none.
        ReadyCase{{}, "none", "none", {"none"}}, ReadyCase{{"none"}, "none", "", {}},
        ReadyCase{{}, "none", "mean", {"none", "mean"}}));

TEST(ReadyForOptions, ThatCannotWorkAreRefusedBeforeAnythingIsBuilt) {
  const auto context = ready_stream().prefill(ready_tokens);
  const auto refuse = [&](const std::string& index, const std::string& tail, const char* word) {
    int reports = 0;
    try {
      context->ready_for(ready_options(index, tail), [&](const Progress&) { ++reports; });
      ADD_FAILURE() << index << ", tail " << tail << " is taken";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
    EXPECT_EQ(reports, 0) << index << ", tail " << tail;
    EXPECT_EQ(context->indices(), std::vector<std::string>{"exact"});
  };
  refuse("nonsense", "", "nonsense");
  refuse("", "", "index");
  refuse("hnsw:M=8", "nonsense", "nonsense");
  refuse("mean", "", "mean");                        // a tail alone
  refuse("hnsw:M=8", "hnsw:M=4", "hnsw:M=4");        // an index without a tail
  refuse("hnsw:M=8", "codes:k=8,v=0", "codes:k=8");  // codes without values
  refuse("faiss:IVF4096,Flat", "", "4096");          // more lists than keys
  refuse("hnsw:M=8", "none ", "none ");              // no spelling of "none"
}

TEST(ReadyForOptions, OfAMethodThatLearnsFromQueriesNeedAPrefillThatKeptThem) {
  const auto context = ready_stream().prefill(ready_tokens);
  EXPECT_THROW(context->ready_for(ready_options("h2o", "mean")), InvalidArgument);
  EXPECT_EQ(context->indices(), std::vector<std::string>{"exact"});
}

TEST(ReadyForOptions, AreReportedByStageAndEndWhereAReportThrows) {
  const auto context = ready_stream().prefill(ready_tokens);
  struct Enough {};
  const RetrievalOptions options = ready_options("hnsw:M=8", "mean");
  std::vector<std::string> stages;
  const auto ready = context->ready_for(options, [&](const Progress& progress) {
    EXPECT_EQ(progress.unit, "keys");
    EXPECT_EQ(progress.total, 4 * ready_tokens);
    if (stages.empty() || stages.back() != progress.stage) stages.emplace_back(progress.stage);
  });
  EXPECT_EQ(stages, (std::vector<std::string>{"index", "tail"}));
  ready->ready_for(options, [&](const Progress&) { ADD_FAILURE() << "there is nothing to build"; });
  for (const char* stage : {"index", "tail"}) {
    EXPECT_THROW(context->ready_for(options,
                                    [&](const Progress& progress) {
                                      if (progress.stage == stage) throw Enough();
                                    }),
                 Enough);
    EXPECT_EQ(context->indices(), std::vector<std::string>{"exact"});
  }
}

TEST(ReadyForOptions, OfAnEmptyContextBuildIndicesOverNoKeys) {
  ContextBuilder builder(ready_stream().shape, {.capacity = 1});
  const RetrievalOptions options = ready_options("faiss:IVF4096,Flat", "mean");
  const auto context = builder.freeze()->ready_for(options);
  Session session(context, options);
  EXPECT_EQ(session.tokens(), 0);
}

}  // namespace
}  // namespace topkv
