// The state of a session, and its decode step.
//
// A step takes one layer's q, k and v of a few tokens. Their rows join the session's own rows.
// Attention is then merged from partials over disjoint sets of rows:
//
// - Rows that are attended in any case, in `backend`: sinks and window, or every row of a dense
//   layer.
// - Rows that are found in the context, and among own rows. The host searches (session_search.cc),
//   or the device scans codes (session_scan.cc), or the device chooses entries and the host makes
//   rows of them.
// - Own rows between sinks and window that are attended without a search (session_own.cc).
// - The tail's estimate over all other rows of the context, by the host (session_tail.cc) or in the
//   scan.
//
// With a rule (RetrievalOptions::mass, error), searches and the estimate are repeated in rounds for
// the queries that need more rows (session_rounds.cc). One step may have several sessions over one
// context, each with a SessionStep in it. A step of one token whose codes a CUDA device scans may
// go ahead: its call returns before the rows are attended (session_async.h).
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "index/common/index_factory.h"
#include "src/attention/arriving_rows.h"
#include "src/attention/block_attention.h"
#include "src/attention/chunk_passes.h"
#include "src/context/segment.h"
#include "src/core/threads/busy_workers.h"
#include "src/device/compute_device.h"
#include "src/device/tail_figures.h"
#include "src/session/selector.h"
#include "src/store/row_store.h"
#include "topkv/attention.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {

/// Returns what a session with these options attends. Windows are clamped to the tokens that it can
/// come to have.
SessionShape session_shape(const AttentionShape& shape, const RetrievalOptions& options,
                           std::int64_t context_tokens);

/// Returns the bytes of device memory that a session takes for steps by chunks, of the most tokens.
/// 0: its attention is not by chunks.
std::int64_t joined_bytes(const SessionShape& shape);

/// Returns a part of a step: `tokens` tokens from number `begin` on. It has K and V of these
/// tokens, or no K and V if the step has none.
AttentionStep step_part(const AttentionShape& shape, const AttentionStep& step, std::int64_t begin,
                        std::int64_t tokens);

/// Calls work(). An InvalidArgument that it throws is rethrown with the number of the session in
/// its message, unless that is -1, for a session alone.
template <class Work>
void with_session_in_errors(std::int64_t session, const Work& work) {
  try {
    work();
  } catch (const InvalidArgument& error) {
    if (session < 0) throw;
    throw InvalidArgument("session " + std::to_string(session) + ": " + error.what());
  }
}

/// Everything that a session holds, and its step. Functions are grouped by the file that defines
/// them.
struct Session::State {
  using Clock = std::chrono::steady_clock;
  class AsyncStepper;

  /// The queries of one KV head in a step, and the rows that they attend. Its buffers are kept from
  /// step to step.
  struct HeadStep {
    explicit HeadStep(std::span<const Segment> segments)
        : selector(segments), allowed(segments.size()) {}

    Selector selector;
    std::vector<std::int64_t> query_ids;              // number of each query in [tokens x group]
    std::vector<float> queries;                       // [queries, dim]
    std::vector<std::vector<PositionRange>> allowed;  // per segment and query: what may be found
    Partial retrieved;
    std::vector<std::span<const std::int64_t>> taken;  // per query: attended rows of the context
    std::vector<float> ceilings;  // per query: bound for scores of all other rows
    Partial estimate, rare;       // the tail's partials: its estimate, and rare rows
    std::vector<TailNoise> noise;
    std::vector<std::int64_t> unsatisfied;  // queries for which a rule asks for more rows

    std::int64_t count() const { return std::ssize(query_ids); }
  };

  /// Counts of how many parts of each task are done. add() is safe from many threads.
  class PartCounts {
   public:
    void reset(std::int64_t tasks) {
      if (tasks > size_) {
        parts_ = std::make_unique<std::atomic<std::int64_t>[]>(static_cast<std::size_t>(tasks));
        size_ = tasks;
      }
      for (std::int64_t i = 0; i < tasks; ++i) parts_[static_cast<std::size_t>(i)] = 0;
    }
    /// Counts one more part of a task, and returns how many are done.
    std::int64_t add(std::int64_t task) { return ++parts_[static_cast<std::size_t>(task)]; }

