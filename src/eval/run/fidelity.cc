#include "src/eval/run/fidelity.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "src/device/compute_device.h"
#include "src/eval/run/bytes_read.h"
#include "src/eval/run/likelihood.h"
#include "src/eval/run/relative_error.h"
#include "src/eval/run/retrieval_setting.h"

namespace topkv {
namespace {

/// Results of a step in the device's memory, and their copy on the host.
class Outputs {
 public:
  Outputs(ComputeDevice& device, const AttentionShape& shape, std::int64_t most_tokens)
      : device_(device),
        shape_(shape),
        out_(device.allocate(most_tokens * shape.q_heads * shape.widest_head() * 4, "fidelity")),
        lse_(device.allocate(most_tokens * shape.q_heads * 4, "fidelity")) {}

  /// The step with its results here.
  AttentionStep with(AttentionStep step) {
    head_dim_ = shape_.head_dim_of(step.layer);
    step.out = out_.floats();
    step.lse = lse_.floats();
    return step;
  }

  void fetch(std::int64_t tokens) {
    const std::int64_t heads = tokens * shape_.q_heads;
    out.resize(static_cast<std::size_t>(heads * head_dim_));
    lse.resize(static_cast<std::size_t>(heads));
    const auto lock = device_.lock();
    device_.copy_out(out_.data(), static_cast<std::int64_t>(out.size()) * 4, out.data());
    device_.copy_out(lse_.data(), heads * 4, lse.data());
  }

  std::vector<float> out;  ///< [tokens, q_heads, head_dim]
  std::vector<float> lse;  ///< [tokens, q_heads]

