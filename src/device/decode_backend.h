// The device's side of a session's decode step; the host implements it too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "index/row_tail.h"
#include "index/stand_ins.h"
#include "index/tail_noise.h"
#include "src/attention/block_attention.h"
#include "src/device/device_codes.h"
#include "src/device/device_selection.h"
#include "src/store/row_store.h"
#include "topkv/attention.h"
#include "topkv/session.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

/// Tokens of one step.
inline constexpr std::int64_t most_step_tokens = 256;

/// What a session attends, layer by layer.
struct SessionShape {
  AttentionShape attention;
  KvDType rows = {};
  /// Rows of the context, of which a device keeps some for all sessions over it; null: none are
  /// known, only how many tokens it has.
  std::shared_ptr<const RowStore> context = {};
  std::int64_t context_tokens = 0;
  std::int64_t window = 1024;
  std::int64_t sinks = 4;
  std::int64_t dense_layers = 0;
  std::int64_t max_tokens = most_step_tokens;  ///< of one step
  /// Where the device scans the context's codes itself: these. Null: the host searches.
  std::shared_ptr<const DeviceCodes> codes = {};
  std::int64_t most_rows = 0;   ///< wanted of a scan, for each query head
  std::int64_t usual_rows = 0;  ///< likewise, of scans for several tokens
  /// Where the device chooses entries of the context by what stands for its keys: that. Null: the
  /// host searches.
  std::shared_ptr<const DeviceSelection> selection = {};
  std::int64_t most_entries = 0;  ///< chosen for a head
  std::int64_t most_own = 0;      ///< tokens that the session can have of its own
  bool tail = false;              ///< whether an estimate is added to steps
  bool judged = false;            ///< exact_part() and, of scans, scanned() are called in steps

  /// Whether rows are searched beyond those that are attended anyway.
  bool retrieves(std::int64_t layer) const {
    return attention.window_of(layer) == 0 && layer >= dense_layers;
  }
  /// What tokens attend in any case: a sliding window, all (dense layers), or sinks and window.
  CausalWindow exact(std::int64_t layer) const {
    if (attention.window_of(layer) > 0) return {attention.window_of(layer), 0};
    return retrieves(layer) ? CausalWindow{window, sinks} : CausalWindow{};
  }
};

/// A step: begin; scan where there are codes, or choose; given; then attend for each segment of the
/// rows, exact_part (and scanned) where steps are judged, and after that further scans, each of
/// which scanned follows; add for each further partial, add_tail, finish. Work is begun in this
/// order; given and read_list wait for it. (Or it goes ahead: see goes_ahead.) Positions are those
/// of the session: the context's rows come first. One thread at a time, but for what says
/// otherwise; on CUDA the caller holds the device's lock in each call that gives it work, and from
/// scan to attend. Allocates nothing but in begin, as far as the session becomes longer than it was
/// or more sessions step at a time than before, load and scan_own. After a call that throws, load
/// is to be called.
class DecodeBackend {
 public:
  virtual ~DecodeBackend() = default;

  /// What begin was given, in host memory; valid until the step is finished.
  struct Step {
    const float* q = nullptr;  ///< [tokens, q_heads, head_dim]
    TensorView k, v;           ///< float32 [tokens, kv_heads, head_dim]
  };

  /// The session's own rows of a layer are these (one span per KV head): it took tokens back, or
  /// has another one's; at first it has none. A device begins to copy what is resident there, bf16.
  /// Throws OutOfMemory where these are more than it ever had.
  virtual void load(std::int64_t layer, std::span<const RowSpan> rows) = 0;
  /// Waits for what load has begun, which reads the rows until then.
  virtual void loaded() = 0;

  /// Takes q, k, v (the device's memory, float32) of tokens at position `first` and on. A device
  /// may take memory, for rows and for what it works in, and then throws OutOfMemory. Without K and
  /// V (kv_count 0) the window keeps its rows, and the step's k and v have no tokens. sees: the
  /// positions that its queries meet (chunk_passes.h), which what the caller gives to attend and
  /// scan keeps to as well.
  virtual void begin(const AttentionStep& step, std::int64_t first, const PositionRange& sees) = 0;

  /// Waits for it.
  virtual Step given() = 0;

  /// The exact part over those of a segment's rows (one span per KV head), the step's included,
  /// that SessionShape::exact says. A device begins with what is resident in given or, where it
  /// scans for one token, here.
  virtual void attend(std::int64_t layer, std::span<const RowSpan> rows) = 0;

  /// With SessionShape::judged, after attend of all segments: what they give together, in host
  /// memory, [tokens x q_heads] heads. Waits for it, and for scans. Valid, and not to be written,
  /// until add.
  virtual PartialView exact_part() = 0;

  /// With SessionShape::selection, of a step of one token: begins to choose the entries that are to
  /// have k rows of the context within a range, which holds some (entry_choice), for the heads of
  /// all KV heads.
  virtual void choose(std::int64_t layer, PositionRange allowed, std::int64_t k);
  /// Waits for it: of all heads, [kv_heads] parts. Valid until the step is finished.
  virtual GivenEntries chosen();

