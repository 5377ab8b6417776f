// How near a context that was read in some way is to one that was read with dense attention. Both
// are then decoded with dense attention: what differs is what reading left in their rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/eval/run/fidelity.h"
#include "topkv/model.h"
#include "topkv/progress.h"

namespace topkv {

/// What is measured of one way to read a text, beside a dense prefill of the same text.
struct PrefillFidelity {
  PrefillAttention attention = {};
  double perplexity = 0;  ///< of the text
  /// Of the next token's distribution in the text, natural log, KL(dense || this): the mean over
  /// tokens at equal distances.
  double text_kl = 0;
  double text_agreement = 0;  ///< the share of these whose most likely next token is the same
  double answer_kl = 0;       ///< of the next token within the probes
  double answer_agreement = 0;
  double answer_perplexity = 0;
  double key_error = 0;    ///< mean of |row - dense| / |dense| of the last layer's keys
  double value_error = 0;  ///< and of its values
  /// Per layer. Layers whose tokens do not choose have no queries.
  std::vector<PrefillShare> shares = {};
  /// Keys that tokens attended, as a share of those that dense attention attends: of layers that
  /// have no window of their own.
  double keys = 1;
  double seconds = 0;  ///< of the prefill, with the logits of all tokens
};

/// Compares ways to read a text with a dense prefill, which is the first of the result. It holds
/// the logits of about a thousand tokens, and two contexts. dtype: of the rows.
std::vector<PrefillFidelity> measure_prefills(const Model& model, std::span<const Token> text,
                                              std::span<const Probe> probes,
                                              std::span<const PrefillAttention> ways,
                                              const PrefillOptions& options,
                                              const ProgressFn& progress);

}  // namespace topkv
