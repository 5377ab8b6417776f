// The device's side of a session's decode step. A session calls it for each layer; the CUDA device
// and the host both implement it.
//
// A step attends up to three kinds of rows: rows that are attended in any case, rows that are
// found, and all others by the estimate of a tail. The first kind is sinks and window, or every row
// of a dense layer; the device attends these. It may find rows, too: it scans codes
// (index/codes/codes_index.h), or it chooses entries by key summaries (index/common/stand_ins.h).
// The host attends the rows that were found, where they lie.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "index/common/row_tail.h"
#include "index/common/stand_ins.h"
#include "index/common/tail_noise.h"
#include "src/attention/block_attention.h"
#include "src/device/device_codes.h"
#include "src/device/device_selection.h"
#include "src/store/row_store.h"
#include "topkv/attention.h"
#include "topkv/session.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

/// The most tokens of one step. A longer step is cut into parts of this size.
inline constexpr std::int64_t most_step_tokens = 256;

/// The parts of a session that a device needs to know: what it attends in each layer, and what the
/// device finds for it.
struct SessionShape {
  AttentionShape attention;
  KvDType rows = {};  ///< how rows are stored
  /// Rows of the context, of which a device keeps window and sinks for all sessions over it. Null:
  /// a plan, which only knows the number of tokens.
  std::shared_ptr<const RowStore> context = {};
  std::int64_t context_tokens = 0;
  std::int64_t window = 1024;
  std::int64_t sinks = 4;
  std::int64_t dense_layers = 0;
  std::int64_t max_tokens = most_step_tokens;  ///< the most tokens of one step
  /// The context's codes, if the device scans them. Null: it scans nothing.
  std::shared_ptr<const DeviceCodes> codes = {};
  std::int64_t most_rows = 0;   ///< the most rows that any scan is asked for, for each query head
  std::int64_t usual_rows = 0;  ///< the rows that a first scan is asked for, for each query head
  /// The context's key summaries, if the device chooses entries by them. Null: it chooses nothing.
  std::shared_ptr<const DeviceSelection> selection = {};
  std::int64_t most_entries = 0;  ///< the most entries that are chosen for a head
  std::int64_t most_own = 0;      ///< the session's capacity for tokens of its own
  bool tail = false;              ///< the session has a tail: an estimate is added to each step
  /// The session has a rule for how many rows are enough (RetrievalOptions::mass, error). A step
  /// then calls exact_part() and, after scans, scanned() to judge each round.
  bool has_row_rules = false;

  /// Returns whether a layer searches for rows beyond the rows that are attended in any case.
  bool retrieves(std::int64_t layer) const {
    return attention.window_of(layer) == 0 && layer >= dense_layers;
  }
  /// Returns what a token of a layer attends in any case: a sliding window, all rows (dense
  /// layers), or sinks and window.
  CausalWindow always_attended(std::int64_t layer) const {
    if (attention.window_of(layer) > 0) return {attention.window_of(layer), 0};
    return retrieves(layer) ? CausalWindow{window, sinks} : CausalWindow{};
  }
};

/// The device's side of one session.
///
/// A step calls, in this order: 1. begin; 2. scan with SessionShape::codes, or choose with
/// SessionShape::selection; 3. given, which waits for q, k and v; 4. attend, once for each segment
/// of the rows; 5. with SessionShape::has_row_rules: exact_part, and scanned after a scan; then for
/// each further round
///    another scan, and scanned;
/// 6. add for each further partial, and add_tail for the host's estimate; 7. finish. A step of one
/// token may run another way, without waiting for the rows that it lists: see supports_async_steps.
///
/// Work begins in the order of the calls. given and drain_list wait for it. Positions count the
/// rows of the context first, then the session's own.
///
/// Threads: one thread at a time, except where a function says otherwise. On CUDA the caller holds
/// the device's lock in each call that gives it work, and from scan to attend.
///
/// Memory: only these calls allocate. begin does when the session becomes longer than before, or
/// more sessions step at one time than before; load and scan_own do, too.
///
/// After a call that throws, call load.
class DecodeBackend {
 public:
  virtual ~DecodeBackend() = default;

