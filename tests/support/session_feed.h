// Feeding a stream's tokens to a session, and what the session must give for them in float64.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/token_stream.h"
#include "topkv/session.h"

namespace test {

/// Where sessions are tested.
inline const std::vector<std::string> devices = {"cpu", "cuda"};

inline constexpr std::int64_t no_end = std::numeric_limits<std::int64_t>::max();

/// Tokens [first, end) of every layer in a device's memory, and what a session gives for them.
class Feed {
 public:
  Feed(const Place& place, const TokenStream& stream, std::int64_t first, std::int64_t end)
      : place_(place), stream_(stream), first_(first), end_(end) {
    for (std::int64_t l = 0; l < stream.shape.layers; ++l) {
      const auto at = static_cast<std::size_t>(l);
      q_.push_back(put(stream.q[at], stream.q_width()));
      if (stream.shape.chunk_len > 0) {
        q_next_.push_back(put(stream.q_next[at], stream.q_width()));
        q_far_.push_back(put(stream.q_far[at], stream.q_width()));
      }
      k_.push_back(put(stream.k[at], stream.kv_width()));
      v_.push_back(put(stream.v[at], stream.kv_width()));
      const auto elements = static_cast<std::size_t>((end - first) * stream.q_width());
      out_.push_back(place.put(std::vector<float>(elements, NAN)));
      const auto heads = static_cast<std::size_t>((end - first) * stream.shape.q_heads);
      lse_.push_back(place.put(std::vector<float>(heads, NAN)));
      if (stream.shape.indexer) put_index_tensors(at, stream.shape.has_index_keys(l));
    }
  }

  /// Tokens [session.tokens(), until) in steps.
  void run(topkv::Session& session, std::int64_t until, std::int64_t step) {
    for (std::int64_t t = session.tokens(); t < until; t = session.tokens()) {
      for (std::int64_t l = 0; l < stream_.shape.layers; ++l)
        attend(session, l, t, std::min(step, until - t));
    }
  }
  void run(topkv::Session& session, std::int64_t step) { run(session, end_, step); }

  /// One step of one layer. The first layer's log-sum-exp is not asked for.
  topkv::AttentionStep step(std::int64_t layer, std::int64_t t, std::int64_t tokens) const {
    const auto at = static_cast<std::size_t>(layer);
    const std::int64_t skip = t - first_;
    topkv::AttentionStep step{
        .layer = layer,
        .tokens = tokens,
        .q = q_[at].floats() + skip * stream_.q_width(),
        .k = k_[at].floats() + skip * stream_.kv_width(),
        .v = v_[at].floats() + skip * stream_.kv_width(),
        .out = out_[at].floats() + skip * stream_.q_width(),
        .lse = layer == 0 ? nullptr : lse_[at].floats() + skip * stream_.shape.q_heads};
    if (!stream_.shape.has_rows(layer)) step.k = step.v = nullptr;
    if (stream_.shape.keys_are_values) step.v = nullptr;
    if (stream_.shape.indexer) {
      stream_.set_index_tensors(step, t, index_q_[at].floats(), index_k_[at].floats(),
                                index_weights_[at].floats(), first_);
    }
    if (stream_.shape.chunk_len > 0) {
      step.q_next = q_next_[at].floats() + skip * stream_.q_width();
      step.q_far = q_far_[at].floats() + skip * stream_.q_width();
    }
    return step;
  }
  /// The same without K and V.
  topkv::AttentionStep reading(std::int64_t layer, std::int64_t t, std::int64_t tokens) const {
    topkv::AttentionStep step = this->step(layer, t, tokens);
    step.k = step.v = nullptr;
    step.kv_tokens = 0;
    return step;
  }
  void attend(topkv::Session& session, std::int64_t layer, std::int64_t t, std::int64_t tokens) {
    session.attend(step(layer, t, tokens));
  }

  /// What has been given so far; NaN where nothing has.
  std::vector<std::vector<float>> outs() const {
    std::vector<std::vector<float>> all;
    for (const topkv::Buffer& out : out_)
      all.push_back(place_.get(out.floats(), (end_ - first_) * stream_.q_width()));
    return all;
  }

  /// Largest error of the tokens at these positions, of rows [0, end) where these are fewer than
  /// there are before them.
  double worst(const topkv::RetrievalOptions& options, const std::vector<std::int64_t>& positions,
               std::int64_t end = no_end) const;

