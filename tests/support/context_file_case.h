// Contexts that are saved and loaded by tests.
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/reference.h"
#include "topkv/context.h"
#include "topkv/context_file.h"
#include "topkv/session.h"

namespace topkv::test {

inline AttentionShape file_shape() {
  return {.layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .sliding_window = {0, 8, 0}};
}

/// The recurrent state that tests give a layer after a number of tokens.
inline std::vector<float> state_after(const AttentionShape& shape, std::int64_t layer,
                                      std::int64_t tokens) {
  return reference::random_floats(shape.state_size_of(layer),
                                  static_cast<unsigned>(tokens * shape.layers + layer));
}

/// The tensors of a trained indexer that tests give a layer's tokens, if it chooses.
struct IndexTensors {
  std::vector<float> q, k;

  IndexTensors(const AttentionShape& shape, AttentionStep& step, std::int64_t first,
               unsigned seed) {
    if (!shape.has_index_keys(step.layer)) return;
    const IndexerShape& of = *shape.indexer;
    q = reference::random_bf16(step.tokens * of.heads * of.dim, seed);
    k = reference::random_bf16(of.completed(first, step.tokens) * of.dim, seed + 1);
    step.index_q = q.data();
    step.index_k = k.data();
  }
};

/// A context of so many tokens, which a prefill gave, with these indices.
inline std::shared_ptr<const Context> saved_context(const AttentionShape& shape,
                                                    std::int64_t tokens, KvDType dtype,
                                                    const std::vector<std::string>& indices,
                                                    const std::vector<float>& key_bias = {}) {
  ContextBuilder builder(
      shape, {.capacity = tokens, .dtype = dtype, .keep_queries = true, .key_bias = key_bias});
  const std::int64_t step = 64;
  for (std::int64_t at = 0; at < tokens; at += step) {
    const std::int64_t count = std::min(step, tokens - at);
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const auto seed = static_cast<unsigned>(at * shape.layers + layer);
      const auto q = reference::random_bf16(count * shape.q_heads * shape.head_dim, 3 * seed);
      const auto k = reference::random_bf16(count * shape.kv_heads * shape.head_dim, 3 * seed + 1);
      const auto v = reference::random_bf16(count * shape.kv_heads * shape.head_dim, 3 * seed + 2);
      std::vector<float> out(q.size());
      if (!shape.is_attention(layer)) {
        builder.advance(layer, count, state_after(shape, layer, at + count));
        continue;
      }
      AttentionStep given;
      given.layer = layer;
      given.tokens = count;
      given.q = q.data();
      given.k = shape.has_rows(layer) ? k.data() : nullptr;
      given.v = shape.has_rows(layer) ? v.data() : nullptr;
      given.out = out.data();
      const IndexTensors tensors(shape, given, at, 5 * seed);
      builder.attend(given);
    }
  }
  auto context = builder.freeze();
  for (const std::string& index : indices) context = context->with_index(index);
  return context;
}

/// What sessions over a context give for some steps, bit for bit.
inline std::vector<float> answers(const std::shared_ptr<const Context>& context,
                                  const std::string& index, const std::string& tail) {
  const AttentionShape& shape = context->shape();
  Session session(context,
                  {.index = index, .k = TopK::same(16), .tail = tail, .window = 32, .capacity = 8});
  std::vector<float> all;
  for (std::int64_t token = 0; token < 3; ++token) {
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const auto seed = static_cast<unsigned>(1000 + token * 100 + layer);
      const auto q = reference::random_bf16(shape.q_heads * shape.head_dim, 3 * seed);
      const auto k = reference::random_bf16(shape.kv_heads * shape.head_dim, 3 * seed + 1);
      const auto v = reference::random_bf16(shape.kv_heads * shape.head_dim, 3 * seed + 2);
      std::vector<float> out(q.size());
      AttentionStep step;
      step.layer = layer;
      step.tokens = 1;
      step.q = q.data();
      step.k = k.data();
      step.v = v.data();
      step.out = out.data();
      session.attend(step);
      all.insert(all.end(), out.begin(), out.end());
    }
  }
  return all;
}

inline std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace topkv::test
