// What a session holds, and its step.
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

#include "index/index_kind.h"
#include "src/attention/arriving_rows.h"
#include "src/attention/block_attention.h"
#include "src/attention/chunk_passes.h"
#include "src/context/retrieval.h"
#include "src/context/segment.h"
#include "src/core/helpers.h"
#include "src/device/compute_device.h"
#include "src/device/tail_figures.h"
#include "src/store/row_store.h"
#include "topkv/attention.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {

/// What a session with these options attends. Windows are no wider than it can become.
SessionShape session_shape(const AttentionShape& shape, const RetrievalOptions& options,
                           std::int64_t context_tokens);

/// Bytes of the device's memory that such a session takes besides, for steps by chunks of the most
/// tokens; 0 where it has none.
std::int64_t joined_bytes(const SessionShape& shape);

/// `tokens` of a step's tokens from number `begin` on, with their K and V if the step has those of
/// all its tokens, else with none.
AttentionStep step_part(const AttentionShape& shape, const AttentionStep& step, std::int64_t begin,
                        std::int64_t tokens);

/// work(), whose refusals say of which session it was; -1: there is one alone.
template <class Work>
void naming(std::int64_t session, const Work& work) {
  try {
    work();
  } catch (const InvalidArgument& error) {
    if (session < 0) throw;
    throw InvalidArgument("session " + std::to_string(session) + ": " + error.what());
  }
}

struct Session::State {
  using Clock = std::chrono::steady_clock;
  class Ahead;

  /// What one KV head needs for one step; kept between steps.
  struct HeadStep {
    explicit HeadStep(std::span<const Segment> segments)
        : selector(segments), allowed(segments.size()) {}

    Selector selector;
    std::vector<std::int64_t> numbers;                // of the queries, among all [tokens x group]
    std::vector<float> queries;                       // [queries, dim]
    std::vector<std::vector<PositionRange>> allowed;  // per segment and query, within it
    Partial retrieved;
    std::vector<std::span<const std::int64_t>> taken;  // per query, of the context
    std::vector<float> ceilings;                       // per query, of what is not taken
    Partial estimate, rare;                            // the tail's parts
    std::vector<TailNoise> noise;
    std::vector<std::int64_t> more;  // queries for which a rule asks for more rows

    std::int64_t count() const { return std::ssize(numbers); }
  };

  /// How many of several tasks' parts are done. add() is safe from many threads.
  class PartCounts {
   public:
    void reset(std::int64_t tasks) {
      if (tasks > size_) {
        parts_ = std::make_unique<std::atomic<std::int64_t>[]>(static_cast<std::size_t>(tasks));
        size_ = tasks;
      }
      for (std::int64_t i = 0; i < tasks; ++i) parts_[static_cast<std::size_t>(i)] = 0;
    }
    /// One more part of a task: how many now.
    std::int64_t add(std::int64_t task) { return ++parts_[static_cast<std::size_t>(task)]; }

   private:
    std::unique_ptr<std::atomic<std::int64_t>[]> parts_;
    std::int64_t size_ = 0;
  };

  /// A session's part in a step: of at most SessionShape::max_tokens.
  struct Part {
    State* session;
    std::int64_t number = -1;  // of the session, where there are several
    AttentionStep step = {};
    std::int64_t skipped = 0;     // tokens that only read, between the session's last and the first
    std::int64_t own_before = 0;  // tokens of its own in the layer
    SessionStats stats_before = {};
    StepTimes times_before = {};  // of the layer
    TokenQueries queries = {};
    DecodeBackend::Step given = {};
    PartialView found = {};       // room for what is attended beyond sinks and window
    bool searched = false;        // there may be such rows
    bool found_rows = false;      // they have been searched for, for all tokens
    bool chosen = false;          // a device chooses for it (DecodeBackend::choose)
    std::int64_t scanned = 0;     // the first so many tokens, by the device, at first
    std::int64_t wanted = 0;      // for each query head, by their scan
    std::int64_t first_list = 0;  // of these, among the lists of all sessions
    double searching_before = 0;
    bool ahead = false;          // the step goes ahead
    int turn = 0;                // DecodeBackend::turn of such a step
    PositionRange own = {};      // of the session's own rows, what it attends beside the lists
    std::int64_t own_lists = 0;  // over which these are spread
    bool again = false;          // a scan for what a rule asks more rows for: of one token,
    std::int64_t among = 0;      // which is this of those that were scanned for together
  };