  /// The tensors of a step in host memory, valid until the step is finished.
  struct Step {
    const float* q = nullptr;  ///< [tokens, q_heads, head_dim]
    TensorView k, v;           ///< float32 [tokens, kv_heads, head_dim]
  };

  /// Sets the session's own rows of a layer, one span for each KV head. It is called when the
  /// session took tokens back, or took another session's rows; a new session has no rows. A device
  /// begins to copy the rows that are resident there, in bf16. Throws OutOfMemory when there are
  /// more than ever before and they do not fit.
  virtual void load(std::int64_t layer, std::span<const RowSpan> rows) = 0;
  /// Waits for the copies that load has begun. They read the rows until then.
  virtual void loaded() = 0;

  /// Begins a step: takes q, k and v (float32, in the device's memory) of tokens at position
  /// `first` and on. Without K and V (kv_count 0) the window keeps its rows, and Step::k and v have
  /// no tokens.
  ///
  /// sees: the positions that the step's queries meet (chunk_passes.h). The caller's attend and
  /// scan keep to them, too.
  ///
  /// Throws OutOfMemory when rows, or the memory that the step works in, do not fit.
  virtual void begin(const AttentionStep& step, std::int64_t first, const PositionRange& sees) = 0;

  /// Waits until the step's tensors are in host memory, and returns them.
  virtual Step wait_for_inputs() = 0;

  /// Attends the rows of a segment that SessionShape::always_attended names, one span for each KV
  /// head, the step's own rows included. A device begins with resident rows in given. When it scans
  /// for one token, it begins with them here.
  virtual void attend(std::int64_t layer, std::span<const RowSpan> rows) = 0;

  /// With SessionShape::has_row_rules, after attend of all segments: returns their partials,
  /// merged, in host memory, of [tokens x q_heads] heads. Waits for them, and for scans. The view
  /// is valid until add and must not be written to.
  virtual PartialView exact_part() = 0;

  /// With SessionShape::selection, in a step of one token: begins to choose entries for the heads
  /// of all KV heads. The entries are to hold k rows of the context within `allowed`, which is not
  /// empty (entry_choice).
  virtual void choose(std::int64_t layer, PositionRange allowed, std::int64_t k);
  /// Waits for the choice, and returns it: [kv_heads] parts. Valid until the step is finished.
  virtual GivenEntries chosen();

  /// Sets codes of the session's own rows, from the first row on. Later scans read them beside the
  /// context's. Waits for work that has begun. Throws OutOfMemory, and is then as it was.
  virtual void scan_own(std::shared_ptr<const DeviceCodes> codes);

  /// With SessionShape::codes: a scan for at most scan_tokens(rows) tokens of a step. It finds the
  /// rows that the host is to attend, and makes a partial for the others.
  struct Scan {
    std::int64_t token = 0;  ///< the number of the first token in the step
    /// The range of the context that each token and KV head may find: [tokens, kv_heads]. For an
    /// empty range nothing is found, and the partials are empty.
    std::span<const PositionRange> allowed;
    /// After scan_own: the range of the session's own rows that each token and KV head may find:
    /// [tokens, kv_heads].
    std::span<const PositionRange> own = {};
    std::int64_t rows = 0;  ///< rows wanted for each query head, of either kind, 1 to most_rows
    bool tail = true;       ///< whether it estimates the attention over rows it does not find
  };
  /// A session's part in a scan for several sessions.
  struct ScanOf {
    DecodeBackend* backend = nullptr;
    Scan scan;
  };
  /// Begins a scan for sessions over one context, whose steps have begun. This backend is one of
  /// theirs. Codes are read once for several tokens. On the host the scan is complete when this
  /// returns.
  ///
  /// A scan finds, for each KV head, the rows whose codes score best for any of its query heads,
  /// about Scan::rows for each. It attends rare rows (HeadCodes::rare) exactly. For a tail it also
  /// estimates the attention over all rows that it does not find.
  virtual void scan(std::int64_t layer, std::span<const ScanOf> parts);
  /// Returns the most tokens of one scan that is asked for `rows` rows.
  virtual std::int64_t scan_tokens(std::int64_t rows) const;

