// Each of cuDNN's calls fails in turn while a prefill goes through it, that which makes its handle
// among them: an Error, the layer as it was, and the same bits when it is given its tokens again.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/attention/cudnn_attention.h"
#include "tests/gpu/failing/fail_each.h"
#include "tests/gpu/failing/failing_calls.h"
#include "tests/support/session_feed.h"
#include "topkv/context.h"

namespace topkv {
namespace {

using test::Call;
using test::Calls;
using test::Feed;
using test::Place;
using test::TokenStream;

TEST(FailingCudnn, OfAPrefill) {
  TOPKV_NEEDS_GPU();
  if (std::string why; !gpu::CudnnAttention::available(&why)) GTEST_SKIP() << why;
  constexpr std::int64_t chunk = 1024;
  constexpr std::int64_t tokens = 2 * chunk;
  const TokenStream stream({.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64}, tokens);
  std::vector<std::vector<float>> want;
  const auto attempt = [&](const Call& call) {
    const Place place("cuda");  // which has its own handle of cuDNN
    Feed feed(place, stream, 0, tokens);
    ContextBuilder builder(stream.shape, {.capacity = tokens}, place.device());
    while (call([&] { builder.reserve(tokens, chunk); })) ASSERT_EQ(builder.tokens(0), 0);
    for (const std::int64_t begin : {std::int64_t{0}, chunk}) {
      for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
        while (call([&] { builder.attend(feed.step(l, begin, chunk)); }))
          ASSERT_EQ(builder.tokens(l), begin);
      }
    }
    ASSERT_EQ(builder.freeze()->tokens(), tokens);
    const auto got = feed.outs();
    if (want.empty()) want = got;
    ASSERT_EQ(got, want);
  };
  // A handle; in each layer the causal part of two chunks, and the first one's rows.
  EXPECT_GE(test::fail_each(Calls::cudnn, attempt), 1 + 2 * 3);
}

}  // namespace
}  // namespace topkv
