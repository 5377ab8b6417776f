#include "src/eval/run/perplexity.h"

#include <cmath>
#include <deque>
#include <numeric>
#include <utility>

#include "src/core/threads/stopwatch.h"
#include "src/eval/run/bytes_read.h"

namespace topkv {
namespace {

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// A session that is fed the tokens of a piece.
class Reader {
 public:
  Reader(const Model& model, std::shared_ptr<const Context> context, std::int64_t tokens,
         Perplexity& of)
      : model_(model),
        context_(std::move(context)),
        session_(context_, with_capacity(of.options, tokens), model.device()),
        of_(of) {}

  /// Returns the log probabilities of what may follow `token`; `next` follows.
  std::vector<double> feed(const Token& token, Token next) {
    const Stopwatch watch;
    const std::vector<float> logits = model_.logits(session_, std::span(&token, 1));
    of_.seconds += watch.seconds();
    std::vector<double> log_p = log_probabilities(logits);
    of_.nats.push_back(-log_p[static_cast<std::size_t>(next)]);
    return log_p;
  }

  void finish(std::int64_t tokens) {
    of_.options = session_.options();
    const SessionStats& stats = session_.stats();
    const double rows = static_cast<double>(stats.rows_retrieved) / static_cast<double>(tokens);
    const std::optional<std::int64_t> bytes = bytes_read(*context_, of_.options, rows);
    of_.bytes_read =
        bytes && of_.bytes_read ? std::optional(*of_.bytes_read + *bytes) : std::nullopt;
    of_.rows += stats.rows_per_retrieving_head(context_->shape().q_heads);
  }

  Perplexity& of() { return of_; }

 private:
  static RetrievalOptions with_capacity(RetrievalOptions options, std::int64_t tokens) {
    options.capacity = tokens;
    return options;
  }

  const Model& model_;
  std::shared_ptr<const Context> context_;
  Session session_;
  Perplexity& of_;
};

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
  report_.dense.options.indexer_top = every_index_block;
  report_.settings = std::move(settings);
  report_.dense.bytes_read = 0;
  for (Perplexity& setting : report_.settings) setting.bytes_read = 0;
}

void PerplexityRun::add(const std::shared_ptr<const Context>& context,
                        std::span<const Token> tokens,
                        const std::function<void(std::int64_t)>& told) {
  const std::int64_t scored = std::ssize(tokens) - 1;
  Reader dense(model_, context, scored + 1, report_.dense);
  std::deque<Reader> settings;  // a session stays where it is
  for (Perplexity& setting : report_.settings)
    settings.emplace_back(model_, context, scored + 1, setting);
  std::int64_t fed = 0;
  for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
    told(fed++);
    const std::vector<double> expected = dense.feed(tokens[t], tokens[t + 1]);
    for (Reader& setting : settings) {
      told(fed++);
      const std::vector<double> found = setting.feed(tokens[t], tokens[t + 1]);
      setting.of().predictions.add(expected, found, tokens[t + 1]);
    }
  }
  dense.finish(scored);
  for (Reader& setting : settings) setting.finish(scored);
  report_.scored = scored;
  ++report_.pieces;
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
