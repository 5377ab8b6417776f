// Rows that a scan over codes finds, in the context and among the session's own, and the tail of
// all other rows.
//
// The device scans codes (index/codes/codes_index.h). It lists the rows that score best, which
// threads of the host attend (list_attention.h), and estimates the others in one pass.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "src/session/list_attention.h"
#include "src/session/own_rows_source.h"
#include "src/session/rounds_source.h"

namespace topkv {

/// Scans over the codes of a context, and over the codes of a session's own rows.
class ScanSource final : public RoundsSource {
 public:
  ScanSource(SessionCore& session, QueriesByHead& heads, OwnRowsSource& own, const OwnCodes& codes)
      : session_(session), heads_(heads), own_(own), codes_(codes), lists_(session, heads, codes) {}

  /// Attends the rows that the first scans of these steps list, of all sessions together. This
  /// thread calls first() before.
  static void attend(std::span<Step> steps, const std::function<void()>& first);

  /// Begins one scan for all steps that read the codes of one index.
  void start(std::span<Step> steps) override;
  /// Returns the seconds of the last start that the host scanned. 0: a CUDA device only began.
  double scan_seconds() const { return scan_seconds_; }
  /// A scan returns little for a token, but its lists have a limit.
  std::int64_t tokens_at_once(const Step& step) const override {
    return session_.backend.scanner->scan_tokens(session_.schedule.first(step.layer()));
  }
  void contribute(Step& step) override;

  void find(const StepBlock& block) override;
  std::int64_t round_tokens(std::int64_t /*block_tokens*/) const override { return 1; }
  void attend_first(const StepBlock& round) override;
  void attend_more(const StepBlock& round, std::int64_t rows) override;
  void discount(const StepBlock& round, std::int64_t rows) override;
  void count_wait(std::int64_t layer, double seconds) override {
    session_.count_search(layer, seconds);
  }
  void measure_recall(const StepBlock& block) override;

  /// Returns the job of the last scan.
  const ListJob& job() const { return job_; }
  ListAttention& lists() { return lists_; }

 private:
  CodeScanner::Scan scan_of(const ListJob& job, std::int64_t token);
  void scan_and_attend(const StepBlock& block, std::int64_t rows, const ListJob& like);
  void merge_scanned(const StepBlock& round);
  void count_lists(double sessions);
  void note_listed();

  SessionCore& session_;
  QueriesByHead& heads_;
  OwnRowsSource& own_;
  const OwnCodes& codes_;
  ListJob job_;
  double scan_seconds_ = 0;
  std::vector<PositionRange> allowed_;      // of a scan of the context, [tokens, kv_heads]
  std::vector<PositionRange> allowed_own_;  // of a scan of own rows, [tokens, kv_heads]
  ListAttention lists_;
};

}  // namespace topkv
