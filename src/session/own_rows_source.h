// The session's own rows between sinks and window, where they are not searched: with codes, or with
// a tail, which stands for rows of the context alone.
#pragma once

#include <cstdint>
#include <vector>

#include "src/session/attention_source.h"
#include "src/session/head_queries.h"
#include "src/session/own_codes.h"

namespace topkv {

/// The session's own rows without codes that have left the window: all of them are attended.
///
/// A block of several tokens has two kinds: rows that no token of the block has in its window,
/// which all tokens attend; and rows between, which only its later tokens do not have in their
/// window. In a step of few tokens (few_step_tokens) each token is a block of its own.
class OwnRowsSource final : public AttentionSource {
 public:
  /// between: it attends both kinds. A search takes the rows between into its own selection
  /// (select_between).
  OwnRowsSource(SessionCore& session, QueriesByHead& heads, const OwnCodes& codes, bool between)
      : session_(session), heads_(heads), codes_(codes), between_(between) {}

  void contribute(Step& step) override;

  /// Merges into the block's exact partial the rows that no token of the block has in its window.
  void attend(const StepBlock& block);
  /// Returns the partial of the last attend.
  PartialView last() { return partial_.view(); }

  /// Adds rows between to the selection of each query of a KV head.
  void select_between(const StepBlock& block, std::int64_t head);

  /// Returns the own rows between the sinks and the window of a token at a position that are
  /// attended as they are, counted within the session's own.
  PositionRange plain_rows(std::int64_t layer, std::int64_t position) const;
  /// Returns the own rows between the sinks and the window of a token at a position that have
  /// codes, counted within the session's own.
  PositionRange coded_rows(std::int64_t layer, std::int64_t position) const;

 private:
  /// Returns whether each token of the block attends its rows by itself.
  bool attends_alone(const StepBlock& block) const;
  void attend_between(const StepBlock& block);
  /// Merges the rows that no token has in its window. partial: empty, for these tokens.
  void attend(std::int64_t layer, const TokenQueries& queries, PartialView partial,
              PartialView into);

  SessionCore& session_;
  QueriesByHead& heads_;
  const OwnCodes& codes_;
  bool between_;
  std::vector<RowSpan> spans_;  // per KV head
  Partial partial_;
};

}  // namespace topkv
