// Tokens that choose the keys that they attend, beside float64: what sparse prefills and turns of
// sessions must give.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/support/block_choice_reference.h"
#include "tests/support/token_stream.h"
#include "topkv/context.h"

namespace test {

struct SparseOuts {
  std::vector<std::vector<float>> out, lse;  // [layers]

  explicit SparseOuts(const TokenStream& stream)
      : out(stream.q.size(), std::vector<float>(stream.q[0].size(), NAN)),
        lse(stream.q.size(),
            std::vector<float>(static_cast<std::size_t>(stream.total * stream.shape.q_heads),
                               NAN)) {}
};

/// Gives a step, whose tensors are in host memory, to a builder or a session on a CUDA device.
template <class Reader>
void give_step_on(const Place& place, Reader& reader, const TokenStream& stream,
                  topkv::AttentionStep step) {
  const std::int64_t q_count = step.tokens * stream.q_width();
  const std::int64_t kv_count = step.tokens * stream.kv_width();
  std::vector<topkv::Buffer> inputs;
  for (const auto& [tensor, count] : {std::pair{&step.q, q_count},
                                      {&step.q_next, q_count},
                                      {&step.q_far, q_count},
                                      {&step.k, kv_count},
                                      {&step.v, kv_count}}) {
    if (*tensor == nullptr) continue;
    inputs.push_back(place.put({*tensor, *tensor + count}));
    *tensor = inputs.back().floats();
  }
  const std::int64_t lse_count = step.tokens * stream.shape.q_heads;
  float* const host_out = step.out;
  float* const host_lse = step.lse;
  const topkv::Buffer out = place.room(q_count), lse = place.room(lse_count);
  step.out = out.floats();
  step.lse = lse.floats();
  reader.attend(step);
  std::ranges::copy(place.get(out.floats(), q_count), host_out);
  std::ranges::copy(place.get(lse.floats(), lse_count), host_lse);
}

/// Gives tokens [begin, end) to a builder or a session in steps of `chunk`. place: where it is;
/// null: on the host.
template <class Reader>
void give_tokens(Reader& reader, const TokenStream& stream, std::int64_t begin, std::int64_t end,
                 std::int64_t chunk, SparseOuts& outs, const Place* place = nullptr) {
  for (std::int64_t first = begin; first < end; first += chunk) {
    const std::int64_t count = std::min(chunk, end - first);
    for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
      const auto at = static_cast<std::size_t>(l);
      const std::int64_t q = first * stream.q_width();
      topkv::AttentionStep step{.layer = l, .tokens = count, .q = &stream.q[at][q]};
      if (stream.shape.has_rows(l)) {
        step.k = &stream.k[at][first * stream.kv_width()];
        if (!stream.shape.keys_are_values) step.v = &stream.v[at][first * stream.kv_width()];
      }
      if (stream.shape.chunk_len > 0) {
        step.q_next = &stream.q_next[at][q];
        step.q_far = &stream.q_far[at][q];
      }
      step.out = &outs.out[at][q];
      step.lse = &outs.lse[at][first * stream.shape.q_heads];
      if (place != nullptr && place->is_cuda()) {
        give_step_on(*place, reader, stream, step);
      } else {
        reader.attend(step);
      }
    }
  }
}

inline topkv::PrefillAttention sparse(const ChoiceRules& rules) {
  return {.mode = topkv::Prefill::sparse,
          .window = rules.window,
          .sinks = rules.sinks,
          .keys = rules.most,
          .least_keys = rules.least,
          .mass = rules.mass};
}

/// Attention of tokens [begin, end) that came in steps of `chunk`, beside float64. Returns what
/// they met. on_cuda: a CUDA device scores means in bf16, and may choose otherwise where shares are
/// near; such blocks of tokens are not compared.
inline std::vector<topkv::PrefillShare> expect_chosen(const TokenStream& stream,
                                                      const ChoiceRules& rules, std::int64_t begin,
                                                      std::int64_t end, std::int64_t chunk,
                                                      const SparseOuts& outs,
                                                      bool on_cuda = false) {
  const topkv::AttentionShape& shape = stream.shape;
  std::vector<topkv::PrefillShare> shares;
  std::int64_t chose = 0, pieces = 0, decided = 0;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    topkv::PrefillShare& share = shares.emplace_back();
    const auto l = static_cast<std::size_t>(layer);
    for (std::int64_t first = begin, next = 0; first < end; first = next) {
      // A piece ends with its block, with its step, and with its chunk.
      next =
          std::min({end, first / 128 * 128 + 128, begin + ((first - begin) / chunk + 1) * chunk});
      for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        const ReferenceChoice choice = reference_choice(stream, layer, kv_head, first, next, rules);
        const bool is_decided = choice.margin > (on_cuda ? 5e-3 : 1e-5);
        EXPECT_TRUE(is_decided || on_cuda) << "undecided: take another seed";
        ++pieces;
        decided += is_decided;
        share.queries += next - first;
        share.mass += choice.mass * static_cast<double>(next - first);
        chose += static_cast<std::int64_t>(choice.blocks.size()) < (next - 1) / 64 + 1;
        const auto visible = [&](std::int64_t row) { return choice.blocks.contains(row / 64); };
        for (std::int64_t p = first; p < next; ++p) {
          share.dense_keys += static_cast<double>(p + 1);
          for (std::int64_t row = 0; row <= p; ++row) share.keys += visible(row) ? 1 : 0;
          if (p % 5 != 0 || !is_decided) continue;
          for (std::int64_t g = 0; g < shape.group(); ++g) {
            const std::int64_t head = kv_head * shape.group() + g;
            const std::int64_t at = p * shape.q_heads + head;
            const auto of = static_cast<std::size_t>(at * shape.head_dim);
            EXPECT_LE(stream.error(layer, p, head, on_cuda, &outs.out[l][of],
                                   &outs.lse[l][static_cast<std::size_t>(at)], visible),
                      1)
                << "layer " << layer << ", token " << p << ", head " << head;
          }
        }
      }
    }
  }
  EXPECT_GT(chose, 0) << "no block of tokens had a choice";
  EXPECT_GT(decided, pieces / 3) << "take other sizes, or another seed";
  return shares;
}

}  // namespace test
