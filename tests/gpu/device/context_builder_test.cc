// ContextBuilder::attend as an application with a network of its own calls it, on a device and
// (what it is to agree with) on the host: results against float64, rows, and a session over them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "tests/gpu/user_stream.h"
#include "tests/support/session_feed.h"
#include "topkv/context.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::Feed;
using test::Place;
using test::TokenStream;

AttentionShape stack(std::int64_t q_heads, std::int64_t kv_heads, std::int64_t head_dim,
                     std::vector<std::int64_t> sliding = {}, float softcap = 0) {
  return {.layers = 2,
          .q_heads = q_heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .softcap = softcap,
          .sliding_window = std::move(sliding)};
}

struct Call {
  std::int64_t tokens;
  std::int64_t reserve = 0;  ///< room made before it
};

struct Case {
  const char* name;
  AttentionShape shape;
  std::vector<Call> calls;
  std::int64_t capacity;
  PrefillAttention attention = {};
  std::int64_t stride = 1;  ///< of the tokens compared

  std::int64_t tokens() const {
    std::int64_t sum = 0;
    for (const Call& call : calls) sum += call.tokens;
    return sum;
  }
};

std::vector<Case> cases() {
  const PrefillAttention window{.mode = Prefill::window, .window = 20, .sinks = 3};
  return {
      {"one_call", stack(6, 2, 64), {{150}}, 150},
      {"growing_calls", stack(6, 2, 64), {{1}, {2}, {40}, {107}}, 150},
      {"shrinking_calls", stack(8, 1, 128), {{100}, {40}, {9}, {1}}, 200},
      {"room_made_between_calls", stack(6, 2, 64), {{64}, {64, 200}, {22}, {90, 240}}, 70},
      {"window", stack(6, 2, 64), {{64}, {70}, {16}}, 150, window},
      {"sliding_layer", stack(6, 2, 64, {24, 0}), {{64}, {70}, {16}}, 150},
      {"soft_capped", stack(2, 1, 256, {}, 1.5F), {{64}, {70}, {16}}, 150},
      {"calls_that_cudnn_may_take", stack(4, 2, 128), {{100}, {1100}, {1100}, {30}}, 2330, {}, 97},
  };
}

struct Parameter {
  std::string device;
  Case c;
};

void PrintTo(const Parameter& p, std::ostream* out) { *out << p.c.name << " on " << p.device; }

/// Tensors of a stream's tokens in a device's memory, with those of the results.
class Tensors {
 public:
  Tensors(const Place& place, const TokenStream& stream) : place_(place), stream_(stream) {
    for (std::size_t l = 0; l < stream.q.size(); ++l) {
      q_.push_back(place.put(stream.q[l]));
      k_.push_back(place.put(stream.k[l]));
      v_.push_back(place.put(stream.v[l]));
      out_.push_back(place.put(std::vector<float>(stream.q[l].size(), NAN)));
      lse_.push_back(place.put(std::vector<float>(lse_count(), NAN)));
    }
  }

  AttentionStep step(std::int64_t layer, std::int64_t first, std::int64_t tokens) const {
    const auto at = static_cast<std::size_t>(layer);
    return {.layer = layer,
            .tokens = tokens,
            .q = q_[at].floats() + first * stream_.q_width(),
            .k = k_[at].floats() + first * stream_.kv_width(),
            .v = v_[at].floats() + first * stream_.kv_width(),
            .out = out_[at].floats() + first * stream_.q_width(),
            .lse = lse_[at].floats() + first * stream_.shape.q_heads};
  }
  void give(ContextBuilder& builder, std::int64_t tokens) const {
    const std::int64_t first = builder.tokens(0);
    for (std::int64_t l = 0; l < stream_.shape.layers; ++l) builder.attend(step(l, first, tokens));
  }

  /// Largest error of the first tokens.
  double worst(std::int64_t tokens, const PrefillAttention& attention, std::int64_t stride) const {
    double worst = 0;
    for (std::int64_t l = 0; l < stream_.shape.layers; ++l) {
      const auto at = static_cast<std::size_t>(l);
      const std::vector<float> out = place_.get(out_[at].floats(), tokens * stream_.q_width());
      const std::vector<float> lse = place_.get(lse_[at].floats(), tokens * stream_.shape.q_heads);
      const std::int64_t sliding = stream_.shape.window_of(l);
      for (std::int64_t p = 0; p < tokens; ++p) {
        if (p % stride != 0 && p + 3 < tokens) continue;
        for (std::int64_t head = 0; head < stream_.shape.q_heads; ++head) {
          const auto sees = [&](std::int64_t row) {
            if (sliding > 0) return row > p - sliding;
            if (attention.mode == Prefill::dense) return true;
            return row < attention.sinks || row > p - attention.window;
          };
          const std::int64_t from = p * stream_.q_width() + head * stream_.shape.head_dim;
          worst = std::max(
              worst, stream_.error(
                         l, p, head, place_.is_cuda(), &out[static_cast<std::size_t>(from)],
                         &lse[static_cast<std::size_t>(p * stream_.shape.q_heads + head)], sees));
        }
      }
    }
    return worst;
  }

