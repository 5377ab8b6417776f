// A session's own rows go to a file and come back: a session that resumes them, over the context or
// one loaded from its file, gives what a fork of the first gives, bit for bit.
#include <gtest/gtest.h>

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

constexpr std::int64_t resume_tokens = 300;  // enough for scales of channels
constexpr std::int64_t own = 40;             // some leave the window
constexpr std::int64_t total = resume_tokens + own + 10;

AttentionShape stack(std::vector<std::int64_t> sliding = {}) {
  return {.layers = 3,
          .q_heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .sliding_window = std::move(sliding)};
}

struct ResumeCase {
  std::string device;
  const char* index;
  KvDType dtype = {};
  std::vector<std::int64_t> sliding = {};
};

void PrintTo(const ResumeCase& c, std::ostream* out) {
  *out << c.device << " " << c.index << " " << c.dtype.name()
       << (c.sliding.empty() ? "" : " sliding");
}

std::vector<ResumeCase> cases() {
  std::vector<ResumeCase> all;
  for (const std::string& device : ::test::devices) {
    for (const char* index : {"exact", "codes", "quest:page=4"}) all.push_back({device, index});
    all.push_back({device, "exact", DType::q8});
    all.push_back({device, "exact", {DType::q8, DType::q4}, {0, 24, 0}});
  }
  return all;
}

class SessionResume : public testing::TestWithParam<ResumeCase> {};