 private:
  topkv::Buffer put(const std::vector<float>& values, std::int64_t width) const {
    return place_.put({values.begin() + first_ * width, values.begin() + end_ * width});
  }
  void put_index_tensors(std::size_t layer, bool chooses) {
    const topkv::IndexerShape& of = *stream_.shape.indexer;
    const auto part = [&](const std::vector<float>& values, std::int64_t begin, std::int64_t end) {
      if (!chooses) return place_.put({});
      return place_.put({values.begin() + begin, values.begin() + end});
    };
    const std::int64_t width = of.heads * of.dim;
    index_q_.push_back(part(stream_.index_q[layer], first_ * width, end_ * width));
    index_k_.push_back(
        part(stream_.index_k[layer], of.keys(first_) * of.dim, of.keys(end_) * of.dim));
    index_weights_.push_back(
        part(stream_.index_weights[layer], first_ * of.heads, end_ * of.heads));
  }

  const Place& place_;
  const TokenStream& stream_;
  std::int64_t first_, end_;
  std::vector<topkv::Buffer> q_, k_, v_, out_, lse_;              // per layer
  std::vector<topkv::Buffer> q_next_, q_far_;                     // likewise, with chunks
  std::vector<topkv::Buffer> index_q_, index_k_, index_weights_;  // with a trained indexer
};

/// The rows below `end` that a session with an exact index finds for a token at p: with chunks, for
/// each of its queries among the rows that this one meets.
inline std::set<std::int64_t> found_rows(const TokenStream& stream,
                                         const topkv::RetrievalOptions& options, std::int64_t layer,
                                         std::int64_t p, std::int64_t head,
                                         std::int64_t end = no_end) {
  const std::int64_t group = stream.shape.group();
  const std::int64_t k = options.k.resolve(stream.shape.layers)[static_cast<std::size_t>(layer)];
  const std::int64_t last = std::clamp<std::int64_t>(p - options.window + 1, 0, end);
  const std::int64_t len = stream.shape.chunk_len;
  const std::int64_t own = len > 0 ? p / len * len : 0;
  const std::int64_t next = std::max<std::int64_t>(0, own - len);
  std::set<std::int64_t> found;
  for (const auto& [first, stop] : {std::pair{own, last}, {next, own}, {std::int64_t{0}, next}}) {
    const std::int64_t from = std::max(first, options.sinks);
    if (from >= std::min(stop, last)) continue;
    std::vector<const float*> choosers = {stream.query(layer, p, head, from)};
    if (options.select_by == topkv::SelectBy::group) {
      choosers.clear();
      for (std::int64_t g = 0; g < group; ++g)
        choosers.push_back(stream.query(layer, p, head / group * group + g, from));
    }
    found.merge(reference::best_rows(stream.rows(layer, head / group), choosers, from,
                                     std::min(stop, last), k, stream.shape.softmax_scale(),
                                     stream.shape.softcap));
  }
  return found;
}

inline double Feed::worst(const topkv::RetrievalOptions& options,
                          const std::vector<std::int64_t>& positions, std::int64_t end) const {
  const auto got = outs();
  std::vector<std::vector<float>> lses;
  for (const topkv::Buffer& lse : lse_)
    lses.push_back(place_.get(lse.floats(), (end_ - first_) * stream_.shape.q_heads));
  double worst = 0;
  for (std::int64_t l = 0; l < stream_.shape.layers; ++l) {
    const std::int64_t sliding = stream_.shape.window_of(l);
    const bool chosen = stream_.shape.has_indexer(l);
    const bool dense = sliding == 0 && l < options.dense_layers;
    for (const std::int64_t p : positions) {
      for (std::int64_t head = 0; head < stream_.shape.q_heads; ++head) {
        std::set<std::int64_t> found;
        if (chosen)
          found = stream_.chosen(l, p, head / stream_.shape.group());
        else if (sliding == 0 && !dense)
          found = found_rows(stream_, options, l, p, head, end);
        const float* out = &got[static_cast<std::size_t>(l)][static_cast<std::size_t>(
            (p - first_) * stream_.q_width() + head * stream_.shape.head_dim)];
        const float* lse =
            &lses[static_cast<std::size_t>(l)]
                 [static_cast<std::size_t>((p - first_) * stream_.shape.q_heads + head)];
        if (l == 0) lse = nullptr;
        worst = std::max(
            worst, stream_.error(l, p, head, place_.is_cuda(), out, lse, [&](std::int64_t x) {
              if (x >= end) return false;
              if (chosen) return found.contains(x);
              if (sliding > 0) return x > p - sliding;
              return dense || x < options.sinks || x > p - options.window || found.contains(x);
            }));
      }
    }
  }
  return worst;
}

}  // namespace test