   private:
    std::unique_ptr<std::atomic<std::int64_t>[]> parts_;
    std::int64_t size_ = 0;
  };

  /// A session's part in a step of at most SessionShape::max_tokens tokens.
  struct SessionStep {
    State* session;
    std::int64_t session_index = -1;  // in the step; -1: it is alone
    AttentionStep step = {};
    std::int64_t skipped = 0;     // reading tokens before the step's first
    std::int64_t own_before = 0;  // own tokens of the layer before the step
    SessionStats stats_before = {};
    StepTimes times_before = {};  // of the layer, before the step
    TokenQueries queries = {};
    DecodeBackend::Step given = {};
    PartialView found = {};       // room for the partial over rows beyond sinks and window
    bool searched = false;        // there may be rows beyond sinks and window
    bool found_rows = false;      // they have been searched for, for all tokens of the step
    bool chosen = false;          // a device chooses entries for it (DecodeBackend::choose)
    std::int64_t scanned = 0;     // number of first tokens that the first scan is for
    std::int64_t wanted = 0;      // rows that this scan is asked for, for each query head
    std::int64_t first_list = 0;  // number of its first list among the lists of all sessions
    double searching_before = 0;
    bool async = false;              // the step goes ahead (session_async.h)
    int step_id = 0;                 // DecodeBackend::step_id of a step that goes ahead
    PositionRange own = {};          // own rows that it attends without a scan
    std::int64_t own_lists = 0;      // lists that these rows are spread over
    bool is_extra_round = false;     // another round of a rule, for one token
    std::int64_t token_in_scan = 0;  // the number of that token in the first scan
  };

  /// A list of rows that all heads of a group attend for one token. The rows are of the context or
  /// of the session's own.
  struct RowList : DecodeBackend::List {
    bool scanned = true;     // false: no scan finds its rows, an equal part of SessionStep::own
    std::int64_t place = 0;  // its number among all lists of its token and KV head
  };

  /// Codes of the session's own rows.
  struct OwnCodes {
    std::int64_t tokens = 0;  // number of first own rows that have codes
    std::int64_t tried = 0;   // own rows before the window when making codes was last tried
    Segment segment = {};     // these rows, with their index of codes
    std::shared_ptr<const DeviceCodes> codes = {};  // null: no own row has codes
  };

  /// Queries of one session for which the host searches.
  struct Searched {
    State* session;
    TokenQueries queries;
  };
  /// Queries of several sessions that the host searches for together.
  struct SharedQueries {
    std::vector<float> data;  // [queries, head_dim]
    std::vector<PositionRange> allowed;
    SearchResult found;
  };

  State(std::shared_ptr<const Context> context, RetrievalOptions options, const Device& device);
  ~State();

  /// Returns the position of the layer's next token.
  std::int64_t position(std::int64_t layer) const { return context->tokens() + own->size(layer); }
  /// Returns the rows of a segment that the queries of this pass (chunk_passes.h) meet, counted
  /// within the segment.
  PositionRange seen_of(const Segment& segment, std::int64_t layer) const {
    const std::int64_t rows = segment.tokens(layer);
    const std::int64_t begin = std::clamp<std::int64_t>(sees.begin - segment.first, 0, rows);
    return {begin, std::clamp<std::int64_t>(sees.end - segment.first, begin, rows)};
  }
  StepTimes& times(std::int64_t layer) { return step_times[static_cast<std::size_t>(layer)]; }

  void count_search(std::int64_t layer, double seconds) {
    stats.search_seconds += seconds;
    times(layer).search += seconds;
  }

  void check_usable() const;
  void check_turn(std::int64_t layer, std::int64_t tokens) const;
  /// Sets the backend's copy of the session's own rows, in a range of layers.
  void load(PositionRange layers);
  /// Keeps the first `count` own tokens of a layer and forgets all later ones.
  void take_back(std::int64_t layer, std::int64_t count);

  // session_async.cc: steps that go ahead: their lists are attended while the caller goes on
  bool can_step_async(const AttentionStep& step) const;
  void step_async(SessionStep& part);
  /// Waits for the steps that went ahead. Throws Error if one failed after its call had returned.
  void settle();
  void rethrow();
  /// Waits for the steps that went ahead, after the step of `part` failed. Its work is dropped.
  void settle_without(const SessionStep& part);

