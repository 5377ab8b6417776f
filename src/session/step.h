// A decode step of one session: the tokens of one layer on their way through its sources
// (attention_source.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "index/common/row_tail.h"
#include "src/attention/block_attention.h"
#include "src/attention/chunk_passes.h"
#include "src/core/threads/stopping.h"
#include "src/device/decode_backend.h"
#include "src/session/session_core.h"
#include "topkv/attention.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {

class AttentionSource;
class ScanSource;
class SearchSource;

/// A session's part in a step of at most SessionShape::max_tokens tokens of one layer. One step may
/// have several sessions over one context.
struct Step {
  SessionCore* session = nullptr;
  /// The rows that are attended in any case. Null: there are none (a trained indexer).
  AttentionSource* window = nullptr;
  std::span<AttentionSource* const> beyond = {};  ///< all other sources, in order
  // The session's sources that work for several sessions at once. Null: it has no such source.
  ScanSource* scan = nullptr;
  SearchSource* search = nullptr;
  EstimateBuffer* estimate = nullptr;  ///< null: the host makes no estimate
  std::int64_t session_index = -1;     ///< the session's number in the step; -1: it is alone

  AttentionStep tensors = {};
  /// What its queries meet. Several: the queries of one token (chunk_passes.h), in a step that goes
  /// ahead.
  ChunkPasses passes = {};
  std::int64_t skipped = 0;  ///< reading tokens before the step's first
  TokenQueries queries = {};
  /// The host's partials over rows beyond sinks and window, [tokens x q_heads].
  TailParts host = {};
  bool searched = false;  ///< there may be rows beyond sinks and window
  bool joined = false;    ///< its rows are scanned or searched for, together with other sessions'
  bool async = false;     ///< a thread of the session attends its lists (async_stepper.h)
  bool device_attends = false;    ///< with async: CodeScanner::Scan::attend_found
  int step_id = 0;                ///< with async: AsyncScan::step_id
  std::int64_t block_tokens = 0;  ///< the tokens that all sources work on at a time, at least 1
  double searching_before = 0;
  // What the session gets back if the step fails.
  std::int64_t own_tokens_before = 0;  ///< of the layer
  SessionStats stats_before = {};
  StepTimes times_before = {};  ///< of the layer

  std::int64_t layer() const { return tensors.layer; }
  /// Returns the part of [tokens x q_heads] heads that belongs to `tokens` tokens.
  template <class View>
  View part(const View& all, std::int64_t first, std::int64_t tokens) const {
    return all.part(first * session->shape.q_heads, tokens * session->shape.q_heads);
  }
};

/// Consecutive tokens of a step that a source works on together.
struct StepBlock {
  Step& step;
  std::int64_t token = 0;  ///< the number of the first token in the step
  TokenQueries queries;    ///< of these tokens
  TailParts host;          ///< the part of Step::host that belongs to these tokens

  std::int64_t layer() const { return step.layer(); }
  /// Returns the number of the first token in its block of Step::block_tokens tokens.
  std::int64_t in_block() const { return token % step.block_tokens; }
};

/// Returns the block of `tokens` tokens of a step, from number `first` on.
inline StepBlock block_of(Step& step, std::int64_t first, std::int64_t tokens) {
  TailParts host{.exact = step.part(step.host.exact, first, tokens)};
  if (step.host.estimate.heads > 0) host = step.part(step.host, first, tokens);
  return {step, first, step.queries.part(first, tokens), host};
}

/// Calls use(block) for blocks of at most Step::block_tokens tokens.
void each_block(Step& step, const auto& use) {
  const std::int64_t tokens = step.block_tokens;
  for (std::int64_t t = 0; t < step.queries.tokens; t += tokens) {
    check_stop();
    use(block_of(step, t, std::min(tokens, step.queries.tokens - t)));
  }
}

/// Calls work(). An InvalidArgument that it throws is rethrown with the number of the session in
/// its message, unless that is -1, for a session alone.
void with_session_in_errors(std::int64_t session, const auto& work) {
  try {
    work();
  } catch (const InvalidArgument& error) {
    if (session < 0) throw;
    throw InvalidArgument("session " + std::to_string(session) + ": " + error.what());
  }
}

/// Returns a part of a step: `tokens` tokens from number `begin` on. It has K and V of these
/// tokens, or no K and V if the step has none. index_keys: the number of index keys of the tokens
/// before `begin` (AttentionStep::index_k).
AttentionStep step_part(const AttentionShape& shape, const AttentionStep& step, std::int64_t begin,
                        std::int64_t tokens, std::int64_t index_keys = 0);

/// Returns the number of index keys that the first `tokens` tokens of a step complete, with the
/// first of them at position `first`. 0 in a layer without index keys.
std::int64_t completed_index_keys(const AttentionShape& shape, std::int64_t layer,
                                  std::int64_t first, std::int64_t tokens);

/// Begins a step on the device, with its passes, and sets the step's queries, which are on the host
/// later. The caller holds the device's lock.
void begin_step(Step& step);

/// Appends the rows of a step's tokens to the session's own, unless K and V have no tokens. A layer
/// that attends the rows of another layer finds the rows of these tokens there. Throws
/// InvalidArgument for q, K or V that is not finite. given: the step with q, k and v in host
/// memory.
void append_rows(const Step& step, const AttentionStep& given);

/// Makes a step of one layer, for different sessions over one context.
///
/// Rows of the new tokens join each session's own rows; each source then contributes its partial,
/// and the device merges all of them. While the host works the device's lock is free. Some sessions
/// begin at a time: a device scans for them together, and begins with the next sessions while
/// threads attend the rows that it listed.
void run_step(std::span<Step> steps);

}  // namespace topkv
