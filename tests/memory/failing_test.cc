// Every allocation, and every mapping, of contexts, indices, sessions and a model fails in turn:
// the call throws, nothing is lost, what there was stays as it was, and the next call gives the
// same bits as if nothing had been.
#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/context_file_case.h"
#include "tests/memory/counted_memory.h"
#include "tests/support/small_llama.h"
#include "tests/support/stream.h"
#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"
#include "topkv/model.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using ::test::Counted;
using ::test::counted;
using ::test::FailingAllocation;
using ::test::FailingMapping;
using test::Stream;

using Outs = std::vector<std::vector<float>>;

/// Work, on a thread of its own, which has nothing kept from work before, and one thread of
/// parallel loops, so that the n-th allocation is always the same.
void on_new_thread(const std::function<void()>& work) {
  const oneapi::tbb::global_control one(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  std::thread(work).join();
}

/// A part of an attempt that may fail for want of memory; gives whether it did.
using Call = std::function<bool(const std::function<void()>&)>;

/// Has each allocation that attempt(call) makes within its call()s fail in turn, until none is left
/// to fail; gives how many there were. What an attempt leaves behind must be as much as when
/// nothing fails.
template <class Failing>
std::int64_t fail_each(const std::function<void(const Call&)>& attempt) {
  const auto reaches = [&](std::int64_t n) {
    std::int64_t left = n;
    on_new_thread([&] {
      attempt([&](const std::function<void()>& work) {
        const std::int64_t before = left;
        bool failed = false;
        {
          const Failing failing(before);
          try {
            work();
          } catch (const std::bad_alloc&) {
            failed = true;
          } catch (const Error&) {  // which says it in words
            failed = true;
          }
          left = Failing::left();
        }
        EXPECT_TRUE(!failed || (before >= 0 && left < 0)) << "threw, but nothing had failed";
        return failed;
      });
    });
    return n >= 0 && left < 0;
  };
  for (int warm = 0; warm < 2; ++warm) reaches(-1);  // what the process keeps from the first time
  const Counted before = counted();
  for (std::int64_t n = 0;; ++n) {
    const bool reached = reaches(n);
    EXPECT_EQ(counted().blocks, before.blocks) << "lost when number " << n << " failed";
    if (!reached || testing::Test::HasFailure()) return n;
  }
}

const AttentionShape shape{
    .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .sliding_window = {}};
constexpr std::int64_t context_tokens = 120;

/// The bytes of a context's rows.
std::vector<std::byte> rows_of(const Context& context) {
  std::vector<std::byte> all;
  for (std::int64_t l = 0; l < context.shape().layers; ++l) {
    for (std::int64_t h = 0; h < context.shape().kv_heads; ++h) {
      for (const KeyView& half : {context.rows(l, h).keys, context.rows(l, h).values})
        all.insert(all.end(), half.data, half.data + half.count * half.stride_bytes);
    }
  }
  return all;
}

template <class Failing>
std::int64_t fail_prefill(const Stream& stream, const std::vector<std::byte>& want) {
  std::vector<float> out(static_cast<std::size_t>(context_tokens * stream.q_width()));
  return fail_each<Failing>([&](const Call& call) {
    std::unique_ptr<ContextBuilder> builder;
    const auto make = [&] {
      builder = std::make_unique<ContextBuilder>(
          shape, ContextOptions{.capacity = 60, .keep_queries = true});
    };
    while (call(make)) ASSERT_EQ(builder, nullptr);
    for (const std::int64_t end : {std::int64_t{50}, context_tokens}) {
      const std::int64_t begin = builder->tokens(0);
      while (call([&] { builder->reserve(end, end - begin); }))
        ASSERT_EQ(builder->tokens(0), begin);
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        while (call([&] { builder->attend(stream.step(l, begin, end - begin, out.data())); }))
          ASSERT_EQ(builder->tokens(l), begin);
      }
    }
    std::shared_ptr<const Context> context;
    while (call([&] { context = builder->freeze(); })) ASSERT_EQ(context, nullptr);
    ASSERT_EQ(rows_of(*context), want);
  });
}

