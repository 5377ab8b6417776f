// How near decoding with retrieval is to decoding with dense attention, measured on a text that is
// given token by token (teacher-forced).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/eval/run/attention_spread.h"
#include "src/eval/run/likelihood.h"
#include "topkv/model.h"
#include "topkv/progress.h"

namespace topkv {

/// What is measured of one choice of options. Distances are from dense attention over the context
/// that measure_fidelity is given.
struct Fidelity {
  RetrievalOptions options = {};
  /// Whose rows it reads: of the same tokens, stored otherwise; null: the same. It has all indices
  /// that the options name.
  std::shared_ptr<const Context> context = {};
  KvDType kv_dtype = {};                 ///< of these rows
  std::string k = {};                    ///< as given
  std::vector<double> layer_error = {};  ///< per layer, mean of |out - dense| / |dense| over tokens
  double error_mean = 0;                 ///< over tokens and layers that retrieve
  double error_p90 = 0;
  /// What the sessions tell of error and mass themselves (TailFigures), over query heads.
  std::optional<double> error_told = {};
  std::optional<double> mass_told = {};
  Spread kl = {};  ///< of the next token's distribution, natural log, KL(dense || this)
  /// The probability of the token that came, minus its probability with dense attention: mean and
  /// root mean square.
  double delta_p_mean = 0;
  double delta_p_rms = 0;
  double agreement = 0;  ///< share of tokens with the same most likely next one
  double perplexity = 0;
  /// Share of dense attention's mass that the rows attended hold; none with a rule of which rows
  /// are enough, for that looks at the tail.
  std::optional<double> mass = {};
  std::optional<double> mass_p10 = {};  ///< the 10th percentile over layers, query heads and tokens
  /// Of the exact best rows; none where nothing was searched.
  std::optional<double> recall = {};
  /// That recall by softmax weight: the mean and the 10th percentile over layers, query heads and
  /// tokens.
  std::optional<double> mass_recall = {};
  std::optional<double> mass_recall_p10 = {};
  double rows = 0;                   ///< per token and query head of a layer that retrieves
  double retrieved_more = 0;         ///< share of these that a rule gave more rows than at first
  double went_dense = 0;             ///< and share that attended all
  std::int64_t bytes_read = 0;       ///< per token: keys or codes, and rows; 0: not known
  std::int64_t bytes_held_host = 0;  ///< rows, indices and the queries that these learned from
  std::int64_t bytes_held_device = 0;
  std::int64_t tokens = 0;  ///< that were measured
};

struct FidelityReport {
  double dense_perplexity = 0;
  std::vector<Fidelity> settings = {};
  /// Per layer: how dense attention of the probes' last tokens spreads over the context. Of layers
  /// with a sliding window nothing, nor with chunks, where a token has several queries.
  std::vector<LayerSpread> spread = {};
};

/// Tokens that follow the context, one probe independent of the next.
using Probe = std::vector<Token>;

/// Compares options with dense attention: each probe is run once with dense attention, where every
/// layer's queries are also attended with each of the options, and once with each of the options
/// through the whole network. Progress is told
/// before each of these runs.
FidelityReport measure_fidelity(const Model& model, const std::shared_ptr<const Context>& context,
                                std::span<const Probe> probes, std::vector<Fidelity> settings,
                                const ProgressFn& progress);

}  // namespace topkv
