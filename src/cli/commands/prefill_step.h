// A text that was read into a frozen context, with the index and the tail that the flags name.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/cli/flags/options.h"
#include "src/cli/terminal/progress_bar.h"

namespace topkv::cli {

struct Prefilled {
  std::shared_ptr<const Context> context = {};
  PrefillAttention attention = {};        ///< with the mode that it was read in
  std::vector<PrefillShare> shares = {};  ///< what tokens attended, per layer; empty: no tokens
  double seconds = 0;                     ///< of the prefill, without its indices
  ForwardTimes times = {};                ///< with them
};

/// What tokens of a sparse prefill attended, over the layers in which they choose keys.
struct AttendedShare {
  double mass = 0;               ///< the share of dense attention that was met, the mean of layers
  double least_mass = 1;         ///< in the layer where it is least
  std::int64_t least_layer = 0;  ///< the number of that layer
  double keys = 0;               ///< the share of keys that were attended
};

/// Empty if all earlier keys were attended.
std::optional<AttendedShare> attended_share(std::span<const PrefillShare> shares);

/// "98.4 % of dense attention by estimate (95.1 % in layer 7, the least), 12.3 % of the keys";
/// empty if all earlier keys were attended. measured: the shares are not estimates.
std::string attended_text(std::span<const PrefillShare> shares, bool measured = false);

/// How a text was read: "dense", "window: the latest 1,024 tokens and the first 4", "sparse: " with
/// its attended_text. measured: as there.
std::string reading_text(const PrefillAttention& attention, std::span<const PrefillShare> shares,
                         bool measured = false);

/// Adds the mode and what tokens attended to the figures for programs. What they attended is null
/// if the mode is Prefill::window: the share of dense attention that a window holds is unknown.
void add_attended(Json& json, const Prefilled& prefilled);

/// Adds what a turn attended to the figures for programs: null if it attended all earlier keys, or
/// if there was no turn.
void add_turn(Json& json, std::span<const PrefillShare> shares);

/// No tokens give an empty context. Throws what Model::prefill does, and Interrupted.
/// measure: see PrefillAttention::measure.
Prefilled prefill(const Model& model, const RetrievalFlags& retrieval, const PrefillFlags& prefill,
                  const std::vector<Token>& tokens, ProgressBar& progress, bool measure = false);

}  // namespace topkv::cli