  // session_chunks.cc: steps by chunks (chunk_passes.h)
  bool meets_chunks(const AttentionStep& step) const;
  void step_by_chunks(const SessionStep& part);
  void step_in_passes(SessionStep part, const ChunkPasses& passes);

  // session_step.cc
  /// Makes a step of one layer, for different sessions over one context.
  static void step(std::span<SessionStep> parts);
  static void begin(std::span<SessionStep> parts);
  static void take_all(std::span<SessionStep> parts);
  static void begin(SessionStep& part);
  void take(SessionStep& part);
  std::int64_t tokens_at_once(const SessionStep& part) const;
  std::int64_t tokens_searched(const SessionStep& part) const;
  PartialView of_tokens(PartialView all, std::int64_t first, std::int64_t tokens) const;
  TailParts estimated(PartialView found, std::int64_t first, std::int64_t tokens);
  void retrieve(const SessionStep& part);
  void finish(const SessionStep& part);
  double searching(const SessionStep& part) const;
  void append(const SessionStep& part);
  void check_finite(const SessionStep& part, std::string_view what, const float* x,
                    std::int64_t tokens, std::int64_t heads) const;
  template <class Use>
  void each_segment(std::int64_t layer, const Use& use);
  void attend_exact(std::int64_t layer);
  bool searches(std::int64_t layer, std::int64_t end) const;
  /// Returns whether the host makes the tail's estimate and adds it: there is no scan, or a rule
  /// judges it.
  bool host_estimates() const {
    return step_spec.tail && (!step_spec.codes || step_spec.has_row_rules);
  }

  // session_scan.cc
  static void scan(std::span<SessionStep> parts);
  struct ListTimes {
    double listed = 0;    // seconds until the first list was complete
    double attended = 0;  // seconds until all lists were attended
  };
  static ListTimes attend_lists(std::span<SessionStep> parts, Helpers& helpers,
                                const std::function<void()>& first);
  static void attend_scanned(std::span<SessionStep> parts, const std::function<void()>& first);
  DecodeBackend::ScanOf scan_of(const SessionStep& part, std::int64_t token, std::int64_t tokens,
                                std::int64_t rows);
  void scan_and_attend(SessionStep part, std::int64_t token, std::int64_t tokens,
                       std::int64_t rows);
  bool wants_rows(const SessionStep& part, std::int64_t head) const;
  std::int64_t scanned_lists() const;
  std::int64_t lists_of(const SessionStep& part) const;
  RowList list_of(const SessionStep& part, std::int64_t task) const;
  std::int64_t begin_lists(const SessionStep& part);
  void drain_list(const SessionStep& part, const RowList& list, ArrivingRows& rows);
  void attend_list(const SessionStep& part, const RowList& list, ArrivingRows& rows);
  std::int64_t rows_listed(const SessionStep& part) const;

  // session_search.cc
  PositionRange between(const Segment& segment, std::int64_t layer, std::int64_t position) const;
  QueryBlock block(const HeadStep& step, std::span<const PositionRange> allowed) const;
  void copy_queries(std::int64_t layer, std::int64_t head, const TokenQueries& queries);
  static void search_together(std::span<SessionStep> parts);
  void begin_choice(SessionStep& part);
  static void search_all(std::int64_t layer, std::span<const Searched> sessions, bool chosen);
  static void search(std::int64_t layer, std::int64_t head, std::span<const Searched> sessions,
                     std::int64_t rows, const GivenEntries* given);
  void choose(std::int64_t layer, std::int64_t head, const TokenQueries& queries,
              std::int64_t rows);
  std::int64_t place(std::int64_t head, std::int64_t query) const;
  void attend_found(std::int64_t layer, const TokenQueries& queries, PartialView out);
  void measure_recall(std::int64_t layer, const TokenQueries& queries, bool chosen);
  void measure_recall(std::int64_t layer, std::int64_t head, const GivenEntries* given);

