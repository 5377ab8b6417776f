// Indices of a context: built beside reports that may end the work, grown beside a prefill, and
// found by any spelling of their spec.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/context/index_growth.h"
#include "tests/support/reference.h"
#include "topkv/context.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

const AttentionShape shape{
    .layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .sliding_window = {0, 8, 0}};
constexpr std::int64_t heads_with_index = 4;  // layer 1 has a sliding window

struct Enough {};

/// Appends so many tokens' rows to every layer.
void append(ContextBuilder& builder, std::int64_t tokens) {
  const AttentionShape& like = builder.shape();
  for (std::int64_t layer = 0; layer < like.layers; ++layer) {
    const auto rows = reference::random_bf16(tokens * like.kv_heads * like.head_dim,
                                             static_cast<unsigned>(layer) + 1);
    const auto view =
        TensorView::tokens_first(rows.data(), DType::f32, tokens, like.kv_heads, like.head_dim);
    builder.append(layer, view, view);
  }
}

std::shared_ptr<const Context> context_of(std::int64_t tokens) {
  ContextBuilder builder(shape, {.capacity = tokens});
  append(builder, tokens);
  return builder.freeze();
}

TEST(WithIndex, ReportsKeysFromTheThreadThatAsked) {
  const auto context = context_of(2000);
  std::vector<Progress> reports;
  const auto caller = std::this_thread::get_id();
  context->with_index("hnsw:M=8,efc=60", [&](const Progress& progress) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    reports.push_back(progress);
  });
  ASSERT_FALSE(reports.empty());
  std::int64_t last = 0;
  for (const Progress& report : reports) {
    EXPECT_EQ(report.stage, "index");
    EXPECT_EQ(report.unit, "keys");
    EXPECT_EQ(report.total, heads_with_index * 2000);
    EXPECT_GE(report.done, last);
    last = report.done;
  }
  EXPECT_EQ(last, heads_with_index * 2000);
  // The end is told once.
  if (reports.size() > 1) {
    EXPECT_LT(reports[reports.size() - 2].done, last);
  }
}

TEST(WithIndex, AnExceptionOfTheReportEndsItAmongTheKeysOfAHead) {
  const auto context = context_of(60000);  // some ten seconds of building
  for (const char* spec : {"hnsw:M=16,efc=200", "faiss:HNSW16;efc=200"}) {
    Progress seen;
    const auto stop = [&](const Progress& progress) {
      seen = progress;
      throw Enough();
    };
    EXPECT_THROW(context->with_index(spec, stop), Enough);
    EXPECT_LT(seen.done, seen.total) << spec;
    EXPECT_EQ(context->indices(), std::vector<std::string>{"exact"});
  }
  EXPECT_TRUE(context->with_index("faiss:Flat", [](const Progress&) {})->has_index("faiss:Flat"));
}

TEST(WithIndex, WhatTheBuildThrowsReachesTheCallerWithAndWithoutReports) {
  const auto context = context_of(100);
  EXPECT_THROW(context->with_index("faiss:IVF256,SQ8"), InvalidArgument);
  EXPECT_THROW(context->with_index("faiss:IVF256,SQ8", [](const Progress&) {}), InvalidArgument);
}

TEST(WithIndex, AnIndexIsFoundAndKeptOnceHoweverItIsSpelled) {
  const auto context = context_of(300)->with_index("hnsw")->with_index("faiss:HNSW16,Flat");
  const std::vector<std::string> normal = {"exact", "hnsw:M=16,efc=100,ef=0",
                                           "faiss:HNSW16;ef=0,efc=40"};
  EXPECT_EQ(context->indices(), normal);
  EXPECT_EQ(context->with_index("hnsw:efc=100,M=16")->indices(), normal);
  EXPECT_EQ(context->with_index("faiss:HNSW16;efc=40")->indices(), normal);
  EXPECT_EQ(context->with_index("exact")->indices(), normal);
  for (const char* spec : {"hnsw", "hnsw:M=16", "hnsw:ef=0,efc=100", "hnsw:M=16,efc=100,ef=0"}) {
    EXPECT_TRUE(context->has_index(spec));
    EXPECT_EQ(&context->index(spec, 2, 1), &context->index("hnsw", 2, 1)) << spec;
    const Session session(context, {.index = spec});
    EXPECT_EQ(session.options().index, "hnsw:M=16,efc=100,ef=0");
  }
  EXPECT_FALSE(context->has_index("hnsw:M=8"));
  EXPECT_THROW(context->index("hnsw:M=8", 0, 0), InvalidArgument);
  EXPECT_THROW(context->has_index("nonsense"), InvalidArgument);
  EXPECT_THROW(Session(context, {.index = "nonsense"}), InvalidArgument);
}

TEST(IndexGrowth, InsertsWhatArrivesAndReportsTheRest) {
  const AttentionShape small{
      .layers = 2, .q_heads = 1, .kv_heads = 1, .head_dim = 8, .sliding_window = {0, 8}};
  ContextBuilder builder(small, {.capacity = 34000});
  IndexGrowth growth({"hnsw:M=4,efc=10", "faiss:Flat", "hnsw:efc=10,M=4"}, builder);
  append(builder, 33000);  // enough for an insertion before the end
  append(builder, 1000);
  std::vector<Progress> reports;
  const auto context = growth.freeze([&](const Progress& p) { reports.push_back(p); });
  EXPECT_EQ(context->tokens(), 34000);
  // A list of codes learns from all keys; equal specs are one.
  EXPECT_EQ(context->indices(), (std::vector<std::string>{"exact", "hnsw:M=4,efc=10,ef=0"}));
  EXPECT_EQ(context->index("hnsw:M=4,efc=10", 0, 0).inserted(), 34000);
  EXPECT_THROW(context->index("hnsw:M=4,efc=10", 1, 0), InvalidArgument);  // of a sliding window
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports.back().done, 34000);
  EXPECT_EQ(reports.back().total, 34000);
}

TEST(IndexGrowth, AnExceptionOfTheReportEndsIt) {
  ContextBuilder builder(shape, {.capacity = 60000});
  Progress seen;
  const auto grow = [&] {
    IndexGrowth growth({"hnsw:M=16,efc=200"}, builder);
    append(builder, 60000);  // some ten seconds of building
    growth.freeze([&](const Progress& progress) {
      seen = progress;
      throw Enough();
    });
  };
  EXPECT_THROW(grow(), Enough);
  EXPECT_LT(seen.done, seen.total);
}

TEST(IndexGrowth, WithoutASpecThatGrowsNothingIsReported) {
  ContextBuilder builder(shape, {.capacity = 10});
  IndexGrowth growth({"faiss:Flat"}, builder);
  append(builder, 10);
  const auto context = growth.freeze([](const Progress&) { throw Enough(); });
  EXPECT_EQ(context->indices(), std::vector<std::string>{"exact"});
}

}  // namespace
}  // namespace topkv
