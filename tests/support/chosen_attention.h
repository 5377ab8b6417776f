// Tokens that choose the keys that they attend, beside float64: what sparse prefills and turns of
// sessions must give.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
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

/// Gives tokens [begin, end) to a builder or a session in steps of `chunk`.
template <class Reader>
void give_tokens(Reader& reader, const TokenStream& stream, std::int64_t begin, std::int64_t end,
                 std::int64_t chunk, SparseOuts& outs) {
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
      reader.attend(step);
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
/// they met.
inline std::vector<topkv::PrefillShare> expect_chosen(const TokenStream& stream,
                                                      const ChoiceRules& rules, std::int64_t begin,
                                                      std::int64_t end, std::int64_t chunk,
                                                      const SparseOuts& outs) {
  const topkv::AttentionShape& shape = stream.shape;
  std::vector<topkv::PrefillShare> shares;
  std::int64_t chose = 0;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    topkv::PrefillShare& share = shares.emplace_back();
    const auto l = static_cast<std::size_t>(layer);
    for (std::int64_t first = begin, next = 0; first < end; first = next) {
      // A piece ends with its block, with its step, and with its chunk.
      next =
          std::min({end, first / 128 * 128 + 128, begin + ((first - begin) / chunk + 1) * chunk});
      for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        const ReferenceChoice choice = reference_choice(stream, layer, kv_head, first, next, rules);
        EXPECT_GT(choice.margin, 1e-5) << "undecided: take another seed";
        share.queries += next - first;
        share.mass += choice.mass * static_cast<double>(next - first);
        chose += static_cast<std::int64_t>(choice.blocks.size()) < (next - 1) / 64 + 1;
        const auto visible = [&](std::int64_t row) { return choice.blocks.contains(row / 64); };
        for (std::int64_t p = first; p < next; ++p) {
          share.dense_keys += static_cast<double>(p + 1);
          for (std::int64_t row = 0; row <= p; ++row) share.keys += visible(row) ? 1 : 0;
          if (p % 5 != 0) continue;
          for (std::int64_t g = 0; g < shape.group(); ++g) {
            const std::int64_t head = kv_head * shape.group() + g;
            const std::int64_t at = p * shape.q_heads + head;
            const auto of = static_cast<std::size_t>(at * shape.head_dim);
            EXPECT_LE(stream.error(layer, p, head, false, &outs.out[l][of],
                                   &outs.lse[l][static_cast<std::size_t>(at)], visible),
                      1)
                << "layer " << layer << ", token " << p << ", head " << head;
          }
        }
      }
    }
  }
  EXPECT_GT(chose, 0) << "no block of tokens had a choice";
  return shares;
}

}  // namespace test