TEST(FailingMemory, OfAPrefill) {
  const Stream stream(shape, context_tokens);
  const auto want = rows_of(*stream.prefill(context_tokens));
  EXPECT_GT(fail_prefill<FailingAllocation>(stream, want), 10);
  EXPECT_GE(fail_prefill<FailingMapping>(stream, want), 2);
}

class FailingMemoryOf : public testing::TestWithParam<const char*> {};
class FailingMemoryOfBuilding : public testing::TestWithParam<const char*> {};

Outs answers(const Stream& stream, const std::shared_ptr<const Context>& context,
             const RetrievalOptions& options) {
  Session session(context, options);
  return stream.feed(session, context_tokens + 6, 2);
}

TEST_P(FailingMemoryOfBuilding, AnIndexLeavesTheContextAsItWas) {
  const Stream stream(shape, context_tokens + 6);
  const auto context = test::prefilled(stream, context_tokens, 40);
  const RetrievalOptions options{
      .index = GetParam(), .k = TopK::same(8), .window = 8, .capacity = 16};
  Outs want;
  on_new_thread([&] { want = answers(stream, context->with_index(GetParam()), options); });
  const auto indices = context->indices();
  const std::int64_t places = fail_each<FailingAllocation>([&](const Call& call) {
    std::shared_ptr<const Context> indexed;
    while (call([&] { indexed = context->with_index(GetParam()); })) {
      ASSERT_EQ(indexed, nullptr);
      ASSERT_EQ(context->indices(), indices);
    }
    ASSERT_EQ(answers(stream, indexed, options), want);
  });
  EXPECT_GT(places, std::string(GetParam()) == "exact" ? 0 : 10);
}

/// A session's life; opened, stepped, forked, saved to rows and resumed, each again where it fails.
template <class Failing>
std::int64_t fail_session(const Stream& stream, const std::shared_ptr<const Context>& context,
                          const RetrievalOptions& options, const Outs& want) {
  Outs out(want.size(), std::vector<float>(want[0].size()));
  return fail_each<Failing>([&](const Call& call) {
    std::unique_ptr<Session> session;
    while (call([&] { session = std::make_unique<Session>(context, options); }))
      ASSERT_EQ(session, nullptr);
    const auto feed = [&](Session& to, std::int64_t tokens) {
      const std::int64_t begin = to.tokens();
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        float* const at =
            &out[static_cast<std::size_t>(l)]
                [static_cast<std::size_t>((begin - context_tokens) * stream.q_width())];
        const std::int64_t before = to.tokens();
        while (call([&] { to.attend(stream.step(l, begin, tokens, at)); }))
          ASSERT_EQ(to.tokens(), before);
      }
    };
    feed(*session, 2);
    feed(*session, 2);
    std::unique_ptr<Session> other;
    while (call([&] { other = std::make_unique<Session>(session->fork()); }))
      ASSERT_EQ(session->own_tokens(), 4);
    std::shared_ptr<const Context> rows;
    while (call([&] { rows = session->own_rows(); })) ASSERT_EQ(session->own_tokens(), 4);
    feed(*session, 2);
    ASSERT_EQ(out, want);
    feed(*other, 2);
    ASSERT_EQ(out, want);
    Session resumed(context, options);
    while (call([&] { resumed.resume(*rows); })) ASSERT_EQ(resumed.own_tokens(), 0);
    feed(resumed, 2);
    ASSERT_EQ(out, want);
  });
}