 private:
  ComputeDevice& device_;
  const AttentionShape& shape_;
  std::int64_t head_dim_ = 0;  // of the layer of the last step
  Buffer out_, lse_;
};

/// Orders the values anew. REQUIRES: there are some; percent below 100.
template <class T>
T percentile(std::vector<T>& values, std::int64_t percent) {
  const auto at = values.begin() + std::ssize(values) * percent / 100;
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

bool has_rule(const RetrievalOptions& options) {
  return options.mass || options.error || options.guarantee;
}

/// Sums of one setting over all probes.
struct Sums {
  std::vector<std::vector<double>> errors;  // per layer
  std::vector<float> masses;                // per layer that retrieves, token and query head
  PredictionDifference predictions;
  double log_likelihood = 0;
  std::int64_t tokens = 0, predicted = 0;
  SessionStats stats;
  TailFigures tail;
};

class Comparison {
 public:
  Comparison(const Model& model, std::shared_ptr<const Context> context,
             std::vector<Fidelity> settings)
      : model_(model),
        context_(std::move(context)),
        shape_(context_->shape()),
        settings_(std::move(settings)),
        sums_(settings_.size()),
        spread_(static_cast<std::size_t>(shape_.layers)) {
    for (Sums& sums : sums_) sums.errors.resize(static_cast<std::size_t>(shape_.layers));
  }

  /// before_run: called before the probe runs with each of the options.
  void add(const Probe& probe, const std::function<void()>& before_run) {
    const std::vector<float> dense = run_layers(probe);
    score(probe, dense, dense_likelihood_);
    dense_predicted_ += std::ssize(probe) - 1;
    for (std::size_t s = 0; s < settings_.size(); ++s) {
      before_run();
      Session session(settings_[s].context, options_of(s, probe), model_.device());
      const std::vector<float> logits = model_.logits(session, probe);
      score(probe, logits, sums_[s].log_likelihood);
      compare(probe, dense, logits, sums_[s]);
      sums_[s].predicted += std::ssize(probe) - 1;
    }
  }

  FidelityReport report() {
    FidelityReport report;
    report.spread = spread_;
    report.dense_perplexity = perplexity(dense_likelihood_, dense_predicted_);
    for (std::size_t s = 0; s < settings_.size(); ++s) {
      finish(settings_[s], sums_[s]);
      report.settings.push_back(std::move(settings_[s]));
    }
    return report;
  }

 private:
  static double perplexity(double likelihood, std::int64_t tokens) {
    return tokens > 0 ? std::exp(-likelihood / static_cast<double>(tokens)) : 0;
  }

  RetrievalOptions options_of(std::size_t s, const Probe& probe) const {
    RetrievalOptions options = settings_[s].options;
    options.capacity = std::ssize(probe) + 1;
    return options;
  }

  /// Runs the probe densely; every layer is also attended with each setting. Gives the logits.
  std::vector<float> run_layers(const Probe& probe) {
    const std::int64_t tokens = std::ssize(probe);
    RetrievalOptions everything;
    everything.dense_layers = shape_.layers;
    everything.indexer_top = every_index_block;
    everything.capacity = tokens + 1;
    Session dense(context_, everything, model_.device());
    struct Compared {
      Session with;
      std::optional<Session> rows;  // without the tail: what the rows alone hold
    };
    std::vector<Compared> sessions;
    for (std::size_t s = 0; s < settings_.size(); ++s) {
      RetrievalOptions options = options_of(s, probe);
      options.measure_recall = options.index != "exact";
      Compared compared{Session(settings_[s].context, options, model_.device()), {}};
      if (compared.with.options().tail != "none") {
        options.measure_recall = false;
        options.tail = "none";
        if (!has_rule(options))
          compared.rows.emplace(settings_[s].context, options, model_.device());
      }
      sessions.push_back(std::move(compared));
    }
    constexpr std::int64_t most = 256;
    Outputs want(*model_.device().compute(), shape_, std::min(most, tokens));
    Outputs got(*model_.device().compute(), shape_, std::min(most, tokens));
    const std::int64_t width = shape_.q_heads * shape_.head_dim;
    std::vector<float> logits =
        model_.logits(probe, dense.tokens(), [&](const AttentionStep& step) {
          measure_spread(step);
          dense.attend(want.with(step));
          want.fetch(step.tokens);
          for (std::size_t s = 0; s < sessions.size(); ++s) {
            Sums& sums = sums_[s];
            sessions[s].with.attend(got.with(step));
            got.fetch(step.tokens);
            if (retrieves(s, step.layer)) {
              for (std::int64_t t = 0; t < step.tokens; ++t) {
                sums.errors[static_cast<std::size_t>(step.layer)].push_back(
                    relative_error(got.out.data() + t * width, want.out.data() + t * width, width));
              }
            }
            if (sessions[s].rows) {
              sessions[s].rows->attend(got.with(step));
              got.fetch(step.tokens);
            }
            if (!retrieves(s, step.layer)) continue;
            for (std::size_t h = 0; h < want.lse.size(); ++h) {
              sums.masses.push_back(std::exp(got.lse[h] - want.lse[h]));
            }
          }
          dense_out(step, want);
        });
    for (std::size_t s = 0; s < sessions.size(); ++s) {
      const SessionStats& stats = sessions[s].with.stats();
      SessionStats& sum = sums_[s].stats;
      sum.retrieving_steps += stats.retrieving_steps;
      sum.rows_retrieved += stats.rows_retrieved;
      sum.retrieved_more += stats.retrieved_more;
      sum.went_dense += stats.went_dense;
      sum.exact_rows += stats.exact_rows;
      sum.exact_rows_found += stats.exact_rows_found;
      for (std::size_t p = 0; p < sum.mass_found.size(); ++p)
        sum.mass_found[p] += stats.mass_found[p];
      sum.device_index_bytes = stats.device_index_bytes;
      for (const TailFigures& layer : sessions[s].with.tail_figures()) sums_[s].tail += layer;
      sums_[s].tokens += tokens;
    }
    return logits;
  }

  /// Of the step's last token.
  void measure_spread(const AttentionStep& step) {
    if (!is_full(step.layer) || shape_.chunk_len > 0) return;
    std::vector<float> queries(static_cast<std::size_t>(shape_.q_heads * shape_.head_dim));
    const auto width = std::ssize(queries);
    ComputeDevice& device = *model_.device().compute();
    {
      const auto lock = device.lock();
      device.copy_out(reinterpret_cast<const std::byte*>(step.q + (step.tokens - 1) * width),
                      width * static_cast<std::int64_t>(sizeof(float)), queries.data());
    }
    add_spread(*context_, step.layer, queries.data(),
               spread_[static_cast<std::size_t>(step.layer)]);
  }

  /// The network goes on with what dense attention gave.
  void dense_out(const AttentionStep& step, const Outputs& want) const {
    ComputeDevice& device = *model_.device().compute();
    const auto lock = device.lock();
    device.copy_in(want.out.data(), static_cast<std::int64_t>(want.out.size()) * 4,
                   reinterpret_cast<std::byte*>(step.out));
  }

  /// Whether dense attention of a layer is over all tokens.
  bool is_full(std::int64_t layer) const {
    return shape_.attends_all(layer) || shape_.has_indexer(layer);
  }
  bool retrieves(std::size_t s, std::int64_t layer) const {
    return shape_.has_indexer(layer) ||
           (shape_.attends_all(layer) && layer >= settings_[s].options.dense_layers);
  }

  std::span<const float> row(const std::vector<float>& logits, std::int64_t token) const {
    const auto vocabulary = static_cast<std::size_t>(model_.config().vocab_size);
    return std::span(logits).subspan(static_cast<std::size_t>(token) * vocabulary, vocabulary);
  }

  void score(const Probe& probe, const std::vector<float>& logits, double& likelihood) const {
    for (std::int64_t t = 0; t + 1 < std::ssize(probe); ++t) {
      const auto next = static_cast<std::size_t>(probe[static_cast<std::size_t>(t + 1)]);
      likelihood += log_probabilities(row(logits, t))[next];
    }
  }

  void compare(const Probe& probe, const std::vector<float>& dense,
               const std::vector<float>& logits, Sums& sums) const {
    const std::int64_t tokens = std::ssize(dense) / model_.config().vocab_size;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const bool last = t + 1 == tokens;
      sums.predictions.add(
          log_probabilities(row(dense, t)), log_probabilities(row(logits, t)),
          last ? std::nullopt
               : std::optional<std::int64_t>(probe[static_cast<std::size_t>(t + 1)]));
    }
  }

  /// percents: SessionStats::mass_found.
  static void set_mass_recall(Fidelity& of, const std::array<std::int64_t, 101>& percents) {
    std::int64_t all = 0;
    double sum = 0;
    for (std::size_t p = 0; p < percents.size(); ++p) {
      all += percents[p];
      sum += static_cast<double>(percents[p]) * std::min(static_cast<double>(p) + 0.5, 100.0);
    }
    if (all == 0) return;
    of.mass_recall = sum / static_cast<double>(all) / 100;
    std::size_t p = 0;
    for (std::int64_t below = percents[0]; below * 10 <= all; below += percents[p]) ++p;
    of.mass_recall_p10 = static_cast<double>(p) / 100;
  }

  void finish(Fidelity& of, Sums& sums) const {
    std::vector<double> all;
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      const std::vector<double>& errors = sums.errors[static_cast<std::size_t>(layer)];
      double sum = 0;
      for (const double error : errors) sum += error;
      of.layer_error.push_back(errors.empty() ? 0 : sum / static_cast<double>(errors.size()));
      all.insert(all.end(), errors.begin(), errors.end());
    }
    if (!all.empty()) {
      for (const double error : all) of.error_mean += error / static_cast<double>(all.size());
      of.error_p90 = percentile(all, 90);
    }
    const auto tokens = static_cast<double>(sums.tokens);
    of.tokens = sums.tokens;
    if (sums.tokens > 0) of.kl = spread_of(sums.predictions.kl);
    of.delta_p_mean = sums.predictions.mean_delta_p();
    of.delta_p_rms = sums.predictions.rms_delta_p();
    of.agreement = sums.predictions.agreement();
    of.perplexity = perplexity(sums.log_likelihood, sums.predicted);
    if (!has_rule(of.options)) {
      of.mass = 1;
      of.mass_p10 = 1;
    }
    if (!has_rule(of.options) && !sums.masses.empty()) {
      double sum = 0;
      for (const float mass : sums.masses) sum += mass;
      of.mass = sum / static_cast<double>(sums.masses.size());
      of.mass_p10 = percentile(sums.masses, 10);
    }
    set_mass_recall(of, sums.stats.mass_found);
    if (sums.stats.exact_rows > 0) {
      of.recall = static_cast<double>(sums.stats.exact_rows_found) /
                  static_cast<double>(sums.stats.exact_rows);
    } else if (sums.stats.retrieving_steps > 0 && index_text(of.options) == "exact") {
      of.recall = 1;
      of.mass_recall = 1;
      of.mass_recall_p10 = 1;
    }
    if (sums.tail.heads > 0) {
      of.error_told = sums.tail.mean_error();
      of.mass_told = sums.tail.mean_exact_mass();
    }
    of.bytes_held_device = sums.stats.device_index_bytes;
    count_bytes(of, static_cast<double>(sums.stats.rows_retrieved) / tokens);
    of.rows = sums.stats.rows_per_retrieving_head(shape_.q_heads);
    if (sums.stats.retrieving_steps == 0) return;
    const auto heads = static_cast<double>(sums.stats.retrieving_steps * shape_.q_heads);
    of.retrieved_more = static_cast<double>(sums.stats.retrieved_more) / heads;
    of.went_dense = static_cast<double>(sums.stats.went_dense) / heads;
  }

