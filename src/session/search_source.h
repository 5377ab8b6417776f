// Rows of the context that a search finds, and the tail of all others.
//
// The host searches an index and attends the rows that each query selected, where they lie. A CUDA
// device may choose entries of the index in its place (index/common/key_summaries.h). Without a
// tail the session's own rows are searched, too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/session/own_rows_source.h"
#include "src/session/rounds_source.h"

namespace topkv {

/// Search, selection, attention over selected rows, and the tail's estimate by the host.
class SearchSource final : public RoundsSource {
 public:
  /// own: the source of own rows, which adds rows to the selection. Null: own rows are searched.
  SearchSource(SessionCore& session, QueriesByHead& heads, OwnRowsSource* own)
      : session_(session), heads_(heads), own_(own) {}

  /// Searches together for sessions of a step that use the same index with the same k, as far as
  /// the rows found for all of them are few enough. Their queries are on the host.
  static void search_together(std::span<Step> steps);

  /// Has a device begin to choose entries, in a step of one token of one session.
  void start(std::span<Step> steps) override;
  std::int64_t tokens_at_once(const Step& step) const override;
  void contribute(Step& step) override;

  void find(const StepBlock& block) override;
  std::int64_t round_tokens(std::int64_t block_tokens) const override { return block_tokens; }
  void attend_first(const StepBlock& round) override;
  void attend_more(const StepBlock& round, std::int64_t rows) override;
  void discount(const StepBlock& /*round*/, std::int64_t /*rows*/) override {}
  void count_wait(std::int64_t layer, double seconds) override {
    session_.times(layer).window += seconds;
  }
  void measure_recall(const StepBlock& block) override;

 private:
  static void search_all(std::span<const StepBlock> blocks);
  static void search(std::span<const StepBlock> blocks, std::int64_t head, std::int64_t rows,
                     const CandidateEntries* given);
  void select(const StepBlock& block, std::int64_t head, std::int64_t rows);
  void attend_tail(const StepBlock& block);
  void note_rare(const StepBlock& block);

  SessionCore& session_;
  QueriesByHead& heads_;
  OwnRowsSource* own_;
  bool chosen_ = false;  // a device chooses entries for this step (EntryChooser::choose)
};

}  // namespace topkv