 private:
  std::size_t lse_count() const {
    return static_cast<std::size_t>(stream_.total * stream_.shape.q_heads);
  }

  const Place& place_;
  const TokenStream& stream_;
  std::vector<Buffer> q_, k_, v_, out_, lse_;  // per layer
};

/// The context's rows are the first of the stream's, rounded.
void expect_rows(const Context& context, const TokenStream& stream) {
  for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
    for (std::int64_t head = 0; head < stream.shape.kv_heads; ++head) {
      const RowsView rows = context.rows(l, head);
      const reference::Rows& want = stream.rows(l, head);
      const std::int64_t first = context.first_row(l);
      for (std::int64_t t = first; t < context.tokens(); ++t) {
        for (std::int64_t j = 0; j < want.dim; ++j) {
          const auto at = static_cast<std::size_t>(t * want.dim + j);
          ASSERT_EQ(test::bf16_at(rows.key(t - first), j), want.keys[at]) << "key of token " << t;
          ASSERT_EQ(test::bf16_at(rows.value(t - first), j), want.values[at])
              << "value of token " << t;
        }
      }
    }
  }
}

class BuilderAttends : public testing::TestWithParam<Parameter> {};

TEST_P(BuilderAttends, AsFloat64AndGivesAContextThatSessionsUse) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const Case& c = GetParam().c;
  const Place place(GetParam().device);
  const std::int64_t tokens = c.tokens();
  const TokenStream stream(c.shape, tokens + 20);
  const Tensors tensors(place, stream);
  const std::int64_t used = place.device().memory().used;
  ContextBuilder builder(c.shape, {.capacity = c.capacity, .attention = c.attention},
                         place.device());
  for (const Call& call : c.calls) {
    if (call.reserve > 0) builder.reserve(call.reserve);
    tensors.give(builder, call.tokens);
  }
  for (std::int64_t l = 0; l < c.shape.layers; ++l) EXPECT_EQ(builder.tokens(l), tokens);
  const auto context = builder.freeze();
  EXPECT_EQ(place.device().memory().used, used) << "a frozen builder kept device memory";
  ASSERT_EQ(context->tokens(), tokens);
  expect_rows(*context, stream);
  EXPECT_LE(tensors.worst(tokens, c.attention, c.stride), 1.0) << "times what rounding may do";

  const RetrievalOptions options{.k = TopK::same(8), .window = 16, .capacity = 64};
  Session session(context, options, place.device());
  Feed feed(place, stream, tokens, tokens + 20);
  feed.run(session, 3);
  EXPECT_LE(feed.worst(options, {tokens, tokens + 7, tokens + 19}), 1.0);
}

std::vector<Parameter> everywhere() {
  std::vector<Parameter> all;
  for (const Case& c : cases()) {
    for (const char* device : {"cpu", "cuda"}) all.push_back({device, c});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Calls, BuilderAttends, testing::ValuesIn(everywhere()),
                         [](const testing::TestParamInfo<Parameter>& info) {
                           return std::string(info.param.c.name) + "_on_" + info.param.device;
                         });

class BuilderOn : public testing::TestWithParam<std::string> {};

TEST_P(BuilderOn, ARankWithoutRowsGivesTheEmptyPartialAndTakesRowsLater) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const TokenStream stream(stack(6, 2, 64), 40);
  const Tensors tensors(place, stream);
  ContextBuilder builder(stream.shape, {.capacity = 40}, place.device());
  for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
    AttentionStep step = tensors.step(l, 0, 40);
    step.k = nullptr;
    step.v = nullptr;
    step.kv_tokens = 0;
    builder.attend(step);
    for (const float x : place.get(step.out, 40 * stream.q_width())) ASSERT_EQ(x, 0.0F);
    for (const float x : place.get(step.lse, 40 * stream.shape.q_heads))
      ASSERT_EQ(x, -std::numeric_limits<float>::infinity());
  }
  EXPECT_EQ(builder.tokens(1), 0);
  tensors.give(builder, 40);
  EXPECT_LE(tensors.worst(40, {}, 1), 1.0);
  expect_rows(*builder.freeze(), stream);
}

INSTANTIATE_TEST_SUITE_P(Devices, BuilderOn, testing::Values("cpu", "cuda"));