TEST_P(FailingMemoryOf, SessionsLeavesThemAsTheyWere) {
  const Stream stream(shape, context_tokens + 6);
  auto context = test::prefilled(stream, context_tokens, 40)->with_index(GetParam());
  RetrievalOptions options{.index = GetParam(), .k = TopK::same(8), .window = 8, .capacity = 16};
  for (const bool by_group : {false, true}) {
    options.select_by = by_group ? SelectBy::group : SelectBy::query_head;
    Outs want;
    on_new_thread([&] { want = answers(stream, context, options); });
    EXPECT_GT(fail_session<FailingAllocation>(stream, context, options, want), 20);
    if (by_group) continue;
    EXPECT_GE(fail_session<FailingMapping>(stream, context, options, want), 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Index, FailingMemoryOf,
                         testing::Values("exact", "codes:k=8,v=4", "hnsw:M=4,efc=8,ef=8",
                                         "ivf:size=8,share=4", "quest:page=8", "sparq:r=4",
                                         "retroinfer:size=8,segment=60", "squeezed", "h2o",
                                         "faiss:Flat", "faiss:IVF4,Flat"));
// FAISS, which clusters, codes or links for the others, allocates in regions of OpenMP, which no
// exception can leave; hnswlib loses a list of its own.
INSTANTIATE_TEST_SUITE_P(Index, FailingMemoryOfBuilding,
                         testing::Values("exact", "codes:k=8,v=4", "quest:page=8", "sparq:r=4",
                                         "lowrank:r=4", "h2o", "tova", "ivf:size=8,share=4",
                                         "faiss:Flat"));

TEST(FailingMemory, OfMappingsWhenAContextIsLoaded) {
  const auto context = test::saved_context(test::file_shape(), 300, {}, {"codes:k=16,v=8"});
  const auto want = rows_of(*context);
  const TempDirectory folder;
  const auto path = folder.path() / "c.tkv";
  save_context(*context, path);
  for (const bool mapped : {false, true}) {
    const std::int64_t places = fail_each<FailingMapping>([&](const Call& call) {
      LoadedContext loaded;
      while (call([&] { loaded = load_context(path, {.mapped = mapped}); }))
        ASSERT_EQ(loaded.context, nullptr);
      ASSERT_EQ(rows_of(*loaded.context), want);
    });
    EXPECT_GE(places, 1);
  }
}

/// A checkpoint of a small model, in a folder of its own.
class SmallModel {
 public:
  SmallModel() {
    folder_.write("model.safetensors", file_of(random_tensors(Sizes{})));
    folder_.write("config.json", config_of(Sizes{}).dump());
  }
  Model load() const { return Model::load(folder_.path()); }
  std::vector<Token> text() const { return some_tokens(20, Sizes{}.vocab); }

 private:
  TempDirectory folder_;
};

TEST(FailingMemory, OfAModelsPrefillAndGeneration) {
  const SmallModel files;
  const std::vector<Token> text = files.text();
  std::vector<std::byte> want_rows;
  std::vector<Token> want;
  const std::int64_t places = fail_each<FailingAllocation>([&](const Call& call) {
    const Model model = files.load();
    std::shared_ptr<const Context> context;
    while (call([&] { context = model.prefill(text, {.indices = {"quest:page=4"}}); }))
      ASSERT_EQ(context, nullptr);
    if (want_rows.empty()) want_rows = rows_of(*context);
    ASSERT_EQ(rows_of(*context), want_rows);
    Session session(context,
                    {.index = "quest:page=4", .k = TopK::same(4), .window = 4, .capacity = 32});
    std::vector<Token> got;
    while (call([&] { got = model.generate(session, text, {.max_tokens = 3}).tokens; }))
      ASSERT_EQ(session.own_tokens(), 0);
    if (want.empty()) want = got;
    ASSERT_EQ(got, want);
  });
  EXPECT_GT(places, 20);
}

TEST(FailingMemory, OfMappingsWhenAModelIsLoaded) {
  const SmallModel files;
  const std::int64_t places = fail_each<FailingMapping>([&](const Call& call) {
    std::unique_ptr<Model> model;
    while (call([&] { model = std::make_unique<Model>(files.load()); })) ASSERT_EQ(model, nullptr);
    ASSERT_FALSE(model->logits(files.text()).empty());
  });
  EXPECT_GE(places, 1);
}

/// What grows with a session is its rows alone, which are no heap's.
TEST(SessionHeap, StaysAsItIsWhileTokensCome) {
  const Stream stream(shape, 4200);
  const auto context = stream.prefill(200)->with_index("quest:page=8");
  on_new_thread([&] {
    for (const char* index : {"exact", "quest:page=8"}) {
      Session session(context,
                      {.index = index, .k = TopK::same(8), .window = 32, .capacity = 4000});
      stream.feed(session, 1200, 1);
      const Counted before = counted();
      stream.feed(session, 4200, 1);
      EXPECT_LT(counted().bytes - before.bytes, 8192) << index;
      EXPECT_LT(counted().blocks - before.blocks, 8) << index;
    }
  });
}

}  // namespace
}  // namespace topkv
