// Scans over codes on a device (index/codes/codes_index.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "index/common/row_tail.h"
#include "src/attention/arriving_rows.h"
#include "src/attention/chunk_passes.h"
#include "src/device/device_index.h"
#include "topkv/types.h"

namespace topkv {

/// Scans the codes of a context (SessionShape::index), and of one session's own rows.
///
/// Threads: one thread at a time, except drain_list. On CUDA the caller holds the device's lock in
/// scan, scan_own and scanned, and from the first scan of a step to ResidentWindow::attend.
class CodeScanner {
 public:
  /// lists: the number of lists of one token and KV head, for the context.
  explicit CodeScanner(std::int64_t lists) : lists_(lists) {}
  virtual ~CodeScanner() = default;

  /// A session's part in a scan: at most scan_tokens(rows) tokens of its step. A scan finds the
  /// rows that the host is to attend, and makes a partial for the others.
  struct Scan {
    CodeScanner* scanner = nullptr;  ///< the session's
    std::int64_t token = 0;          ///< the number of the first token in the step
    /// The range of the context that each token and KV head may find: [tokens, kv_heads]. For an
    /// empty range nothing is found, and the partials are empty.
    std::span<const PositionRange> allowed;
    /// After scan_own: the range of the session's own rows that each token and KV head may find:
    /// [tokens, kv_heads].
    std::span<const PositionRange> own = {};
    std::int64_t rows = 0;  ///< rows wanted for each query head, of either kind, 1 to most_rows
    bool tail = true;       ///< whether it estimates the attention over rows it does not find
    /// The device attends the rows of the context that it finds: there are no lists of them.
    /// REQUIRES: attends_found.
    bool attend_found = false;
    /// What the step's queries meet, as in DecodeInputs::begin. With several there is one token,
    /// and its rows are found among all positions together.
    ChunkPasses passes = {};
  };
  /// Begins a scan for sessions over one context, whose steps have begun. This scanner is one of
  /// theirs. Codes are read once for several tokens. On the host the scan is complete when this
  /// returns.
  ///
  /// A scan finds, for each KV head, the rows whose codes score best for any of its query heads,
  /// about Scan::rows for each. It attends rare rows (HeadCodes::rare) exactly. For a tail it also
  /// estimates the attention over all rows that it does not find.
  virtual void scan(std::int64_t layer, std::span<const Scan> parts) = 0;
  /// Returns the most tokens of one scan that is asked for `rows` rows.
  virtual std::int64_t scan_tokens(std::int64_t rows) const = 0;

  /// Returns whether the device can attend the rows of the context that a scan of one token for
  /// `rows` rows finds in a layer, in a step that goes ahead.
  virtual bool attends_found(std::int64_t /*layer*/, std::int64_t /*rows*/) const { return false; }

  /// Sets codes of the session's own rows, from the first row on. Later scans read them beside the
  /// context's. Waits for work that has begun. Throws OutOfMemory, and is then as it was.
  virtual void scan_own(std::shared_ptr<const DeviceIndex> codes) = 0;

  /// With SessionShape::has_row_rules, after a scan: returns its partials, of rare rows and of the
  /// tail. The caller then adds the tail. Waits for them. Valid until the next scan or the end of
  /// the step.
  virtual TailParts scanned() = 0;

  /// Returns the number of lists of one token and KV head, for the context.
  std::int64_t lists() const { return lists_; }
  /// A list: some of the rows that a scan found for one token and KV head of this session. All
  /// heads of the KV head's group attend them.
  ///
  /// Rows of the context are spread over lists() lists, by their positions alone. Rows of the
  /// session's own are spread over lists() lists more.
  struct List {
    std::int64_t token = 0;  ///< the number of the token in the scan
    std::int64_t kv_head = 0;
    std::int64_t number = 0;  ///< the number of the list, below lists()
    bool own = false;         ///< the list is of the session's own rows
    std::int64_t rows = 0;    ///< Scan::rows of its scan, as an async step may begin another
  };
  /// Whether a thread that waits may ask the device's driver if there is still something to wait
  /// for. `spin` is for threads that others wait for: whoever blocks the driver may wait for them.
  enum class Wait : bool { spin, poll_driver };
  /// Adds the positions of a list of the last scan to `rows`, in any order. To be called once for
  /// each list. Safe from many threads.
  ///
  /// The host's lists are known when its scan ends. A CUDA device writes a list row by row: the
  /// function waits for its end, busily, adds each row as soon as it is known, and scores rows
  /// meanwhile.
  virtual void drain_list(const List& list, Wait wait, ArrivingRows& rows) = 0;

 private:
  std::int64_t lists_;
};

}  // namespace topkv