TEST(CudaContextBuilder, AValueThatIsNotFiniteIsNamedByTheEndAndTheBuilderIsOfNoUseThen) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const std::int64_t calls_after : {0, 1, 4, 10, 11, 14}) {
    SCOPED_TRACE(calls_after);
    TokenStream stream(stack(6, 2, 64), 200);
    const bool in_q = calls_after >= 10;
    if (in_q) {
      stream.q[1][static_cast<std::size_t>(37 * stream.q_width() + 4 * 64 + 63)] = std::nanf("");
    } else {
      stream.k[1][static_cast<std::size_t>(37 * stream.kv_width() + 64 + 5)] =
          std::numeric_limits<float>::infinity();
    }
    const Tensors tensors(place, stream);
    ContextBuilder builder(stream.shape, {.capacity = 200}, place.device());
    try {
      for (std::int64_t call = 0; call <= calls_after % 10; ++call) tensors.give(builder, 40);
      builder.freeze();
      ADD_FAILURE() << "not noticed";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what())
                    .find(in_q ? "q of layer 1, query head 4, position 37 "
                               : "K of layer 1, KV head 1, position 37 "),
                std::string::npos)
          << error.what();
    }
    EXPECT_THROW(builder.attend(tensors.step(0, 0, 40)), InvalidArgument);
    EXPECT_THROW(builder.freeze(), InvalidArgument);
  }
}

TEST(CudaContextBuilder, SynchronizingNamesAValueThatIsNotFinite) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  TokenStream stream(stack(6, 2, 64), 40);
  stream.k[1][static_cast<std::size_t>(37 * stream.kv_width() + 64 + 5)] = std::nanf("");
  const Tensors tensors(place, stream);
  ContextBuilder builder(stream.shape, {.capacity = 40}, place.device());
  tensors.give(builder, 30);
  builder.synchronize();
  tensors.give(builder, 10);
  try {
    builder.synchronize();
    ADD_FAILURE() << "not noticed";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("K of layer 1, KV head 1, position 37 "),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(builder.synchronize(), InvalidArgument);
}

TEST(CudaContextBuilder, StepsOfAReservedChunkTakeNoMoreMemory) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(stack(6, 2, 64), 120);
  const Tensors tensors(place, stream);
  const std::int64_t before = place.device().memory().used;
  ContextBuilder builder(stream.shape, {.capacity = 120}, place.device());
  EXPECT_EQ(place.device().memory().used, before);
  builder.reserve(120, 64);
  const std::int64_t reserved = place.device().memory().used;
  EXPECT_GT(reserved, before);
  for (const std::int64_t tokens : {10, 64, 46}) {
    tensors.give(builder, tokens);
    EXPECT_EQ(place.device().memory().used, reserved);
  }
  EXPECT_LE(tensors.worst(120, {}, 1), 1.0);
  expect_rows(*builder.freeze(), stream);
}

TEST(CudaContextBuilder, ARefusedCallIsNoLossOfRows) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const TokenStream stream(stack(6, 2, 64), 120);
  const Tensors tensors(place, stream);
  ContextBuilder builder(stream.shape, {.capacity = 120}, place.device());
  tensors.give(builder, 40);
  AttentionStep odd = tensors.step(0, 40, 40);
  ++odd.out;  // of an address that is no multiple of 8
  EXPECT_THROW(builder.attend(odd), InvalidArgument);
  tensors.give(builder, 80);
  EXPECT_LE(tensors.worst(120, {}, 1), 1.0);
  expect_rows(*builder.freeze(), stream);
}

TEST(CudaContextBuilder, RefusesRowsInFloat32) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  EXPECT_THROW(
      ContextBuilder(stack(6, 2, 64), {.capacity = 10, .dtype = DType::f32}, place.device()),
      InvalidArgument);
}

/// Largest error of a call whose tensors are made late on the caller's stream.
double worst_on_a_stream(std::int64_t tokens, bool drop_waits) {
  constexpr std::int64_t first = 300;
  const Place place("cuda");
  const TokenStream stream(stack(6, 2, 64), first + tokens);
  const Tensors tensors(place, stream);
  ContextBuilder builder(stream.shape, {.capacity = stream.total}, place.device());
  tensors.give(builder, first);
  const double worst = test::UserStream(place, stream, first)
                           .worst([&](const AttentionStep& step) { builder.attend(step); },
                                  [](std::int64_t, std::int64_t, std::int64_t) {
                                    return [](std::int64_t) { return true; };
                                  },
                                  drop_waits);
  const auto context = builder.freeze();
  if (!drop_waits) expect_rows(*context, stream);
  return worst;
}

TEST(CudaContextBuilder, TensorsOfAnotherStreamAreWaitedForAndResultsWait) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t tokens : {1, 7, 200}) EXPECT_LE(worst_on_a_stream(tokens, false), 1.0);
}

TEST(CudaContextBuilder, WithoutWaitsTensorsOfAnotherStreamComeTooLate) {
  TOPKV_NEEDS_GPU();
  EXPECT_GT(worst_on_a_stream(7, true), 1.0) << "the test above could not see a missing wait";
}

}  // namespace
}  // namespace topkv
