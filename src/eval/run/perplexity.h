// How well a model predicts a text with retrieved attention, beside dense attention: both score the
// same tokens behind the same rows.
//
// A text is measured in pieces. The first part of a piece is a context, read once; the tokens
// behind it are fed to a session one by one, as decoding does, and the logits of each say how
// likely the next one was.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/eval/run/confidence_interval.h"
#include "src/eval/run/likelihood.h"
#include "topkv/model.h"
#include "topkv/progress.h"

namespace topkv {

/// Of one choice of options, or of dense attention, over all pieces.
struct Perplexity {
  RetrievalOptions options = {};
  std::string k = {};                     ///< as given
  std::vector<double> nats = {};          ///< -log p of each token scored, piece by piece
  PredictionDifference predictions = {};  ///< empty for dense attention
  double seconds = 0;                     ///< that the steps took
  double rows = 0;  ///< retrieved, per token and query head of a layer that retrieves; 0: none does
  std::optional<std::int64_t> bytes_read = {};  ///< of the context, per token; none: not known

  double mean() const;  ///< nats per token
  double perplexity() const;
};

struct PerplexityReport {
  Perplexity dense = {};
  std::vector<Perplexity> settings = {};
  std::int64_t pieces = 0;
  std::int64_t scored = 0;  ///< tokens of each
};

/// How much worse than dense attention, in nats per token, and the interval of that: of the means
/// of pieces, for tokens of one piece, which share a context, do not vary independently. None of
/// one piece.
struct PerplexityDifference {
  double mean = 0;
  std::optional<Interval> interval = {};
};
PerplexityDifference difference(const Perplexity& from_dense, const PerplexityReport& report);

class PerplexityRun {
 public:
  /// settings: options and k. model: outlives it.
  PerplexityRun(const Model& model, std::vector<Perplexity> settings);

  /// Feeds each of tokens but the last to a session with dense attention over the context and then
  /// to one with each of the options, and scores the one behind it. The context has what the
  /// options name. tokens: at least 2, as many in each call. told: called with the tokens that all
  /// sessions have been fed, before each.
  void add(const std::shared_ptr<const Context>& context, std::span<const Token> tokens,
           const std::function<void(std::int64_t)>& told);

  /// REQUIRES: something was added.
  PerplexityReport report() const;

 private:
  const Model& model_;
  PerplexityReport report_;  // rows and bytes are sums over pieces
};

}  // namespace topkv