  /// Bytes of keys' codes and the like that the tail and the index share.
  std::int64_t shared_bytes(const Fidelity& of) const {
    const RetrievalOptions& options = of.options;
    std::int64_t bytes = 0;
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      if (!shape_.has_index(layer)) continue;
      for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
        const KeyIndex& index = of.context->index(options.index, layer, head);
        if (&index == &of.context->index(options.tail, layer, head)) bytes += index.memory();
      }
    }
    return bytes;
  }

  /// rows: per token, over all layers and query heads.
  void count_bytes(Fidelity& of, double rows) const {
    const Context& context = *of.context;
    const std::string& index = of.options.index;
    const std::string& tail = of.options.tail;
    of.bytes_held_host = context.memory().rows_bytes + context.index_memory(index);
    if (IndexSpec(index).learns_queries()) of.bytes_held_host += context.memory().queries_bytes;
    if (tail != "none" && tail != index) {
      of.bytes_held_host += context.index_memory(tail) - shared_bytes(of);
    }
    const std::optional<std::int64_t> bytes = bytes_to_retrieve(context, of.options, rows);
    if (bytes) of.bytes_read = *bytes + bytes_of_dense_layers(context, of.options);
  }

  const Model& model_;
  std::shared_ptr<const Context> context_;
  const AttentionShape& shape_;
  std::vector<Fidelity> settings_;
  std::vector<Sums> sums_;
  std::vector<LayerSpread> spread_;
  double dense_likelihood_ = 0;
  std::int64_t dense_predicted_ = 0;
};

}  // namespace

FidelityReport measure_fidelity(const Model& model, const std::shared_ptr<const Context>& context,
                                std::span<const Probe> probes, std::vector<Fidelity> settings,
                                const ProgressFn& progress) {
  for (Fidelity& setting : settings) {
    if (!setting.context) setting.context = context;
    setting.kv_dtype = setting.context->dtype();
    setting.options = Session(setting.context, setting.options, model.device()).options();
  }
  Comparison comparison(model, context, std::move(settings));
  const std::int64_t total = std::ssize(probes);
  const auto tell = [&](std::int64_t done) {
    if (progress) progress({"compare", "questions", done, total});
  };
  tell(0);
  for (std::int64_t i = 0; i < total; ++i) {
    comparison.add(probes[static_cast<std::size_t>(i)], [&] { tell(i); });
    tell(i + 1);
  }
  return comparison.report();
}

}  // namespace topkv
