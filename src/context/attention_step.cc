#include "src/context/attention_step.h"

#include <fmt/format.h>

#include <array>
#include <functional>
#include <iterator>
#include <string_view>

#include "topkv/error.h"

namespace topkv {
namespace {

struct Floats {
  std::string_view name;
  const float* data;  // null: none
  std::int64_t count = 0;
};

bool overlap(const Floats& a, const Floats& b) {
  const std::less<const float*> before;  // of pointers into different arrays, too
  return a.data != nullptr && b.data != nullptr && before(a.data, b.data + b.count) &&
         before(b.data, a.data + a.count);
}

void check_sizes(const AttentionShape& shape, const AttentionStep& step) {
  std::int64_t bytes = 0;
  const std::int64_t dim = shape.head_dim_of(step.layer);
  for (const std::int64_t heads : {shape.q_heads, shape.kv_heads_of(step.layer)}) {
    if (__builtin_mul_overflow(step.tokens, heads, &bytes) ||
        __builtin_mul_overflow(bytes, dim * bytes_of(DType::f32), &bytes)) {
      throw InvalidArgument(
          fmt::format("attend: {} tokens of {} heads of {} elements are more bytes than 64 bits "
                      "count; give fewer tokens",
                      step.tokens, heads, dim));
    }
  }
}

void check_overlap(const Floats& written, const Floats& other) {
  if (!overlap(written, other)) return;
  throw InvalidArgument(
      fmt::format("attend: {} overlaps {}; give it memory of its own (out may be q itself)",
                  written.name, other.name));
}

void check_overlaps(const AttentionShape& shape, const AttentionStep& step) {
  const std::int64_t dim = shape.head_dim_of(step.layer);
  const std::int64_t q_count = step.tokens * shape.q_heads * dim;
  const std::int64_t kv_count = step.kv_count() * shape.kv_heads_of(step.layer) * dim;
  const Floats out{"out", step.out, q_count};
  const Floats lse{"lse", step.lse, step.tokens * shape.q_heads};
  const Floats q{"q", step.q, q_count};
  if (step.out != step.q) check_overlap(out, q);
  check_overlap(lse, q);
  check_overlap(lse, out);
  for (const Floats& other :
       {Floats{"q_next", step.q_next, q_count}, {"q_far", step.q_far, q_count}}) {
    check_overlap(out, other);
    check_overlap(lse, other);
  }
  if (kv_count == 0) return;
  for (const Floats& row : {Floats{"k", step.k, kv_count}, Floats{"v", step.v, kv_count}}) {
    check_overlap(out, row);
    check_overlap(lse, row);
  }
}

/// Returns a step of several sessions as if it were one session's.
AttentionStep whole_of(const AttentionStep& step, std::int64_t sessions) {
  AttentionStep whole = step;
  if (__builtin_mul_overflow(step.tokens, sessions, &whole.tokens)) {
    throw InvalidArgument(
        fmt::format("attend_together: {} tokens of {} sessions are more than 64 "
                    "bits count; give fewer",
                    step.tokens, sessions));
  }
  whole.kv_first = 0;
  whole.kv_tokens = step.kv_count() * sessions;
  return whole;
}

}  // namespace

void check_step(const AttentionShape& shape, const AttentionStep& step, std::int64_t sessions) {
  if (step.layer < 0 || step.layer >= shape.layers || step.tokens < 1) {
    throw InvalidArgument(
        fmt::format("attend: layer {}, {} tokens; there are {} layers and a step has at least 1 "
                    "token",
                    step.layer, step.tokens, shape.layers));
  }
  check_sizes(shape, step);
  if (step.kv_first < 0 || step.kv_first > step.tokens || step.kv_tokens < -1 ||
      step.kv_tokens > step.tokens - step.kv_first) {
    throw InvalidArgument(
        fmt::format("attend: kv_first is {} and kv_tokens {} in a step of {} tokens; expected "
                    "tokens of the step, or kv_tokens -1 for all from kv_first on",
                    step.kv_first, step.kv_tokens, step.tokens));
  }
  if (!shape.is_attention(step.layer)) {
    throw InvalidArgument(fmt::format(
        "attend: layer {} keeps a recurrent state; give its tokens with advance()", step.layer));
  }
  const bool shares = !shape.has_rows(step.layer);
  if (shares && (step.k != nullptr || step.v != nullptr)) {
    throw InvalidArgument(
        fmt::format("attend: layer {} attends the rows of layer {}, and is given K or V; give it "
                    "null k and v",
                    step.layer, shape.row_layer_of(step.layer)));
  }
  if (shape.keys_are_values && step.v != nullptr) {
    throw InvalidArgument(
        "attend: v is given, and the value of a token is its key here; give it null v");
  }
  const bool v_missing = step.v == nullptr && !shape.keys_are_values;
  const bool kv_missing = !shares && step.kv_count() > 0 && (step.k == nullptr || v_missing);
  if (step.q == nullptr || step.out == nullptr || kv_missing) {
    throw InvalidArgument(
        "attend: q, k, v and out must not be null; k and v are null in a step with kv_tokens 0, "
        "and in a layer that attends the rows of another layer; v is null when keys are values");
  }
  check_overlaps(shape, step);
  if (sessions == 1) return;
  const AttentionStep whole = whole_of(step, sessions);
  check_sizes(shape, whole);
  check_overlaps(shape, whole);
}

void check_index_tensors(const AttentionShape& shape, const AttentionStep& step,
                         std::span<const std::int64_t> firsts) {
  const std::array<Floats, 3> given = {Floats{"index_q", step.index_q},
                                       {"index_k", step.index_k},
                                       {"index_weights", step.index_weights}};
  if (!shape.has_index_keys(step.layer)) {
    for (const Floats& tensor : given) {
      if (tensor.data == nullptr) continue;
      throw InvalidArgument(fmt::format(
          "attend: {} is given for layer {}, which {}; give it null", tensor.name, step.layer,
          shape.has_indexer(step.layer)
              ? fmt::format("attends the choice of layer {}", shape.indexer_layer_of(step.layer))
              : std::string("has no index keys")));
    }
  }
  if (shape.has_indexer(step.layer) && step.kv_count() != step.tokens) {
    throw Unsupported(
        fmt::format("attend: K and V of {} of the {} tokens of a step in layer {}, which has a "
                    "trained indexer; give K and V of all tokens",
                    step.kv_count(), step.tokens, step.layer));
  }
  if (!shape.has_index_keys(step.layer)) return;
  const IndexerShape& of = *shape.indexer;
  std::int64_t keys = 0;
  std::int64_t queries = 0;  // elements
  for (const std::int64_t first : firsts) keys += of.completed(first, step.tokens);
  if (__builtin_mul_overflow(step.tokens * std::ssize(firsts), of.heads * of.dim * 4, &queries)) {
    throw InvalidArgument(
        fmt::format("attend: {} tokens of {} index queries of {} elements are more bytes than 64 "
                    "bits count; give fewer tokens",
                    step.tokens, of.heads, of.dim));
  }
  if (step.index_q == nullptr || (step.index_k == nullptr && keys > 0)) {
    throw InvalidArgument(
        fmt::format("attend: {} is null in layer {}, which has a trained indexer; give the index "
                    "queries of all tokens, and the {} index keys that they complete",
                    step.index_q == nullptr ? "index_q" : "index_k", step.layer, keys));
  }
  const std::int64_t tokens = step.tokens * std::ssize(firsts);
  for (const Floats& written : {Floats{"out", step.out, tokens * shape.q_heads * shape.head_dim},
                                {"lse", step.lse, tokens * shape.q_heads}}) {
    check_overlap(written, {"index_q", step.index_q, tokens * of.heads * of.dim});
    check_overlap(written, {"index_k", step.index_k, keys * of.dim});
    check_overlap(written, {"index_weights", step.index_weights, tokens * of.heads});
  }
}

void check_chunks(const AttentionShape& shape, const AttentionStep& step, std::int64_t first,
                  std::int64_t tokens) {
  if (shape.chunk_len == 0) {
    if (step.q_next == nullptr && step.q_far == nullptr) return;
    throw InvalidArgument(
        "attend: q_next or q_far is given, and the shape has no chunks; give its chunk_len, or q "
        "alone");
  }
  const std::int64_t last = first + tokens - 1;
  const auto check = [&](const float* q, std::int64_t chunks, const char* name, const char* whom) {
    if (q != nullptr || last / shape.chunk_len < chunks) return;
    throw InvalidArgument(
        fmt::format("attend: {} is null, and the step's token at position {} has keys in {}, with "
                    "chunks of {} tokens; give it",
                    name, last, whom, shape.chunk_len));
  };
  check(step.q_next, 1, "q_next", "the chunk before its own");
  check(step.q_far, 2, "q_far", "chunks before that");
}

}  // namespace topkv