  /// A list of rows that all heads of a group are to attend for a token: of the context or of the
  /// session's own.
  struct RowList : DecodeBackend::List {
    bool scanned = true;     // else known without a scan: an equal part of Part::own
    std::int64_t place = 0;  // among all of its token and KV head
  };

  /// The session's own rows that have codes too.
  struct OwnCodes {
    std::int64_t tokens = 0;  // the first so many
    std::int64_t tried = 0;   // before the window, when codes were last made, or could not be
    Segment segment = {};     // with their index
    std::shared_ptr<const DeviceCodes> codes = {};  // null: there are none
  };

  /// Queries for which the host searches.
  struct Searched {
    State* session;
    TokenQueries queries;
  };
  /// Those of several sessions.
  struct SharedQueries {
    std::vector<float> data;  // [queries, head_dim]
    std::vector<PositionRange> allowed;
    SearchResult found;
  };

  State(std::shared_ptr<const Context> context, RetrievalOptions options, const Device& device);
  ~State();

  /// Where the layer's next token stands.
  std::int64_t position(std::int64_t layer) const { return context->tokens() + own->size(layer); }
  /// Of a segment's rows those that the queries of this pass meet.
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
  /// Gives the backend the session's own rows of these layers as they are.
  void load(PositionRange layers);
  /// Forgets the layer's own tokens from number `count` on.
  void take_back(std::int64_t layer, std::int64_t count);

  // session_ahead.cc: steps whose lists are attended while the caller goes on
  bool can_go_ahead(const AttentionStep& step) const;
  void step_ahead(Part& part);
  /// Waits for them. Throws what they met after their call had returned.
  void settle();
  void rethrow();
  /// Likewise, when a step failed: nothing is kept of what was done for it.
  void settle_without(const Part& part);

  // session_chunks.cc: steps by chunks (chunk_passes.h)
  bool meets_chunks(const AttentionStep& step) const;
  void step_by_chunks(const Part& part);
  void step_in_passes(Part part, const ChunkPasses& passes);

  // session_step.cc
  /// A step of one layer for sessions over one context, each once.
  static void step(std::span<Part> parts);
  static void begin(std::span<Part> parts);
  static void take_all(std::span<Part> parts);
  static void begin(Part& part);
  void take(Part& part);
  std::int64_t tokens_at_once(const Part& part) const;
  std::int64_t tokens_searched(const Part& part) const;
  PartialView of_tokens(PartialView all, std::int64_t first, std::int64_t tokens) const;
  TailParts estimated(PartialView found, std::int64_t first, std::int64_t tokens);
  void retrieve(const Part& part);
  void finish(const Part& part);
  double searching(const Part& part) const;
  void append(const Part& part);
  void check_finite(const Part& part, std::string_view what, const float* x, std::int64_t tokens,
                    std::int64_t heads) const;
  template <class Use>
  void each_segment(std::int64_t layer, const Use& use);
  void attend_exact(std::int64_t layer);
  bool searches(std::int64_t layer, std::int64_t end) const;
  /// The tail is not the device's to add.
  bool host_estimates() const { return seen.tail && (!seen.codes || seen.judged); }

