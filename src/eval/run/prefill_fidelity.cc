#include "src/eval/run/prefill_fidelity.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/core/math/row_format.h"
#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"
#include "src/eval/run/likelihood.h"
#include "src/eval/run/relative_error.h"

namespace topkv {
namespace {

using Distribution = std::vector<float>;  // log probabilities

constexpr std::int64_t most_compared = 1024;  // tokens of the text

Distribution distribution(std::span<const float> logits) {
  const std::vector<double> log_p = log_probabilities(logits);
  return {log_p.begin(), log_p.end()};
}

/// Sums over tokens of how one distribution differs from another.
struct Differences {
  double kl = 0;
  std::int64_t agree = 0, tokens = 0;

  void add(const Distribution& dense, const Distribution& other) {
    kl += divergence(dense, other);
    agree += most_likely(dense) == most_likely(other) ? 1 : 0;
    ++tokens;
  }
  double mean_kl() const { return tokens > 0 ? kl / static_cast<double>(tokens) : 0; }
  double agreement() const {
    return tokens > 0 ? static_cast<double>(agree) / static_cast<double>(tokens) : 1;
  }
};

/// What one way of reading gives.
struct Reading {
  std::shared_ptr<const Context> context;
  std::vector<Distribution> text;     // at every `stride`-th token
  std::vector<Distribution> answers;  // of all probes
  double nats = 0, answer_nats = 0;
  std::int64_t answer_tokens = 0;
  std::vector<PrefillShare> shares;
  double seconds = 0;
};

/// The next token's share in nats.
double nats_of(std::span<const float> logits, Token next) {
  return -log_probabilities(logits)[static_cast<std::size_t>(next)];
}

Reading read(const Model& model, std::span<const Token> text, std::span<const Probe> probes,
             PrefillOptions options, const ProgressFn& progress) {
  Reading reading;
  const std::int64_t vocab = model.config().vocab_size;
  const std::int64_t stride = (std::ssize(text) + most_compared - 1) / most_compared;
  std::vector<double> nats(static_cast<std::size_t>(std::ssize(text) - 1));
  reading.text.resize(static_cast<std::size_t>(std::ssize(text) / stride));
  options.on_logits = [&](std::int64_t first, std::span<const float> logits) {
    parallel_for(std::ssize(logits) / vocab, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto of =
            logits.subspan(static_cast<std::size_t>(i * vocab), static_cast<std::size_t>(vocab));
        const std::int64_t token = first + i;
        if (token + 1 < std::ssize(text)) {
          nats[static_cast<std::size_t>(token)] =
              nats_of(of, text[static_cast<std::size_t>(token + 1)]);
        }
        if (token % stride == stride - 1)
          reading.text[static_cast<std::size_t>(token / stride)] = distribution(of);
      }
    });
  };
  const Stopwatch watch;
  reading.context = model.prefill(text, options, progress, nullptr, &reading.shares);
  reading.seconds = watch.seconds();
  reading.nats = std::accumulate(nats.begin(), nats.end(), 0.0);
  for (const Probe& probe : probes) {
    Session session(
        reading.context,
        {.dense_layers = model.config().attention.layers, .capacity = std::ssize(probe) + 1},
        model.device());
    const std::vector<float> logits = model.logits(session, probe);
    for (std::int64_t i = 0; i + 1 < std::ssize(probe); ++i) {
      const auto of = std::span(logits).subspan(static_cast<std::size_t>(i * vocab),
                                                static_cast<std::size_t>(vocab));
      reading.answers.push_back(distribution(of));
      reading.answer_nats += nats_of(of, probe[static_cast<std::size_t>(i + 1)]);
      ++reading.answer_tokens;
    }
  }
  return reading;
}

/// Mean of |a - b| / |b| over vectors.
double mean_relative_error(const KeyView& a, const KeyView& b) {
  std::vector<float> x(static_cast<std::size_t>(a.dim));
  std::vector<float> y(x.size());
  double sum = 0;
  for (std::int64_t i = 0; i < a.count; ++i) {
    decode(a, i, x.data());
    decode(b, i, y.data());
    sum += relative_error(x.data(), y.data(), a.dim);
  }
  return a.count > 0 ? sum / static_cast<double>(a.count) : 0;
}

/// The last layer that has an index: all its rows are there.
std::int64_t last_layer(const AttentionShape& shape) {
  std::int64_t layer = shape.layers - 1;
  while (layer > 0 && !shape.has_index(layer)) --layer;
  return layer;
}

/// Keys that tokens attended, beside dense attention's, in layers that attend all if dense.
double share_of_keys(const AttentionShape& shape, const PrefillAttention& way, std::int64_t tokens,
                     std::span<const PrefillShare> shares) {
  if (way.mode == Prefill::sparse) {
    PrefillShare all;
    for (const PrefillShare& share : shares) all += share;
    return all.key_share();
  }
  if (way.mode == Prefill::dense || shape.layers == 0) return 1;
  double keys = 0;
  double dense = 0;
  for (std::int64_t p = 0; p < tokens; ++p) {
    dense += static_cast<double>(p + 1);
    keys += static_cast<double>(std::min(p + 1, way.window + way.sinks));
  }
  return keys / dense;
}

PrefillFidelity compared(const Model& model, const Reading& dense, const Reading& other,
                         const PrefillAttention& way, std::int64_t tokens) {
  const AttentionShape& shape = model.config().attention;
  PrefillFidelity result;
  result.attention = way;
  result.perplexity =
      std::exp(other.nats / static_cast<double>(std::max<std::int64_t>(1, tokens - 1)));
  Differences text, answers;
  for (std::size_t i = 0; i < dense.text.size(); ++i) text.add(dense.text[i], other.text[i]);
  for (std::size_t i = 0; i < dense.answers.size(); ++i)
    answers.add(dense.answers[i], other.answers[i]);
  result.text_kl = text.mean_kl();
  result.text_agreement = text.agreement();
  result.answer_kl = answers.mean_kl();
  result.answer_agreement = answers.agreement();
  result.answer_perplexity = std::exp(
      other.answer_nats / static_cast<double>(std::max<std::int64_t>(1, other.answer_tokens)));
  const std::int64_t layer = last_layer(shape);
  const std::int64_t heads = shape.kv_heads_of(layer);
  for (std::int64_t head = 0; head < heads; ++head) {
    const RowsView a = other.context->rows(layer, head);
    const RowsView b = dense.context->rows(layer, head);
    result.key_error += mean_relative_error(a.keys, b.keys) / static_cast<double>(heads);
    result.value_error += mean_relative_error(a.values, b.values) / static_cast<double>(heads);
  }
  result.shares = other.shares;
  result.keys = share_of_keys(shape, way, tokens, other.shares);
  result.seconds = other.seconds;
  return result;
}

}  // namespace

std::vector<PrefillFidelity> measure_prefills(const Model& model, std::span<const Token> text,
                                              std::span<const Probe> probes,
                                              std::span<const PrefillAttention> ways,
                                              const PrefillOptions& options,
                                              const ProgressFn& progress) {
  PrefillOptions reading = options;
  reading.attention = {};
  const Reading dense = read(model, text, probes, reading, progress);
  std::vector<PrefillFidelity> results = {
      compared(model, dense, dense, reading.attention, std::ssize(text))};
  for (const PrefillAttention& way : ways) {
    reading.attention = way;
    results.push_back(compared(model, dense, read(model, text, probes, reading, progress), way,
                               std::ssize(text)));
  }
  return results;
}

}  // namespace topkv
