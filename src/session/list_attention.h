// Attention over the rows that a scan lists.
//
// A device lists the rows that a scan finds, each list a part of one KV head's rows for one token.
// Threads of the host attend the rows of a list as it comes in. The last list of a token and KV
// head merges the partials of all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "src/attention/arriving_rows.h"
#include "src/attention/block_attention.h"
#include "src/core/threads/busy_workers.h"
#include "src/session/head_queries.h"
#include "src/session/own_codes.h"
#include "src/session/session_core.h"

namespace topkv {

class ListAttention;

/// The lists of one scan for some tokens of a session's step.
struct ListJob {
  ListAttention* lists = nullptr;  ///< the session's
  std::int64_t layer = 0;
  TokenQueries queries = {};     ///< of the tokens of the scan
  ChunkPasses passes = {};       ///< several: one token's, whose queries follow each other
  PartialView found = {};        ///< of these tokens: what their rows are merged into
  std::int64_t tokens = 0;       ///< of the scan; 0: there is no scan
  std::int64_t wanted = 0;       ///< rows that the scan is asked for, for each query head
  bool device_attends = false;   ///< CodeScanner::Scan::attend_found: the context has no lists
  bool async = false;            ///< a thread of the session attends it (async_stepper.h)
  int step_id = 0;               ///< with async: AsyncScan::step_id
  PositionRange plain = {};      ///< with async: own rows that the token attends without a scan
  std::int64_t plain_lists = 0;  ///< the number of lists of each KV head that these are spread over
  bool is_extra_round = false;   ///< a further round of a rule, for one token
  std::int64_t token_in_scan =
      0;                        ///< with is_extra_round: the number of the token in the first scan
  std::int64_t first_list = 0;  ///< the number of its first list among the lists of all sessions
  // Set by ListAttention::attend, of all jobs together.
  double listed_seconds = 0;    ///< until the first list was complete
  double attended_seconds = 0;  ///< until all lists were attended
};

/// The lists of one session's scans, and the partials over them.
class ListAttention {
 public:
  ListAttention(SessionCore& session, const QueriesByHead& heads, const OwnCodes& own)
      : session_(session), heads_(heads), own_(own) {}

  /// Attends all lists of the jobs: this thread and helpers take one list after the other. This
  /// thread calls first() before; the jobs' seconds do not count it.
  static void attend(std::span<ListJob* const> jobs, Helpers& helpers,
                     const std::function<void()>& first);

  /// Makes room for the lists of a step of one token that has at most `plain_lists` for each KV
  /// head.
  void reserve(std::int64_t plain_lists);
  /// Returns the number of lists of one token and KV head, with the lists of plain rows.
  std::int64_t lists_of(const ListJob& job) const { return scanned_lists(job) + job.plain_lists; }
  /// Returns whether the job's scan is to find rows for a KV head.
  bool wants_rows(const ListJob& job, std::int64_t head) const {
    return !job.is_extra_round || heads_[head].count() > 0;
  }
  /// Returns the rows of the context that a job's lists had, over all tokens and KV heads.
  std::int64_t rows_listed(const ListJob& job) const;
  /// Returns the rows of the context that the lists of one token and KV head had.
  std::int64_t rows_listed(std::int64_t token, std::int64_t head) const;

  /// Returns the rows that a token's scan was last asked for, for a KV head. 0: all rows.
  std::int64_t& rows_wanted(std::int64_t token, std::int64_t head) {
    return rows_wanted_[static_cast<std::size_t>(token * session_.shape.kv_heads + head)];
  }
  /// With measure_recall or measure_attention: adds the positions that the lists of one token and
  /// KV head had. own: of the session's own rows, which have codes; else of the context.
  void add_listed(std::int64_t token, std::int64_t head, bool own,
                  std::vector<std::int64_t>& positions) const;

  Helpers& helpers() { return helpers_; }

 private:
  /// A list of rows that all heads of a group attend for one token: of the context, or of the
  /// session's own. Equal parts of ListJob::plain are lists of own rows, too, whose numbers follow
  /// the numbers of the lists that a scan has.
  using List = CodeScanner::List;

  bool keeps_listed() const { return session_.options.measure_recall || session_.mass != nullptr; }
  std::int64_t begin(const ListJob& job);
  std::int64_t context_lists(const ListJob& job) const;
  std::int64_t scanned_lists(const ListJob& job) const;
  List list_of(const ListJob& job, std::int64_t task) const;
  std::int64_t place(const ListJob& job, const List& list) const;
  void drain(const ListJob& job, const List& list, ArrivingRows& rows);
  void attend(const ListJob& job, const List& list, ArrivingRows& rows);

  SessionCore& session_;
  const QueriesByHead& heads_;
  const OwnCodes& own_;
  Partial parts_;                             // [tokens, kv_heads, lists, group]
  std::vector<std::int64_t> list_rows_;       // [tokens, kv_heads, lists]: rows of the context
  std::atomic<std::int64_t> heads_done_ = 0;  // (token, KV head) pairs whose lists are all attended
  std::vector<std::vector<std::int64_t>> listed_;  // of each list, for recall
  std::vector<std::int64_t> rows_wanted_;          // [tokens, kv_heads]
  std::vector<std::int64_t> done_;  // lists that are attended, [tokens, kv_heads]; atomic
  Helpers helpers_;                 // destroyed before the members above, which its threads use
};

}  // namespace topkv