  /// From now on scans are of these codes too: of the session's own rows, from the first on. Waits
  /// for what has begun. Throws OutOfMemory; it is then as it was.
  virtual void scan_own(std::shared_ptr<const DeviceCodes> codes);

  /// With SessionShape::codes: which rows of the context a step's tokens, scan_tokens(rows) at
  /// most, are to attend as they are, and a partial for those that they are not to.
  struct Scan {
    std::int64_t token = 0;  ///< of the step, the first
    /// Of the context, [tokens, kv_heads]. Where that is nothing, nothing is found, and partials
    /// are empty.
    std::span<const PositionRange> allowed;
    std::span<const PositionRange> own = {};  ///< after scan_own: of these rows, likewise
    std::int64_t rows = 0;  ///< wanted for each query head, from 1 to most_rows, of both
    bool tail = true;
  };
  /// A session's part in a scan for several sessions.
  struct ScanOf {
    DecodeBackend* backend = nullptr;
    Scan scan;
  };
  /// Begins to find the rows whose codes score best for any query head of each KV head, about so
  /// many for each. Attends rare rows (HeadCodes) as they are and, for a tail, what codes stand for
  /// of all others that are not found. For sessions over one context, one of which is this, whose
  /// steps have begun; codes are read for several tokens at once. On the host it is over when this
  /// returns.
  virtual void scan(std::int64_t layer, std::span<const ScanOf> parts);
  virtual std::int64_t scan_tokens(std::int64_t rows) const;

  /// Some of the rows that a scan found for one of this session's tokens and a KV head, all heads
  /// of whose group are to attend them. Those of the context are spread over scan_lists() lists by
  /// their positions alone, those of the session's own rows over as many more.
  struct List {
    std::int64_t token = 0;  ///< of the scan
    std::int64_t kv_head = 0;
    std::int64_t number = 0;  ///< below scan_lists()
    bool own = false;         ///< of the session's own rows
    std::int64_t rows = 0;    ///< as in Scan: where steps go ahead, a later scan may have begun
  };
  virtual std::int64_t scan_lists() const;

  /// With SessionShape::judged, after a scan: what it gave for the step's tokens beside its lists,
  /// rare rows and the tail, which then is for the caller to add. Waits for it. Valid until the
  /// next scan, or the end of the step.
  virtual TailParts scanned();
  /// Whether a thread that waits may ask the device's driver if there is still something to wait
  /// for. Where others wait for the thread, it may not: who holds the driver up may wait for them.
  enum class Asks : bool { nobody, device };
  /// Waits, busily, for the end of a list of the last scan, once for each list. met: called for
  /// each position, in any order, as soon as it is known, which most are before the list ends.
  /// meanwhile: called again and again while it waits, until it gives false; then again when it has
  /// looked for more. Safe from many threads.
  virtual void read_list(const List& list, Asks asks, const std::function<void(std::int32_t)>& met,
                         const std::function<bool()>& meanwhile);

  /// Whether a step of one token that is scanned for can go ahead: begin, scan, attend, given,
  /// finish_ahead, while others read the lists. The device then waits by itself for what others
  /// make of the lists, and the caller may go on to the next step meanwhile. These others do not
  /// call its driver: they await_scan, await_queries, read_list, write to room(), and say ready.
  /// Steps that do not go ahead may follow when that has been said.
  virtual bool goes_ahead() const { return false; }
  /// Tells the step that has begun from those around it.
  virtual int turn() const { return 0; }
  /// Waits, busily, until the device comes to the scan of a step that goes ahead.
  virtual void await_scan(int turn);
  /// Likewise for its queries: [q_heads, head_dim], valid until it is ready.
  virtual const float* await_queries(int turn);
  /// The partial lies in room().
  virtual void ready(int turn);
  /// As add(room()) and finish, before room() holds what it is to.
  virtual void finish_ahead(const AttentionStep& step);
  /// Lets who waits and asks nobody throw, where there is nothing more to wait for. Throws where
  /// the device no longer works.
  virtual void watch() {}

  /// Room for a partial of [tokens x q_heads] heads, from given on (or begin, of a step that goes
  /// ahead) until it is added: there, add need not copy it. What it holds is left from before.
  virtual PartialView room() = 0;
  /// Merges a partial in host memory, of [tokens x q_heads] heads, which may be changed on return
  /// unless it is room's.
  virtual void add(PartialView partial) = 0;

  /// Likewise a tail's estimate, after all others; keeps its figures.
  virtual void add_tail(PartialView estimate, const TailNoise* noise) = 0;

  /// Sums over a layer's finished steps with a tail, scans among them. Waits for them.
  virtual TailFigures tail_figures(std::int64_t layer) const = 0;

  /// Writes the step's out and, when wanted, lse.
  virtual void finish(const AttentionStep& step) = 0;
};

}  // namespace topkv
