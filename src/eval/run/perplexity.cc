#include "src/eval/run/perplexity.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "src/core/threads/stopwatch.h"
#include "src/eval/run/bytes_read.h"
#include "src/eval/run/likelihood.h"

namespace topkv {
namespace {

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

double Perplexity::mean() const { return mean_of(nats); }

double Perplexity::perplexity() const { return std::exp(mean()); }

PerplexityDifference difference(const Perplexity& from_dense, const PerplexityReport& report) {
  std::vector<double> means;
  for (std::int64_t piece = 0; piece < report.pieces; ++piece) {
    const auto part = [&](const Perplexity& of) {
      return mean_of(std::span(of.nats).subspan(static_cast<std::size_t>(piece * report.scored),
                                                static_cast<std::size_t>(report.scored)));
    };
    means.push_back(part(from_dense) - part(report.dense));
  }
  return {mean_of(means), difference_interval(means)};
}

PerplexityRun::PerplexityRun(const Model& model, std::vector<Perplexity> settings) : model_(model) {
  report_.dense.options.dense_layers = model.config().attention.layers;
  report_.settings = std::move(settings);
  report_.dense.bytes_read = 0;
  for (Perplexity& setting : report_.settings) setting.bytes_read = 0;
}

void PerplexityRun::add(const std::shared_ptr<const Context>& context,
                        std::span<const Token> tokens,
                        const std::function<void(std::int64_t)>& told) {
  std::int64_t fed = 0;
  const auto tell = [&] { told(fed++); };
  score(context, tokens, report_.dense, tell);
  for (Perplexity& setting : report_.settings) score(context, tokens, setting, tell);
  report_.scored = std::ssize(tokens) - 1;
  ++report_.pieces;
}

void PerplexityRun::score(const std::shared_ptr<const Context>& context,
                          std::span<const Token> tokens, Perplexity& of,
                          const std::function<void()>& told) const {
  RetrievalOptions options = of.options;
  options.capacity = std::ssize(tokens);
  Session session(context, options, model_.device());
  for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
    told();
    const Stopwatch watch;
    const std::vector<float> logits = model_.logits(session, tokens.subspan(t, 1));
    of.seconds += watch.seconds();
    of.nats.push_back(-log_probabilities(logits)[static_cast<std::size_t>(tokens[t + 1])]);
  }
  of.options = session.options();
  const SessionStats& stats = session.stats();
  const double rows =
      static_cast<double>(stats.rows_retrieved) / static_cast<double>(tokens.size() - 1);
  const std::optional<std::int64_t> bytes = bytes_read(*context, of.options, rows);
  of.bytes_read = bytes && of.bytes_read ? std::optional(*of.bytes_read + *bytes) : std::nullopt;
  of.rows += stats.rows_per_retrieving_head(context->shape().q_heads);
}

PerplexityReport PerplexityRun::report() const {
  PerplexityReport report = report_;
  const auto finish = [&](Perplexity& of) {
    if (report.pieces > 0) of.rows /= static_cast<double>(report.pieces);
    if (of.bytes_read) *of.bytes_read /= report.pieces;
  };
  finish(report.dense);
  for (Perplexity& setting : report.settings) finish(setting);
  return report;
}

}  // namespace topkv