  /// A list: some of the rows that a scan found for one token and KV head of this session. All
  /// heads of the KV head's group attend them.
  ///
  /// Rows of the context are spread over scan_lists() lists, by their positions alone. Rows of the
  /// session's own are spread over scan_lists() lists more.
  struct List {
    std::int64_t token = 0;  ///< the number of the token in the scan
    std::int64_t kv_head = 0;
    std::int64_t number = 0;  ///< the number of the list, below scan_lists()
    bool own = false;         ///< the list is of the session's own rows
    std::int64_t rows = 0;    ///< Scan::rows of its scan, as an async step may begin another
  };
  /// Returns the number of lists of one token and KV head, for the context.
  virtual std::int64_t scan_lists() const;

  /// With SessionShape::has_row_rules, after a scan: returns its partials, of rare rows and of the
  /// tail. The caller then adds the tail. Waits for them. Valid until the next scan or the end of
  /// the step.
  virtual TailParts scanned();
  /// Whether a thread that waits may ask the device's driver if there is still something to wait
  /// for. `nobody` is for threads that others wait for: whoever blocks the driver may wait for
  /// them.
  enum class Wait : bool { spin, poll_driver };
  /// Waits, busily, for the end of a list of the last scan. To be called once for each list. Safe
  /// from many threads.
  ///
  /// - on_row: called for each position, in any order, as soon as it is known. Most positions are
  ///   known before the list ends.
  /// - while_waiting: called repeatedly while the function waits, until it returns false. It is
  /// called
  ///   again after the next look for positions.
  virtual void drain_list(const List& list, Wait wait,
                          const std::function<void(std::int32_t)>& on_row,
                          const std::function<bool()>& while_waiting);

  /// Returns whether steps of one token can go ahead: the call returns before the lists of its scan
  /// are attended.
  ///
  /// Such a step calls begin, scan, attend, given and finish_async. Other threads read the lists
  /// while_waiting: they call wait_for_scan, wait_for_queries and drain_list, write to
  /// host_partial_buffer(), and call ready. They do not call the device's driver. The device itself
  /// waits for them, and the caller may go on with the next step. Steps that do not go ahead may
  /// follow after ready.
  virtual bool supports_async_steps() const { return false; }
  /// Returns the number of the step that has begun, which is unlike the numbers of the steps around
  /// it.
  virtual int step_id() const { return 0; }
  /// Waits, busily, until the device comes to the scan of a step that goes ahead.
  virtual void wait_for_scan(int id);
  /// Waits, busily, for the queries of a step that goes ahead, and returns them: [q_heads,
  /// head_dim], valid until ready.
  virtual const float* wait_for_queries(int id);
  /// Says that the partial of a step that goes ahead lies in host_partial_buffer().
  virtual void publish_partial(int id);
  /// Does the work of add(host_partial_buffer()) and finish, enqueued before host_partial_buffer()
  /// holds its partial.
  virtual void finish_async(const AttentionStep& step);
  /// Releases threads that wait with Wait::spin when there is nothing left to wait for: their
  /// calls then throw. Throws when the device no longer works.
  virtual void release_abandoned_waiters() {}

  /// Returns room for a partial of [tokens x q_heads] heads in host memory. A partial that lies
  /// there is added without a copy. It is valid from wait_for_inputs on, or from begin on in a step
  /// that goes ahead, until it is added. Its contents are left from an earlier step.
  virtual PartialView host_partial_buffer() = 0;
  /// Merges a partial of [tokens x q_heads] heads in host memory. The caller may change it on
  /// return, unless it is in host_partial_buffer().
  virtual void add(PartialView partial) = 0;

  /// Merges the host's estimate of a tail, after all other partials, and sums up its figures.
  virtual void add_tail(PartialView estimate, const TailNoise* noise) = 0;

  /// Returns the sums over a layer's finished steps with a tail, scans included. Waits for these
  /// steps.
  virtual TailFigures tail_figures(std::int64_t layer) const = 0;

  /// Ends the step: writes its out and, when wanted, its lse.
  virtual void finish(const AttentionStep& step) = 0;
};

}  // namespace topkv
