// A session: its core, the sources of its steps, and how these take turns.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "src/session/async_stepper.h"
#include "src/session/chunk_steps.h"
#include "src/session/draft_reading.h"
#include "src/session/guaranteed_source.h"
#include "src/session/indexer_source.h"
#include "src/session/own_codes.h"
#include "src/session/own_rows_source.h"
#include "src/session/past_tokens.h"
#include "src/session/position_mass.h"
#include "src/session/ruled_source.h"
#include "src/session/scan_source.h"
#include "src/session/search_source.h"
#include "src/session/session_core.h"
#include "src/session/turn_reader.h"
#include "src/session/window_source.h"

namespace topkv {

/// Everything that a session holds. The sources of its steps are chosen once, when it is made:
///
/// | session | sources beside the window |
/// | --- | --- |
/// | every layer is dense or sliding | none are asked |
/// | codes that the device scans | scan, own rows |
/// | a search with a tail | own rows, search |
/// | a search without a tail | search, of own rows too |
/// | a rule (mass, error) | the rule, over scan or search, with own rows |
/// | a guarantee | the guarantee, over search, with own rows |
///
/// Layers with a trained indexer have one source instead of all of these: the indexer.
struct Session::State {
  State(const std::shared_ptr<const Context>& context, RetrievalOptions options,
        const Device& device);
  /// The device's work ends before the memory of its sources goes.
  ~State() {
    async_stepper.reset();  // its thread needs no device to come to its end
    core.release_backend();
  }

  /// Throws InvalidArgument unless the session may take a step now, whose tensors are checked. The
  /// step has the queries of the chunks that its tokens meet, and comes in turn (check_turn).
  /// session_index: as in new_step, for the message.
  void check_next_step(const AttentionStep& step, std::int64_t session_index) const;
  /// Throws InvalidArgument unless a layer may attend `tokens` new tokens now. The first layer of
  /// attention takes new tokens when every layer has the last ones, and the other layers follow it.
  /// A recurrence may have the new tokens already.
  void check_turn(std::int64_t layer, std::int64_t tokens) const;
  /// Throws InvalidArgument when layers hold different numbers of tokens. what: the call.
  void check_between_steps(std::string_view what) const;
  void count_states() { core.stats.states_bytes = core.own->state_bytes(); }
  /// Session::advance's.
  void check_advance(std::int64_t layer, std::int64_t tokens) const;
  /// Keeps the first `count` own tokens of a layer and forgets all later ones.
  void roll_back(std::int64_t layer, std::int64_t count);
  /// Before a step of the first layer of attention: makes codes of own rows, if there are enough.
  void code_own();
  /// Returns Session::most_alike's.
  std::int64_t most_alike() const;
  /// Waits for the steps that went ahead. Throws Error if one failed after its call had returned.
  void settle();
  bool can_step_async(const AttentionStep& step) const;
  /// Adds the rows that the device has attended since the last call to the statistics.
  void count_rows_of_device();
  /// Returns a step of this session. session_index: the session's number in the step; -1: it is
  /// alone.
  Step new_step(const AttentionStep& tensors, std::int64_t session_index);
  /// After a step that failed: sets the session to its state before the step.
  void roll_back(const Step& step);

  SessionCore core;
  QueriesByHead heads;
  OwnCodes own_codes;
  WindowSource window;
  OwnRowsSource own_rows;
  IndexerSource indexer;
  AttentionSource* indexer_alone = &indexer;     // the list of sources of layers with an indexer
  std::unique_ptr<SearchSource> search;          // null: the device scans
  std::unique_ptr<ScanSource> scan;              // null: the session searches
  std::unique_ptr<RuledSource> ruled;            // null: there is no rule (mass, error)
  std::unique_ptr<GuaranteedSource> guaranteed;  // null: there is no guarantee
  std::vector<AttentionSource*> beyond;          // the sources beside the window, in order
  EstimateBuffer estimate;
  EstimateBuffer* host_estimate = nullptr;  // null: there is no tail, or a scan makes its estimate
  ChunkSteps chunks;
  TurnReader turns;
  PastTokens past;
  std::unique_ptr<PositionMass> mass;  // null: there is no RetrievalOptions::measure_attention
  std::unique_ptr<DraftReading> draft_reading;  // null: no draft model has read the text
  std::vector<TailFigures> figures_before;  // of the session that this was forked from, per layer
  std::int64_t rows_of_device = 0;          // AsyncScan::rows_attended that the statistics have
  std::vector<Step> steps;                  // of a call whose first session this is
  std::vector<std::int64_t> firsts;         // the positions at which these sessions take it
  /// Null: no step can go ahead.
  std::unique_ptr<AsyncStepper> async_stepper;
};

}  // namespace topkv
