// Tokens of a small attention stack in host memory, and what a session over them must give, in
// float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/reference.h"
#include "topkv/context.h"
#include "topkv/session.h"

namespace topkv::test {

inline constexpr double tolerance =
    3e-5;  // float32 sums of up to a few thousand terms of size about 1

/// A stream of tokens of a small attention stack: the first `context` are prefilled.
struct Stream {
  explicit Stream(AttentionShape s, std::int64_t total, unsigned seed = 1)
      : shape(std::move(s)), total(total) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      const unsigned at = seed + static_cast<unsigned>(l) * 10;
      q.push_back(reference::random_floats(total * q_width(), at, 1.5F));
      k.push_back(reference::random_bf16(total * kv_width(), at + 1));
      v.push_back(reference::random_bf16(total * kv_width(), at + 2));
    }
  }
  std::int64_t q_width() const { return shape.q_heads * shape.head_dim; }
  std::int64_t kv_width() const { return shape.kv_heads * shape.head_dim; }

  std::shared_ptr<const Context> prefill(std::int64_t tokens, KvDType dtype = {}) const {
    ContextBuilder builder(shape, {.capacity = tokens, .dtype = dtype, .key_bias = key_bias});
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      builder.append(
          l,
          TensorView::tokens_first(k[l].data(), DType::f32, tokens, shape.kv_heads, shape.head_dim),
          TensorView::tokens_first(v[l].data(), DType::f32, tokens, shape.kv_heads,
                                   shape.head_dim));
    }
    return builder.freeze();
  }

  /// Feeds tokens [session.tokens(), end) in steps; gives out of [layer][token x q_width].
  std::vector<std::vector<float>> feed(Session& session, std::int64_t end,
                                       std::int64_t step) const {
    std::vector<std::vector<float>> outs(static_cast<std::size_t>(shape.layers));
    const std::int64_t start = session.tokens();
    for (auto& out : outs) out.resize(static_cast<std::size_t>((end - start) * q_width()));
    for (std::int64_t t = start; t < end; t += step) {
      const std::int64_t n = std::min(step, end - t);
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        session.attend(l, &q[l][t * q_width()], &k[l][t * kv_width()], &v[l][t * kv_width()],
                       &outs[l][(t - start) * q_width()], n);
      }
    }
    return outs;
  }

  /// The step of tokens [begin, begin + count) of a layer; out and lse are the caller's.
  AttentionStep step(std::int64_t layer, std::int64_t begin, std::int64_t count, float* out,
                     float* lse = nullptr) const {
    return {.layer = layer,
            .tokens = count,
            .q = &q[layer][begin * q_width()],
            .k = &k[layer][begin * kv_width()],
            .v = &v[layer][begin * kv_width()],
            .out = out,
            .lse = lse};
  }

  reference::Rows rows(std::int64_t layer, std::int64_t kv_head, std::int64_t tokens) const {
    reference::Rows rows;
    rows.dim = shape.head_dim;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t j = 0; j < shape.head_dim; ++j) {
        rows.keys.push_back(k[layer][t * kv_width() + kv_head * shape.head_dim + j]);
        rows.values.push_back(v[layer][t * kv_width() + kv_head * shape.head_dim + j]);
      }
    }
    return rows;
  }

  AttentionShape shape;
  std::int64_t total;
  std::vector<std::vector<float>> q, k, v;  // [layers][tokens x width]
  std::vector<float> key_bias = {};         // ContextOptions::key_bias, of which k has it
};

/// A context whose prefill had queries.
inline std::shared_ptr<const Context> prefilled(const Stream& stream, std::int64_t tokens,
                                                std::int64_t chunk, bool keep_queries = true) {
  ContextBuilder builder(stream.shape, {.capacity = tokens, .keep_queries = keep_queries});
  std::vector<float> out(static_cast<std::size_t>(chunk * stream.q_width()));
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    for (std::int64_t l = 0; l < stream.shape.layers; ++l)
      builder.attend(stream.step(l, begin, std::min(chunk, tokens - begin), out.data()));
  }
  return builder.freeze();
}

/// Compares what a session gave for the token at p of one layer with float64. lse: null: none.
/// held: rows there are, p + 1 unless the token came without its own.
inline void expect_step(const Stream& stream, std::int64_t layer, std::int64_t p,
                        const RetrievalOptions& options, const float* out,
                        const float* lse = nullptr, std::int64_t held = -1) {
  const AttentionShape& shape = stream.shape;
  const std::int64_t group = shape.group();
  if (held < 0) held = p + 1;
  const std::int64_t window_begin = std::max<std::int64_t>(options.sinks, p - options.window + 1);
  for (std::int64_t h = 0; h < shape.q_heads; ++h) {
    const reference::Rows rows = stream.rows(layer, h / group, held);
    const auto query = [&](std::int64_t head) {
      return &stream.q[layer][p * stream.q_width() + head * shape.head_dim];
    };
    std::set<std::int64_t> found;
    if (layer >= options.dense_layers) {
      std::vector<const float*> heads;
      for (std::int64_t g = 0; g < group; ++g) heads.push_back(query(h / group * group + g));
      if (options.select_by == SelectBy::query_head) heads = {query(h)};
      found = reference::best_rows(rows, heads, options.sinks, std::min(window_begin, held),
                                   options.k.resolve(shape.layers)[static_cast<std::size_t>(layer)],
                                   shape.softmax_scale(), shape.softcap);
    }
    const auto want = reference::attend(
        rows, query(h), shape.softmax_scale(),
        [&](std::int64_t x) {
          return layer < options.dense_layers || x < options.sinks || x > p - options.window ||
                 found.contains(x);
        },
        shape.softcap);
    for (std::int64_t j = 0; j < shape.head_dim; ++j) {
      ASSERT_NEAR(out[h * shape.head_dim + j], want.out[j], tolerance)
          << "layer " << layer << " position " << p << " head " << h;
    }
    if (lse == nullptr) continue;
    if (std::isinf(want.lse)) {
      ASSERT_EQ(lse[h], empty_lse) << "layer " << layer << " position " << p << " head " << h;
    } else {
      ASSERT_NEAR(lse[h], want.lse, tolerance * (1 + std::abs(want.lse)))
          << "layer " << layer << " position " << p << " head " << h;
    }
  }
}

}  // namespace topkv::test
