// Tokens of a small attention stack for tests that run on a device or, to hold the checks
// themselves to the truth, on the host: tensors in the device's memory, and the answer in float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/device/compute_device.h"
#include "tests/support/needs_gpu.h"
#include "tests/support/reference.h"
#include "topkv/context.h"
#include "topkv/device.h"

namespace test {

/// Every test of a process opens the device with this ceiling: it can be open with one at a time.
inline constexpr std::int64_t device_ceiling = std::int64_t{4} << 30;

/// Tests of this class run on the device named by their parameter's `device`, "cpu" or "cuda".
#define TOPKV_NEEDS_DEVICE(name) \
  do {                           \
    if ((name) != "cpu") {       \
      TOPKV_NEEDS_GPU();         \
    }                            \
  } while (false)

/// Element i of a stored row in bf16.
inline double bf16_at(const std::byte* row, std::int64_t i) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, row + 2 * i, sizeof(bits));
  const std::uint32_t word = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

/// Memory of a device, by value and in float32.
class Place {
 public:
  explicit Place(const std::string& device)
      : device_(topkv::Device::open(device, device == "cpu" ? 0 : device_ceiling)) {}

  const topkv::Device& device() const { return device_; }
  topkv::ComputeDevice& compute() const { return *device_.compute(); }
  bool is_cuda() const { return device_.is_cuda(); }

  topkv::Buffer put(const std::vector<float>& values) const {
    const auto lock = compute().lock();
    topkv::Buffer buffer = room(static_cast<std::int64_t>(values.size()));
    compute().copy_in(values.data(), bytes(values.size()), buffer.data());
    return buffer;
  }
  topkv::Buffer room(std::int64_t count) const {
    return compute().allocate(std::max<std::int64_t>(1, count) * 4, "test");
  }
  std::vector<float> get(const float* from, std::int64_t count) const {
    const auto lock = compute().lock();
    std::vector<float> values(static_cast<std::size_t>(count));
    compute().copy_out(reinterpret_cast<const std::byte*>(from), bytes(values.size()),
                       values.data());
    return values;
  }

 private:
  static std::int64_t bytes(std::size_t count) { return static_cast<std::int64_t>(count) * 4; }

  topkv::Device device_;
};

/// q, k and v of `total` tokens in every layer. Queries are exact in bf16, in which a device takes
/// them; keys and values are not. Queries are large, so that single rows weigh much. With chunks
/// q_next and q_far have nothing to do with q: who takes the wrong one is far off. A layer that
/// attends the rows of another layer has the k and v of that layer. When keys are values, v is k.
///
/// Index queries, keys and weights of a trained indexer are small multiples of 1/4: their scores
/// are exact in float32, and many are equal.
class TokenStream {
 public:
  using Visible = std::function<bool(std::int64_t row)>;

