#include "src/cli/commands/prefill_step.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/cli/terminal/text_layout.h"
#include "src/core/text/format_numbers.h"
#include "src/core/threads/stopwatch.h"

namespace topkv::cli {
namespace {

constexpr double long_wait = 60;  // seconds

/// How the cost of a token changes along a text.
Cost cost_of(Prefill mode) { return mode == Prefill::dense ? Cost::grows : Cost::steady; }

/// Once it is known that a dense prefill on the host takes long: that there is another way.
class QuickerWay {
 public:
  QuickerWay(const Model& model, const PrefillOptions& options, std::int64_t tokens,
             ProgressBar& progress)
      : there_is_(
            !model.device().is_cuda() && options.attention.mode == Prefill::dense &&
            model.prefill_attention({.attention = {.mode = Prefill::automatic}}, tokens).mode ==
                Prefill::sparse),
        progress_(progress) {}

  void tell() {
    const std::optional<double> left = progress_.seconds_left();
    if (!there_is_ || !left || *left < long_wait) return;
    there_is_ = false;
    progress_.note(fmt::format(
        "dense prefill takes about {} more: each token attends to all tokens before it; --prefill "
        "sparse is far faster: each token attends to the first and the latest tokens, and to those "
        "in between that matter most to it",
        format_seconds(*left)));
  }

 private:
  bool there_is_;
  ProgressBar& progress_;
};

Prefilled without_index(const Model& model, PrefillOptions options,
                        const std::vector<Token>& tokens, ProgressBar& progress) {
  options.attention = model.prefill_attention(options, std::ssize(tokens));
  Prefilled prefilled{.attention = options.attention};
  if (tokens.empty()) {
    prefilled.context =
        ContextBuilder(
            model.config().attention,
            {.capacity = 1, .dtype = options.kv_dtype, .memory_budget = options.memory_budget})
            .freeze();
    return prefilled;
  }
  QuickerWay quicker(model, options, std::ssize(tokens), progress);
  const Stopwatch watch;
  prefilled.context = model.prefill(
      tokens, options,
      [&, prefill = progress.callback("prefill", cost_of(options.attention.mode)),
       index = progress.callback("index")](const Progress& done) {
        if (done.stage == "index") return index(done);
        prefill(done);
        quicker.tell();
      },
      &prefilled.times, &prefilled.shares);
  prefilled.seconds = watch.seconds() - prefilled.times.indexing;
  return prefilled;
}

}  // namespace

std::optional<AttendedShare> attended_share(std::span<const PrefillShare> shares) {
  AttendedShare share;
  PrefillShare all;
  std::int64_t layers = 0;
  for (std::size_t layer = 0; layer < shares.size(); ++layer) {
    if (shares[layer].queries == 0) continue;
    const double mass = shares[layer].mean_mass();
    ++layers;
    all += shares[layer];
    share.mass += mass;
    if (layers > 1 && mass >= share.least_mass) continue;
    share.least_mass = mass;
    share.least_layer = static_cast<std::int64_t>(layer);
  }
  if (layers == 0 || all.keys >= all.dense_keys) return {};
  share.mass /= static_cast<double>(layers);
  share.keys = all.key_share();
  return share;
}

void add_attended(Json& json, const Prefilled& prefilled) {
  json["prefill"] = name_of(prefilled.attention.mode);
  const std::optional<AttendedShare> share = attended_share(prefilled.shares);
  const bool known = prefilled.attention.mode != Prefill::window;
  const auto add = [&](const char* name, double AttendedShare::*figure) {
    json[name] = share ? Json((*share).*figure) : known ? Json(1.0) : Json();
  };
  add("attended_mass", &AttendedShare::mass);
  add("attended_mass_least", &AttendedShare::least_mass);
  add("attended_keys", &AttendedShare::keys);
}

void add_turn(Json& json, std::span<const PrefillShare> shares) {
  const std::optional<AttendedShare> turn = attended_share(shares);
  json["turn_mass"] = turn ? Json(turn->mass) : Json(nullptr);
  json["turn_keys"] = turn ? Json(turn->keys) : Json(nullptr);
}

std::string attended_text(std::span<const PrefillShare> shares, bool measured) {
  const std::optional<AttendedShare> share = attended_share(shares);
  if (!share) return {};
  return fmt::format(
      "{:.1f} % of dense attention{} ({:.1f} % in layer {}, the least), {:.1f} % of the keys",
      100 * share->mass, measured ? ", measured" : " by estimate", 100 * share->least_mass,
      share->least_layer, 100 * share->keys);
}

std::string reading_text(const PrefillAttention& attention, std::span<const PrefillShare> shares,
                         bool measured) {
  const std::string mode(name_of(attention.mode));
  if (attention.mode == Prefill::window) {
    return fmt::format("{}: the latest {} tokens and the first {}", mode,
                       format_grouped(attention.window), format_grouped(attention.sinks));
  }
  if (attention.mode == Prefill::dense) return mode;
  const std::string attended = attended_text(shares, measured);
  return fmt::format("{}: {}", mode,
                     !attended.empty() ? attended : "tokens attended to all earlier ones");
}

Prefilled prefill(const Model& model, const RetrievalFlags& retrieval, const PrefillFlags& prefill,
                  const std::vector<Token>& tokens, ProgressBar& progress, bool measure) {
  const std::string& index = retrieval.indices.front();
  PrefillOptions options = prefill_options(prefill, retrieval);
  options.attention.measure = measure;
  if (index != "exact") options.indices = retrieval.indices;
  Prefilled prefilled = without_index(model, std::move(options), tokens, progress);
  const Stopwatch indexing;
  // An index over no keys takes no time.
  prefilled.context = prefilled.context->ready_for(
      retrieval_options(retrieval, model.config().attention.layers, index, 1),
      tokens.empty() ? ProgressFn() : progress.index_callback("index"), model.device());
  prefilled.times.indexing += indexing.seconds();
  progress.finish();
  return prefilled;
}

}  // namespace topkv::cli