TEST_P(SessionResume, GivesWhatAForkGivesThroughFilesToo) {
  const ResumeCase& c = GetParam();
  TOPKV_NEEDS_DEVICE(c.device);
  const Place place(c.device);
  const TokenStream stream(stack(c.sliding), total);
  const RetrievalOptions options{
      .index = c.index, .k = TopK::same(8), .window = 16, .capacity = 64};
  const auto context = stream.context(resume_tokens, c.dtype)->with_index(c.index);
  Session session(context, options, place.device());
  Feed feed(place, stream, resume_tokens, total);
  feed.run(session, resume_tokens + own, 7);
  const auto rows = session.own_rows();
  EXPECT_EQ(rows->tokens(), own);
  EXPECT_EQ(session.own_tokens(), own);

  const auto rest = [&](Session& from) {
    Feed to(place, stream, resume_tokens, total);
    to.run(from, 1);
    return to.outs();
  };
  Session fork = session.fork();
  const auto want = rest(fork);

  const TempDirectory folder;
  save_context(*context, folder.path() / "text.tkv");
  save_context(*rows, folder.path() / "turns.tkv");
  for (const bool from_files : {false, true}) {
    const auto over = from_files ? load_context(folder.path() / "text.tkv").context : context;
    Session resumed(over, options, place.device());
    resumed.resume(from_files ? *load_context(folder.path() / "turns.tkv").context : *rows);
    EXPECT_EQ(resumed.own_tokens(), own);
    // NaN where a session was given nothing: bits, not values, are compared.
    const auto got = rest(resumed);
    for (std::size_t l = 0; l < want.size(); ++l) {
      ASSERT_EQ(std::memcmp(got[l].data(), want[l].data(), want[l].size() * 4), 0)
          << "layer " << l << (from_files ? ", from files" : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, SessionResume, testing::ValuesIn(cases()));

TEST(SessionResume, RowsThatDoNotFitAreRefusedAndTheSessionStaysAsItWas) {
  const Place place("cpu");
  const TokenStream stream(stack(), total);
  const auto context = stream.context(resume_tokens);
  const RetrievalOptions options{.k = TopK::same(8), .window = 16, .capacity = 64};
  Session session(context, options);
  Feed feed(place, stream, resume_tokens, total);
  feed.run(session, resume_tokens + own, 1);
  const auto rows = session.own_rows();
  EXPECT_THROW(session.resume(*rows), InvalidArgument);  // it has tokens of its own
  EXPECT_EQ(session.own_tokens(), own);

  RetrievalOptions small = options;
  small.capacity = own - 1;
  Session too_small(context, small);
  EXPECT_THROW(too_small.resume(*rows), InvalidArgument);

  Session other_dtype(stream.context(resume_tokens, DType::f32), options);
  EXPECT_THROW(other_dtype.resume(*rows), InvalidArgument);
  AttentionShape shape = stack();
  shape.kv_heads = 4;
  const TokenStream other(shape, total);
  Session other_shape(other.context(resume_tokens), options);
  EXPECT_THROW(other_shape.resume(*rows), InvalidArgument);
  for (const Session* refused : {&too_small, &other_dtype, &other_shape})
    EXPECT_EQ(refused->own_tokens(), 0);

  // Rows of the same size that would be attended otherwise, or from other positions on.
  const TempDirectory folder;
  save_context(*rows, folder.path() / "turns.tkv");
  const auto kept = load_context(folder.path() / "turns.tkv").context;
  for (const auto& change : std::vector<std::function<void(AttentionShape&)>>{
           [](AttentionShape& s) { s.q_heads *= 2; }, [](AttentionShape& s) { s.scale = 0.3F; },
           [](AttentionShape& s) { s.softcap = 30; }, [](AttentionShape& s) { s.chunk_len = 16; },
           [](AttentionShape& s) { s.sliding_window.assign(s.layers, 8); }}) {
    AttentionShape changed = stack();
    change(changed);
    Session otherwise(TokenStream(changed, total).context(resume_tokens), options);
    EXPECT_THROW(otherwise.resume(*kept), InvalidArgument);
    EXPECT_EQ(otherwise.own_tokens(), 0);
  }
  Session sooner(stream.context(resume_tokens - 1), options);
  EXPECT_THROW(sooner.resume(*kept), InvalidArgument);
  EXPECT_EQ(sooner.own_tokens(), 0);
  EXPECT_EQ(context_file_info(folder.path() / "turns.tkv").tokens_before, resume_tokens);
  Session of_none(stream.context(0), options);
  save_context(*of_none.own_rows(), folder.path() / "none.tkv");
  Session after(stream.context(resume_tokens), options);
  EXPECT_THROW(after.resume(*load_context(folder.path() / "none.tkv").context), InvalidArgument);
  Session same(stream.context(resume_tokens), options);
  same.resume(*kept);
  EXPECT_EQ(same.own_tokens(), own);

  // Scales of channels are the context's: other ones tell of another context.
  const auto quantised = stream.context(resume_tokens, DType::q8);
  TokenStream louder(stack(), total);
  auto keys = louder.k;
  for (auto& layer : keys) {
    for (std::size_t i = 5; i < layer.size(); i += 64) layer[i] *= 64;  // one channel of each head
  }
  louder.replace_rows(keys, louder.v);
  Session of_louder(louder.context(resume_tokens, DType::q8), options);
  Session of_quantised(quantised, options);
  Feed quiet(place, stream, resume_tokens, total);
  quiet.run(of_quantised, resume_tokens + 4, 1);
  EXPECT_THROW(of_louder.resume(*of_quantised.own_rows()), InvalidArgument);
  EXPECT_EQ(of_louder.own_tokens(), 0);
}

// Its own first tokens would have chosen others: they are many, and one channel is far larger.
class SessionResumeOn : public testing::TestWithParam<std::string> {};

TEST_P(SessionResumeOn, KeysGoOnBeingScaledAsTheContextsWhenTheRowsAreTakenBack) {
  TOPKV_NEEDS_DEVICE(GetParam());
  constexpr std::int64_t more = 300;
  const Place place(GetParam());
  TokenStream stream(stack(), resume_tokens + more);
  auto keys = stream.k;
  for (auto& layer : keys) {
    for (std::int64_t t = resume_tokens; t < resume_tokens + more; ++t) {
      for (std::int64_t i = 5; i < stream.kv_width(); i += 64)
        layer[static_cast<std::size_t>(t * stream.kv_width() + i)] *= 64;
    }
  }
  stream.replace_rows(keys, stream.v);
  const auto context = stream.context(resume_tokens, DType::q8);
  const RetrievalOptions options{.k = TopK::same(8), .window = 16, .capacity = 400};
  Session session(context, options, place.device());
  Feed feed(place, stream, resume_tokens, resume_tokens + more);
  feed.run(session, resume_tokens + own, 1);
  const TempDirectory folder;
  save_context(*session.own_rows(), folder.path() / "turns.tkv");
  Session fork = session.fork();
  Session resumed(context, options, place.device());
  resumed.resume(*load_context(folder.path() / "turns.tkv").context);
  std::vector<std::vector<std::vector<float>>> outs;
  for (Session* each : {&fork, &resumed}) {
    each->truncate(0);
    Feed to(place, stream, resume_tokens, resume_tokens + more);
    to.run(*each, more);
    outs.push_back(to.outs());
  }
  for (std::size_t l = 0; l < outs[0].size(); ++l)
    EXPECT_EQ(std::memcmp(outs[0][l].data(), outs[1][l].data(), outs[0][l].size() * 4), 0)
        << "layer " << l;
  Session third(context, options, place.device());
  third.resume(*resumed.own_rows());  // refused for other scales
  EXPECT_EQ(third.own_tokens(), more);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, SessionResumeOn, testing::ValuesIn(::test::devices));

TEST(SessionResume, AmidAStepThereAreNoRowsToGiveAndOfNoTokensThereAreNone) {
  const Place place("cpu");
  const TokenStream stream(stack(), total);
  const auto context = stream.context(resume_tokens);
  Session session(context, {.k = TopK::same(8), .window = 16, .capacity = 64});
  EXPECT_EQ(session.own_rows()->tokens(), 0);
  Feed feed(place, stream, resume_tokens, total);
  feed.attend(session, 0, resume_tokens, 1);
  EXPECT_THROW(session.own_rows(), InvalidArgument);
  for (std::int64_t l = 1; l < 3; ++l) feed.attend(session, l, resume_tokens, 1);
  EXPECT_EQ(session.own_rows()->tokens(), 1);
}

}  // namespace
}  // namespace topkv