  TokenStream(topkv::AttentionShape attention, std::int64_t tokens, unsigned seed = 1)
      : shape(std::move(attention)), total(tokens) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      const unsigned at = seed + static_cast<unsigned>(l) * 10;
      q.push_back(reference::random_bf16(total * q_width(), at, 2.0F));
      if (shape.chunk_len > 0) {
        q_next.push_back(reference::random_bf16(total * q_width(), at + 1000, 2.0F));
        q_far.push_back(reference::random_bf16(total * q_width(), at + 1001, 2.0F));
      }
      const unsigned rows_at = seed + static_cast<unsigned>(shape.row_layer_of(l)) * 10;
      k.push_back(reference::random_floats(total * kv_width(), rows_at + 1));
      v.push_back(shape.keys_are_values
                      ? k.back()
                      : reference::random_floats(total * kv_width(), rows_at + 2));
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) rows_.push_back(rounded(l, head));
      if (shape.indexer) add_index_tensors(shape.has_index_keys(l), at + 2000);
    }
  }

  /// Other keys and values, exact in bf16.
  void replace_rows(std::vector<std::vector<float>> keys, std::vector<std::vector<float>> values) {
    k = std::move(keys);
    v = std::move(values);
    rows_.clear();
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) rows_.push_back(rounded(l, head));
    }
  }

  std::int64_t q_width() const { return shape.q_heads * shape.head_dim; }
  std::int64_t kv_width() const { return shape.kv_heads * shape.head_dim; }
  const float* query(std::int64_t layer, std::int64_t token, std::int64_t head) const {
    return &q[at(layer)][at(token * q_width() + head * shape.head_dim)];
  }
  /// Likewise, what the token meets a row with.
  const float* query(std::int64_t layer, std::int64_t token, std::int64_t head,
                     std::int64_t row) const {
    const std::int64_t len = shape.chunk_len;
    const std::int64_t chunks = len > 0 ? token / len - row / len : 0;
    const auto& from = chunks == 0 ? q : chunks == 1 ? q_next : q_far;
    return &from[at(layer)][at(token * q_width() + head * shape.head_dim)];
  }
  /// K and V of one (layer, KV head), rounded to bf16 as a store keeps them.
  const reference::Rows& rows(std::int64_t layer, std::int64_t kv_head) const {
    return rows_[at(layer * shape.kv_heads + kv_head)];
  }

  /// The positions that the trained indexer of a layer chooses for a token and KV head, in float64
  /// by plain loops.
  std::set<std::int64_t> chosen(std::int64_t layer, std::int64_t p, std::int64_t kv_head) const {
    const topkv::IndexerShape& of = *shape.indexer;
    const std::int64_t chooser = shape.indexer_layer_of(layer);
    const std::int64_t keys = (p + 1) / of.tokens_per_key;
    const std::int64_t heads = of.heads / of.choices;
    const std::int64_t first_head = of.choices == 1 ? 0 : kv_head * heads;
    std::map<std::int64_t, double> blocks;  // by their best key
    for (std::int64_t key = 0; key < keys; ++key) {
      double score = 0;
      for (std::int64_t h = first_head; h < first_head + heads; ++h) {
        double dot = 0;
        for (std::int64_t j = 0; j < of.dim; ++j)
          dot += double{index_q[at(chooser)][at((p * of.heads + h) * of.dim + j)]} *
                 index_k[at(chooser)][at(key * of.dim + j)];
        if (of.score == topkv::IndexScore::relu) dot = std::max(dot, 0.0);
        score += dot * (with_weights ? index_weights[at(chooser)][at(p * of.heads + h)] : 1.0F);
      }
      const auto [block, added] = blocks.insert({key / of.block, score});
      block->second = std::max(block->second, score);
    }
    std::vector<std::pair<double, std::int64_t>> ranked;
    for (const auto& [block, score] : blocks) {
      const bool local = block > (keys - 1) / of.block - of.local_blocks;
      ranked.push_back({local ? -std::numeric_limits<double>::infinity() : -score, block});
    }
    std::sort(ranked.begin(), ranked.end());
    std::set<std::int64_t> positions;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(of.top, std::ssize(ranked)); ++i) {
      for (std::int64_t key = 0; key < keys; ++key) {
        if (key / of.block != ranked[at(i)].second) continue;
        for (std::int64_t j = 0; j < of.tokens_per_key; ++j)
          positions.insert(key * of.tokens_per_key + j);
      }
    }
    for (std::int64_t x = keys * of.tokens_per_key; x <= p; ++x) positions.insert(x);
    return positions;
  }

  /// Sets the index tensors of a step whose first token is at position `first`. The tensors hold
  /// tokens from position `from` on.
  void set_index_tensors(topkv::AttentionStep& step, std::int64_t first, const float* queries,
                         const float* keys, const float* weights, std::int64_t from = 0) const {
    if (!shape.has_index_keys(step.layer)) return;
    const topkv::IndexerShape& of = *shape.indexer;
    step.index_q = queries + (first - from) * of.heads * of.dim;
    step.index_k = keys + of.completed(from, first - from) * of.dim;
    if (with_weights) step.index_weights = weights + (first - from) * of.heads;
  }

  /// The first tokens as a context in bf16, whose rows no device knows of.
  std::shared_ptr<const topkv::Context> context(std::int64_t tokens,
                                                topkv::KvDType dtype = {}) const {
    topkv::ContextBuilder builder(shape, {.capacity = tokens, .dtype = dtype});
    if (shape.indexer) return attended(builder, tokens);
    const auto view = [&](const std::vector<float>& values) {
      return topkv::TensorView::tokens_first(values.data(), topkv::DType::f32, tokens,
                                             shape.kv_heads, shape.head_dim);
    };
    for (std::int64_t l = 0; l < shape.layers; ++l)
      if (shape.has_rows(l))
        builder.append(l, view(k[at(l)]),
                       shape.keys_are_values ? topkv::TensorView() : view(v[at(l)]));
    return builder.freeze();
  }

  /// Attention in float64 of a query head of the token at p over those of rows [0, p] that it sees,
  /// and how far from that a right result may be.
  ///
  /// Products of bf16 are exact in float32; a sum of head_dim of them loses at most
  /// e = scale * head_dim * 2^-23 * sum |q k| in a score, and capping it loses at most
  /// softcap * 2^-20. A weight e off in its logarithm, against a sum of weights as far off, is 2 e
  /// off relatively. On a device, weights are rounded to bf16 (2^-9), and a part of the result may
  /// come from cuDNN in bf16 (2^-9). Merging a handful of parts, exp and float32 sums: less than
  /// 2^-14. An element of out is a mean of values with these weights, so it is off by as much of
  /// the largest value. The log-sum-exp is off as scores are, by its rounding, and by those sums.
  struct Truth {
    std::vector<double> out;
    double lse = -std::numeric_limits<double>::infinity();
    double out_error = 0, lse_error = 0;

    /// How far a result is from it in units of its error: at most 1 is right. lse: may be null.
    double distance(const float* got, const float* got_lse) const {
      double worst = 0;
      const auto compare = [&worst](double is, double should_be, double allowed) {
        if (is == should_be) return;
        const double off = std::abs(is - should_be) / allowed;
        worst = off <= worst ? worst : off;  // NaN replaces what was
        if (std::isnan(worst)) worst = std::numeric_limits<double>::infinity();
      };
      for (std::size_t j = 0; j < out.size(); ++j) compare(got[j], out[j], out_error);
      if (got_lse != nullptr) compare(*got_lse, lse, lse_error);
      return worst;
    }
  };

  Truth truth(std::int64_t layer, std::int64_t p, std::int64_t head, bool on_device,
              const Visible& visible) const {
    const reference::Rows& all = rows(layer, head / shape.group());
    const std::int64_t dim = shape.head_dim;
    const double scale = shape.softmax_scale();
    const double cap = shape.softcap;
    constexpr double nothing = -std::numeric_limits<double>::infinity();
    std::vector<double> scores(at(p + 1), nothing);
    double high = nothing;
    double magnitude = 0;
    double value_size = 0;
    for (std::int64_t row = 0; row <= p; ++row) {
      if (!visible(row)) continue;
      const float* from = query(layer, p, head, row);
      double sum = 0;
      double size = 0;
      for (std::int64_t j = 0; j < dim; ++j) {
        const double product = double{from[j]} * all.keys[at(row * dim + j)];
        sum += product;
        size += std::abs(product);
        value_size = std::max(value_size, std::abs(all.values[at(row * dim + j)]));
      }
      scores[at(row)] = cap == 0 ? scale * sum : cap * std::tanh(scale * sum / cap);
      high = std::max(high, scores[at(row)]);
      magnitude = std::max(magnitude, size);
    }
    Truth want;
    want.out.assign(at(dim), 0.0);
    if (high == nothing) return want;
    double weights = 0;
    for (std::int64_t row = 0; row <= p; ++row) {
      if (scores[at(row)] == nothing) continue;
      const double weight = std::exp(scores[at(row)] - high);
      weights += weight;
      for (std::int64_t j = 0; j < dim; ++j)
        want.out[at(j)] += weight * all.values[at(row * dim + j)];
    }
    for (double& x : want.out) x /= weights;
    want.lse = high + std::log(weights);
    const double score_error =
        scale * static_cast<double>(dim) * 0x1p-23 * magnitude + cap * 0x1p-20;
    want.out_error = value_size * ((on_device ? 0x1p-8 : 0.0) + 2 * score_error + 0x1p-14);
    want.lse_error = score_error + 0x1p-20 * std::abs(want.lse) + 0x1p-14;
    return want;
  }

  /// truth(...).distance(out, lse).
  double error(std::int64_t layer, std::int64_t p, std::int64_t head, bool on_device,
               const float* out, const float* lse, const Visible& visible) const {
    return truth(layer, p, head, on_device, visible).distance(out, lse);
  }

  topkv::AttentionShape shape;
  std::int64_t total;
  std::vector<std::vector<float>> q, k, v;        // [layers][total x width]
  std::vector<std::vector<float>> q_next, q_far;  // likewise, with chunks
  /// With a trained indexer, per layer: [total, heads, dim], [keys, dim], [total, heads]. Empty in
  /// layers that do not choose.
  std::vector<std::vector<float>> index_q, index_k, index_weights;
  bool with_weights = true;  // steps have index_weights

 private:
  /// Whole numbers of -3 to 3, times a factor.
  static std::vector<float> small_numbers(std::int64_t count, unsigned seed, float factor) {
    std::mt19937 random(seed);
    std::vector<float> out(at(count));
    for (float& x : out) x = factor * static_cast<float>(static_cast<int>(random() % 7) - 3);
    return out;
  }
  void add_index_tensors(bool chooses, unsigned seed) {
    const topkv::IndexerShape& of = *shape.indexer;
    const std::int64_t tokens = chooses ? total : 0;
    index_q.push_back(small_numbers(tokens * of.heads * of.dim, seed, 1));
    index_k.push_back(small_numbers(of.keys(tokens) * of.dim, seed + 1, 1));
    index_weights.push_back(small_numbers(tokens * of.heads, seed + 2, 0.25F));
  }
  /// The context of a builder that attends the first tokens, 50 at a time.
  std::shared_ptr<const topkv::Context> attended(topkv::ContextBuilder& builder,
                                                 std::int64_t tokens) const {
    for (std::int64_t t = 0; t < tokens;) {
      const std::int64_t count = std::min<std::int64_t>(50, tokens - t);
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        std::vector<float> out(at(count * q_width()));
        topkv::AttentionStep step{.layer = l,
                                  .tokens = count,
                                  .q = q[at(l)].data() + t * q_width(),
                                  .k = k[at(l)].data() + t * kv_width(),
                                  .v = v[at(l)].data() + t * kv_width(),
                                  .out = out.data()};
        if (!shape.has_rows(l)) step.k = step.v = nullptr;
        if (shape.keys_are_values) step.v = nullptr;
        set_index_tensors(step, t, index_q[at(l)].data(), index_k[at(l)].data(),
                          index_weights[at(l)].data());
        builder.attend(step);
      }
      t += count;
    }
    return builder.freeze();
  }

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  reference::Rows rounded(std::int64_t layer, std::int64_t kv_head) const {
    reference::Rows rows;
    rows.dim = shape.head_dim;
    for (std::int64_t t = 0; t < total; ++t) {
      for (std::int64_t j = 0; j < shape.head_dim; ++j) {
        const std::size_t from = at(t * kv_width() + kv_head * shape.head_dim + j);
        rows.keys.push_back(reference::as_bf16(k[at(layer)][from]));
        rows.values.push_back(reference::as_bf16(v[at(layer)][from]));
      }
    }
    return rows;
  }

  std::vector<reference::Rows> rows_;  // [layers, kv_heads]
};

}  // namespace test
