#include "src/session/turn_reader.h"

#include <utility>

#include "src/context/prefill_visibility.h"
#include "src/core/io/faults.h"
#include "src/core/threads/stopwatch.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// A CUDA device reads no turns.
constexpr bool on_cuda = false;

/// Returns how a turn is read. length: tokens of the text up to its end.
PrefillAttention attention_of(const SessionCore& session, std::int64_t length) {
  return resolve_prefill(*session.options.turns, session.shape, length, on_cuda);
}

/// Returns what its tokens attend in each layer.
PrefillVisibility visibility(const SessionCore& session, const PrefillAttention& attention) {
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
  visibility(session,
             attention_of(session, long_text));  // throws for numbers that are out of range
}

bool TurnReader::takes(const AttentionStep& step) const {
  if (!session_.options.turns || step.kv_count() < least_turn_tokens) return false;
  if (!session_.device.compute()->reads_after_rows()) return false;
  if (step.layer == session_.shape.first_attention()) return true;
  return step.layer == next_layer_ && step.kv_count() == tokens_;
}

void TurnReader::begin(const AttentionStep& step, const PrefillAttention& attention) {
  const PrefillVisibility visible = visibility(session_, attention);
  mode_ = attention.mode;
  const auto lock = session_.device.compute()->lock();
  prefill_ = session_.device.compute()->prefill_attention(session_.shape, visible, step.tokens,
                                                          session_.own->rows(),
                                                          &session_.segments[0].states->rows());
}

void TurnReader::read(const AttentionStep& step) {
  const Stopwatch watch;
  const std::int64_t first = session_.position(step.layer);
  const PrefillAttention attention = attention_of(session_, first + step.tokens);
  if (attention.mode != mode_) drop();  // the text has become so long that auto is another mode
  if (!prefill_) begin(step, attention);
  last_ = {step.layer, first, share(step.layer)};
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
  // The rows of the last step are gone: so is what its tokens attended.
  if (last_.layer == step.layer && last_.first == session_.position(step.layer))
    ended_[static_cast<std::size_t>(step.layer)] = last_.share;
  next_layer_ = step.layer;
  tokens_ = step.tokens;
}

void TurnReader::end() {
  next_layer_ = -1;
  drop();
}

void TurnReader::drop() {
  if (!prefill_) return;
  ended_ = shares();
  prefill_.reset();
}

std::vector<PrefillShare> TurnReader::shares() const {
  std::vector<PrefillShare> all;
  for (std::int64_t layer = 0; layer < session_.shape.layers; ++layer) all.push_back(share(layer));
  return all;
}

PrefillShare TurnReader::share(std::int64_t layer) const {
  PrefillShare all = ended_[static_cast<std::size_t>(layer)];
  if (prefill_) all += prefill_->share(layer);
  return all;
}

std::int64_t TurnReader::layer_after(std::int64_t layer) const {
  do {
    layer = (layer + 1) % session_.shape.layers;
  } while (!session_.shape.is_attention(layer));
  return layer;
}

}  // namespace topkv
