// What the parts of a session share: its context, its own rows, its options and its figures.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/attention/chunk_passes.h"
#include "src/context/segment.h"
#include "src/device/compute_device.h"
#include "src/device/decode_backend.h"
#include "src/device/host/indexer_attention.h"
#include "src/session/row_schedule.h"
#include "src/store/layer_states.h"
#include "topkv/context.h"
#include "topkv/device.h"
#include "topkv/session.h"

namespace topkv {

class PositionMass;

/// A session's context, own rows, options, device and figures.
struct SessionCore {
  /// Makes a session without own rows, and copies to the device what its searches read there.
  /// frozen: the segment of the context.
  /// REQUIRES: the options are checked; index and tail are normal specs, and the context has both.
  /// Throws InvalidArgument for rows that the device cannot read, and OutOfMemory.
  SessionCore(std::shared_ptr<const Context> context, const Segment& frozen,
              RetrievalOptions options, const Device& device);
  ~SessionCore() { release_backend(); }
  SessionCore(const SessionCore&) = delete;  // the parts of a session point to it
  SessionCore& operator=(const SessionCore&) = delete;

  /// Returns the position of the layer's next token.
  std::int64_t position(std::int64_t layer) const { return context->tokens() + own->tokens(layer); }
  /// Returns the rows of a segment that the queries of this pass (chunk_passes.h) meet, counted
  /// within the segment.
  PositionRange seen_of(const Segment& segment, std::int64_t layer) const;
  /// Returns the rows of a segment that this pass meets between the sinks and the window of a token
  /// at `position`, counted within the segment. A token that only reads may be at a position beyond
  /// the last row.
  PositionRange between(const Segment& segment, std::int64_t layer, std::int64_t position) const;
  /// Returns whether a step's tokens use more than one query each (chunk_passes.h).
  bool meets_chunks(const AttentionStep& step) const;
  /// Returns whether a step whose last token is at position end - 1 has rows to find, by a search
  /// or by a trained indexer.
  bool searches(std::int64_t layer, std::int64_t end) const;
  /// Returns the number of own tokens before the window of the next token, sinks included.
  std::int64_t left_window(std::int64_t layer) const;
  /// Returns whether own rows outside the window are all attended although rows are searched: only
  /// rows of the context have a tail, or are sampled.
  bool attends_own() const { return spec.tail || options.guarantee.has_value(); }
  StepTimes& times(std::int64_t layer) { return step_times[static_cast<std::size_t>(layer)]; }
  void count_search(std::int64_t layer, double seconds);
  /// Counts tokens that a layer has attended.
  void count_steps(std::int64_t layer, std::int64_t tokens);

  /// Throws Unsupported, or InvalidArgument, for a trained indexer that the session cannot run.
  void check_indexer() const;
  /// Copies rows of the context to the device (RetrievalOptions::device_rows).
  void copy_rows();
  /// Sets the backend's copy of the session's own rows, in a range of layers.
  void load(PositionRange layers);
  /// Waits for the device's work for this session, and lets go of the backend. Only the destructor
  /// may follow.
  void release_backend() noexcept;
  /// Throws InvalidArgument if the session failed and cannot go on.
  void check_usable() const;

  std::shared_ptr<const Context> context;
  RetrievalOptions options;
  Device device;
  AttentionShape shape;
  SessionShape spec;
  RowSchedule schedule;
  std::shared_ptr<LayerStates> own;  // what the layers keep of the session's own tokens
  std::vector<Segment> segments;     // the context's, then the session's own
  /// The number of first segments whose rows are searched, or scanned. Own rows are not if they are
  /// all attended.
  std::size_t searched_segments = 1;
  std::vector<const SegmentIndex*> indices;  // of each segment; null: exact search
  const SegmentIndex* tail;                  // the context's tail; null: none
  IndexerAttention indexer;                  // of layers with a trained indexer
  DecodeBackend backend;
  /// The sums of RetrievalOptions::measure_attention. Null: they are not wanted.
  PositionMass* mass = nullptr;
  SessionStats stats;
  std::vector<StepTimes> step_times;   // per layer
  std::vector<RowSpan> load_spans;     // of load; taking back a layer allocates nothing
  double measuring_seconds = 0;        // spent on measuring recall; not counted in steps
  bool failed = false;                 // the session lost its window or a step's results
  PositionRange sees = all_positions;  // positions that queries of this pass of a step meet
};

}  // namespace topkv
