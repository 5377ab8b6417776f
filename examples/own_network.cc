// Attend inside an application's own network: the application computes q, k and v; topkv keeps the
// rows, finds the ones that matter and gives attention back.
//
// The "network" here is a random one-layer stack; what counts is the order of the calls.
#include <cstdio>
#include <random>
#include <vector>

#include "topkv/context.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace {

std::vector<float> random_tensor(std::int64_t size) {
  static std::mt19937 random(1);
  static std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(size));
  for (float& value : x) value = normal(random);
  return x;
}

}  // namespace

int main() try {
  const topkv::AttentionShape shape{.layers = 1, .q_heads = 8, .kv_heads = 2, .head_dim = 64};
  const std::int64_t prompt = 20'000;
  const std::int64_t chunk = 1000;

  // Prefill: for each chunk of tokens and each layer, hand over q, K and V (post-RoPE).
  topkv::ContextBuilder builder(
      shape, {.capacity = prompt,
              .attention = {.mode = topkv::Prefill::window, .window = 512, .sinks = 4}});
  for (std::int64_t begin = 0; begin < prompt; begin += chunk) {
    const auto q = random_tensor(chunk * shape.q_heads * shape.head_dim);
    const auto k = random_tensor(chunk * shape.kv_heads * shape.head_dim);
    const auto v = random_tensor(chunk * shape.kv_heads * shape.head_dim);
    std::vector<float> out(q.size());
    builder.attend({.layer = 0,
                    .tokens = chunk,
                    .q = q.data(),
                    .k = k.data(),
                    .v = v.data(),
                    .out = out.data()});
    // … out goes on through the network.
  }
  const auto context = builder.freeze();

  // Decode: any number of sessions, in any threads, over the one context.
  topkv::Session session(context, {.k = topkv::TopK::same(64), .window = 512});
  std::vector<float> out(static_cast<std::size_t>(shape.q_heads * shape.head_dim));
  for (int step = 0; step < 5; ++step) {
    const auto q = random_tensor(shape.q_heads * shape.head_dim);
    const auto k = random_tensor(shape.kv_heads * shape.head_dim);
    const auto v = random_tensor(shape.kv_heads * shape.head_dim);
    session.attend(0, q.data(), k.data(), v.data(), out.data());
    std::printf("token %lld: out[0] = %+.4f, %lld rows retrieved so far\n",
                static_cast<long long>(session.tokens() - 1), static_cast<double>(out[0]),
                static_cast<long long>(session.stats().rows_retrieved));
  }
} catch (const topkv::Error& error) {
  std::fprintf(stderr, "own_network: %s\n", error.what());
  return 1;
}
