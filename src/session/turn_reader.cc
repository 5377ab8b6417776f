#include "src/session/turn_reader.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "src/attention/block_budget.h"
#include "src/context/prefill_visibility.h"
#include "src/core/io/faults.h"
#include "src/core/threads/stopwatch.h"
#include "src/session/step.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t most_part = 2048;   // tokens, so that a device's memory is bounded
constexpr std::int64_t more_room = 16384;  // tokens that a prefill has room for behind a step

/// Returns what the tokens of a turn attend in each layer.
PrefillVisibility visibility(const SessionCore& session, const PrefillAttention& attention) {
  PrefillVisibility all = prefill_visibility(session.shape, attention, session.device.is_cuda());
  for (std::int64_t layer = 0; layer < session.spec.dense_layers; ++layer) {
    if (session.shape.attends_all(layer)) all[static_cast<std::size_t>(layer)] = {};
  }
  return all;
}

/// Returns the tokens that are read at a time, of `left` from position `first` on. Parts end at
/// multiples of query_block, so that it does not matter how a step is cut.
std::int64_t part_of(std::int64_t first, std::int64_t left) {
  if (left <= most_part) return left;
  return (first + most_part) / query_block * query_block - first;
}

}  // namespace

TurnReader::TurnReader(SessionCore& session)
    : session_(session), before_(static_cast<std::size_t>(session.shape.layers)), shares_(before_) {
  const std::optional<PrefillAttention>& turns = session.options.turns;
  if (!turns) return;
  if (turns->mode == Prefill::window) {
    throw InvalidArgument(
        "turns are read in the mode 'window'; expected 'auto', 'dense' or 'sparse', in which a "
        "turn meets the whole context, or no mode");
  }
  constexpr std::int64_t long_text = std::int64_t{1} << 40;
  visibility(session, resolve_prefill(*turns, session.shape, long_text,
                                      session.device.is_cuda()));  // throws for what no turn has
}

bool TurnReader::takes(const AttentionStep& step) const {
  if (!session_.options.turns || step.kv_count() < least_turn_tokens) return false;
  if (step.layer == session_.shape.first_attention()) return has_room();
  return step.layer == next_layer_ && step.kv_count() == tokens_;
}

bool TurnReader::has_room() const {
  const ComputeDevice& device = *session_.device.compute();
  const bool decides = session_.options.turns->mode == Prefill::automatic && device.is_cuda();
  if (prefill_ || !decides) return true;
  const PrefillVisibility dense = visibility(session_, {.mode = Prefill::dense});
  const DeviceMemory memory = device.memory();
  return device.allocation_bytes(device.prefill_attention_bytes(
             session_.shape, dense, session_.spec.rows, turn_chunk, session_.context->tokens())) <=
         memory.ceiling - memory.used;
}

void TurnReader::open(std::int64_t first, std::int64_t end) {
  const RetrievalOptions& options = session_.options;
  ComputeDevice& device = *session_.device.compute();
  const PrefillAttention wanted =
      resolve_prefill(*options.turns, session_.shape, end, device.is_cuda());
  const std::int64_t part = std::min(end - first, most_part);
  const bool same = prefill_ && wanted.mode == wanted_;  // auto may be another mode by now
  if (same && part <= chunk_ && end <= room_) return;
  drop();
  wanted_ = wanted.mode;
  chunk_ = std::max(part, turn_chunk);
  room_ = session_.context->tokens() +
          std::min(options.capacity, end - session_.context->tokens() + more_room);
  session_.backend.window->reserve(session_.position(session_.shape.first_attention()), room_);
  const DeviceMemory memory = device.memory();
  const PrefillAttention fitting = fitting_prefill(*options.turns, session_.shape, end, device,
                                                   {.bytes = memory.ceiling - memory.used,
                                                    .rows = session_.spec.rows,
                                                    .chunk = chunk_,
                                                    .capacity = room_});
  before_ = shares_;
  counts_dense_ = options.turns->mode == Prefill::automatic && fitting.mode == Prefill::dense;
  prefill_ = device.prefill_attention(session_.shape, visibility(session_, fitting), chunk_,
                                      {.store = session_.own->rows(),
                                       .before = &session_.segments[0].states->rows(),
                                       .tokens = room_,
                                       .indexer = &session_.indexer});
}

void TurnReader::read(const AttentionStep& step) {
  const Stopwatch watch;
  const auto layer = static_cast<std::size_t>(step.layer);
  const std::int64_t first = session_.position(step.layer);
  const std::int64_t end = first + step.tokens;
  if (session_.shape.has_rows(step.layer)) session_.own->rows().check_room(step.layer, step.tokens);
  last_ = {step.layer, first, shares_[layer]};
  next_layer_ = step.layer;
  tokens_ = step.tokens;
  const auto lock = session_.device.compute()->lock();
  open(first, end);
  for (std::int64_t at = first, count = 0; at < end; at += count) {
    count = part_of(at, end - at);
    const AttentionStep part =
        step_part(session_.shape, step, at - first, count,
                  completed_index_keys(session_.shape, step.layer, first, at - first));
    prefill_->attend(part);
    session_.backend.window->add(part, at);
  }
  reach_fault("session.turn");
  if (counts_dense_ && session_.shape.attends_all(step.layer) &&
      step.layer >= session_.spec.dense_layers) {
    before_[layer] += dense_share(session_.shape.kv_heads_of(step.layer), first, step.tokens);
  }
  PrefillShare share = before_[layer];
  share += prefill_->share(step.layer);
  shares_[layer] = share;
  next_layer_ = layer_after(step.layer);
  session_.stats.attend_seconds += watch.seconds();
  session_.times(step.layer).attend += watch.seconds();
}

void TurnReader::take_back(const AttentionStep& step) {
  end();
  // The rows of the last step are gone: so is what its tokens attended.
  if (last_.layer == step.layer && last_.first == session_.position(step.layer))
    shares_[static_cast<std::size_t>(step.layer)] = last_.share;
  next_layer_ = step.layer;
  tokens_ = step.tokens;
}

void TurnReader::end() {
  next_layer_ = -1;
  drop();
}

/// As SessionCore::release_backend.
void TurnReader::drop() noexcept {
  if (!prefill_) return;
  DeviceLock lock;
  try {
    lock = session_.device.compute()->lock();
  } catch (const std::exception&) {  // a device that no longer works
  }
  prefill_.reset();
}

std::int64_t TurnReader::layer_after(std::int64_t layer) const {
  do {
    layer = (layer + 1) % session_.shape.layers;
  } while (!session_.shape.is_attention(layer));
  return layer;
}

}  // namespace topkv
