#include "src/session/turn_reader.h"

#include <utility>

#include "src/context/prefill_visibility.h"
#include "src/core/io/faults.h"
#include "src/core/threads/stopwatch.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Returns what tokens of a turn attend in each layer. length: tokens of the text up to its end.
PrefillVisibility visibility(const SessionCore& session, std::int64_t length) {
  const bool on_cuda = session.device.is_cuda();
  const PrefillAttention attention =
      resolve_prefill(*session.options.turns, session.shape, length, on_cuda);
  PrefillVisibility all = prefill_visibility(session.shape, attention, on_cuda);
  for (std::int64_t layer = 0; layer < session.spec.dense_layers; ++layer) {
    if (session.shape.attends_all(layer)) all[static_cast<std::size_t>(layer)] = {};
  }
  return all;
}

}  // namespace

TurnReader::TurnReader(SessionCore& session)
    : session_(session), ended_(static_cast<std::size_t>(session.shape.layers)) {
  const std::optional<PrefillAttention>& turns = session.options.turns;
  if (!turns) return;
  if (turns->mode == Prefill::window) {
    throw InvalidArgument(
        "turns are read in the mode 'window'; expected 'auto', 'dense' or 'sparse', in which a "
        "turn meets the whole context, or no mode");
  }
  constexpr std::int64_t long_text = std::int64_t{1} << 40;
  visibility(session, long_text);  // throws for numbers that are out of range
}

bool TurnReader::takes(const AttentionStep& step) const {
  if (!session_.options.turns || step.kv_count() < least_turn_tokens) return false;
  if (!session_.device.compute()->reads_after_rows()) return false;
  if (step.layer == session_.shape.first_attention()) return true;
  return step.layer == next_layer_ && step.kv_count() == tokens_;
}

void TurnReader::begin(const AttentionStep& step) {
  const PrefillVisibility visible =
      visibility(session_, session_.position(step.layer) + step.tokens);
  const auto lock = session_.device.compute()->lock();
  prefill_ = session_.device.compute()->prefill_attention(session_.shape, visible, step.tokens,
                                                          session_.own->rows(),
                                                          &session_.segments[0].states->rows());
}

void TurnReader::read(const AttentionStep& step) {
  const Stopwatch watch;
  if (!prefill_) begin(step);
  next_layer_ = step.layer;
  tokens_ = step.tokens;
  prefill_->attend(step);
  reach_fault("session.turn");
  next_layer_ = layer_after(step.layer);
  session_.stats.attend_seconds += watch.seconds();
  session_.times(step.layer).attend += watch.seconds();
}

void TurnReader::take_back(const AttentionStep& step) {
  end();
  next_layer_ = step.layer;
  tokens_ = step.tokens;
}

void TurnReader::end() {
  next_layer_ = -1;
  if (!prefill_) return;
  ended_ = shares();
  prefill_.reset();
}

std::vector<PrefillShare> TurnReader::shares() const {
  std::vector<PrefillShare> all = ended_;
  for (std::int64_t layer = 0; prefill_ && layer < session_.shape.layers; ++layer)
    all[static_cast<std::size_t>(layer)] += prefill_->share(layer);
  return all;
}

std::int64_t TurnReader::layer_after(std::int64_t layer) const {
  do {
    layer = (layer + 1) % session_.shape.layers;
  } while (!session_.shape.is_attention(layer));
  return layer;
}

}  // namespace topkv