  // session_scan.cc
  static void scan(std::span<Part> parts);
  struct ListTimes {
    double listed = 0;    // seconds until a list was complete
    double attended = 0;  // until all were attended
  };
  static ListTimes attend_lists(std::span<Part> parts, Helpers& helpers,
                                const std::function<void()>& first);
  static void attend_scanned(std::span<Part> parts, const std::function<void()>& first);
  DecodeBackend::ScanOf scan_of(const Part& part, std::int64_t token, std::int64_t tokens,
                                std::int64_t rows);
  void scan_and_attend(Part part, std::int64_t token, std::int64_t tokens, std::int64_t rows);
  bool wants_rows(const Part& part, std::int64_t head) const;
  std::int64_t scanned_lists() const;
  std::int64_t lists_of(const Part& part) const;
  RowList list_of(const Part& part, std::int64_t task) const;
  std::int64_t begin_lists(const Part& part);
  void read_list(const Part& part, const RowList& list, ArrivingRows& rows);
  void attend_list(const Part& part, const RowList& list, ArrivingRows& rows);
  std::int64_t rows_listed(const Part& part) const;

  // session_search.cc
  PositionRange between(const Segment& segment, std::int64_t layer, std::int64_t position) const;
  QueryBlock block(const HeadStep& step, std::span<const PositionRange> allowed) const;
  void copy_queries(std::int64_t layer, std::int64_t head, const TokenQueries& queries);
  static void search_together(std::span<Part> parts);
  void begin_choice(Part& part);
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

  // session_rounds.cc: what the rules of RetrievalOptions ask for
  std::int64_t first_rows(std::int64_t layer) const;
  std::int64_t rows_after(std::int64_t layer, std::int64_t rows) const;
  std::int64_t most_scanned(std::int64_t layer) const;
  void take_scanned(std::int64_t layer, std::int64_t token, const TailParts& out);
  void forget_listed(std::int64_t among);
  std::int64_t most_rows(std::int64_t layer) const;
  void search_more(std::int64_t layer, const TokenQueries& queries, PartialView exact,
                   const TailParts& out);
  void scan_more(const Part& part, std::int64_t token, std::int64_t among);
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
  SessionShape seen;
  std::vector<std::int64_t> k;               // per layer
  std::shared_ptr<RowStore> own;             // rows of the session's own tokens
  std::vector<Segment> segments;             // the context's, then the session's own
  std::vector<const SegmentIndex*> indices;  // of them; null: searched where its rows lie
  const SegmentIndex* tail;                  // of the context; null: none
  OwnCodes coded;
  std::unique_ptr<DecodeBackend> backend;
  SessionStats stats;
  std::vector<StepTimes> step_times;        // per layer
  std::vector<TailFigures> figures_before;  // of the session that this is a fork of, per layer
  double measuring_seconds = 0;             // spent on recall, no part of the steps
  bool failed = false;                      // what its device keeps could not be put back

  std::vector<Part> parts;             // of the step that this session is the first of
  PositionRange sees = all_positions;  // in this pass of a step
  Buffer joined;  // by chunks: partials of passes, in the device's memory; for the longest step
  std::vector<HeadStep> heads;
  Partial estimate;  // the tail's
  std::vector<TailNoise> noise;
  Partial own_rest;
  PartialView exact_part;              // of a step with rules: sinks and window, read only
  std::vector<TailShare> tail_shares;  // of it, [tokens x q_heads]
  std::vector<double> most_squared;    // per token: the squared error that a query head may have
  Partial whole;                       // of one query
  std::vector<RowSpan> spans;          // per KV head
  std::vector<PositionRange> allowed;  // of a scan, [tokens, kv_heads]
  std::vector<PositionRange> allowed_own;              // likewise, of the session's own rows
  Partial list_parts;                                  // [tokens, kv_heads, lists, group]
  std::vector<std::int64_t> list_rows;                 // likewise without group: the context's
  std::atomic<std::int64_t> heads_done = 0;            // of tokens: all their lists are attended
  std::vector<std::vector<std::int64_t>> listed_rows;  // likewise without group; for recall
  std::vector<std::int64_t> scanned_rows;  // likewise without lists: wanted; 0: all are attended
  PartCounts done;                         // lists of each token and KV head
  Helpers helpers;               // of scans; go before the above, for threads may still know of it
  std::unique_ptr<Ahead> ahead;  // likewise; null: no step of this session can
};

}  // namespace topkv