  // session_own.cc
  bool attends_own() const;
  std::size_t searched_segments() const;
  void take_own(std::int64_t layer, std::int64_t head, const TokenQueries& queries);
  void attend_between(std::int64_t layer, const TokenQueries& queries, PartialView out);
  void attend_own(std::int64_t layer, const TokenQueries& queries, PartialView out);
  PositionRange own_rows(std::int64_t layer, std::int64_t position) const;
  PositionRange coded_rows(std::int64_t layer, std::int64_t position) const;
  std::int64_t left_window(std::int64_t layer) const;
  void code_own();
  void forget_coded(std::int64_t layer);

  // session_tail.cc
  void attend_rest(std::int64_t layer, const TailParts& out);

  // session_rounds.cc: rounds of the rules (RetrievalOptions::mass, error)
  std::int64_t first_rows(std::int64_t layer) const;
  std::int64_t rows_after(std::int64_t layer, std::int64_t rows) const;
  std::int64_t most_scanned(std::int64_t layer) const;
  void take_scanned(std::int64_t layer, std::int64_t token, const TailParts& out);
  void forget_listed(std::int64_t among);
  std::int64_t most_rows(std::int64_t layer) const;
  void search_more(std::int64_t layer, const TokenQueries& queries, PartialView exact,
                   const TailParts& out);
  void scan_more(const SessionStep& part, std::int64_t token, std::int64_t among);
  std::optional<std::int64_t> next_round(std::int64_t layer, std::int64_t tokens, std::int64_t rows,
                                         bool own, PartialView exact, const TailParts& out);
  ChoosesFor chooses_for() const;
  bool asks_for_more(std::int64_t tokens, bool below_k, PartialView exact, const TailParts& out);
  void begin_again(bool own, PartialView out);
  void attend_all(std::int64_t layer, const TokenQueries& queries, const TailParts& out);

  std::shared_ptr<const Context> context;
  RetrievalOptions options;
  Device device;
  AttentionShape shape;
  SessionShape step_spec;
  std::vector<std::int64_t> k;               // per layer
  std::shared_ptr<RowStore> own;             // rows of the session's own tokens
  std::vector<Segment> segments;             // the context's, then the session's own
  std::vector<const SegmentIndex*> indices;  // of each segment; null: exact search
  const SegmentIndex* tail;                  // the context's tail; null: none
  OwnCodes coded;
  std::unique_ptr<DecodeBackend> backend;
  SessionStats stats;
  std::vector<StepTimes> step_times;        // per layer
  std::vector<TailFigures> figures_before;  // of the session that this was forked from, per layer
  double measuring_seconds = 0;             // spent on measuring recall; not counted in steps
  bool failed = false;                      // the session lost its window or a step's results

  std::vector<SessionStep> parts;      // of a step whose first session this is
  PositionRange sees = all_positions;  // positions that queries of this pass of a step meet
  Buffer joined;  // steps by chunks: partials of passes, in the device's memory
  std::vector<HeadStep> heads;
  Partial estimate;  // the tail's, [tokens x q_heads]
  std::vector<TailNoise> noise;
  Partial own_rest;                    // over own rows that are attended without a search
  PartialView exact_part;              // with a rule: partial over sinks and window, read only
  std::vector<TailShare> tail_shares;  // [tokens x q_heads]
  std::vector<double> most_squared;    // per token: the squared error that each query head may have
  Partial whole;                       // merged partial of one query
  std::vector<RowSpan> spans;          // per KV head
  std::vector<PositionRange> allowed;  // of a scan of the context, [tokens, kv_heads]
  std::vector<PositionRange> allowed_own;    // of a scan of own rows, [tokens, kv_heads]
  Partial list_parts;                        // [tokens, kv_heads, lists, group]
  std::vector<std::int64_t> list_rows;       // [tokens, kv_heads, lists]: rows of the context
  std::atomic<std::int64_t> heads_done = 0;  // (token, KV head) pairs whose lists are all attended
  std::vector<std::vector<std::int64_t>> listed_rows;  // of each list, for recall
  std::vector<std::int64_t> scanned_rows;  // [tokens, kv_heads]: rows wanted; 0: all are attended
  PartCounts done;                         // lists that are attended, for each token and KV head
  Helpers helpers;  // attend lists; destroyed before the members above, which its threads use
  /// Destroyed first of all. Null: no step can go ahead.
  std::unique_ptr<AsyncStepper> async_stepper;
};

}  // namespace topkv
