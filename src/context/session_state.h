// What a session holds, and the parts of its step that host and device sessions share.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "src/attention/block_attention.h"
#include "src/context/retrieval.h"
#include "src/device/compute_device.h"
#include "src/store/row_store.h"
#include "topkv/attention.h"
#include "topkv/session.h"

namespace topkv {

/// Sinks and window of a session with these options, no wider than it can become.
CausalWindow session_window(const RetrievalOptions& options, std::int64_t context_tokens);

/// What a device is asked for by a session with these options.
SessionShape session_shape(const AttentionShape& shape, const RetrievalOptions& options,
                           std::int64_t context_tokens);

struct Session::State {
  /// What one KV head needs for one step; kept between steps.
  struct HeadStep {
    Selector selector;
    std::vector<float> queries;                  // [tokens x group, dim]
    std::vector<PositionRange> context_allowed;  // per query
    std::vector<PositionRange> own_allowed;
    Partial retrieved;
  };

  State(std::shared_ptr<const Context> context, RetrievalOptions options, const Device& device);

  bool retrieves(std::int64_t layer) const {
    return shape.window_of(layer) == 0 && layer >= options.dense_layers;
  }
  /// Where the layer's next token stands.
  std::int64_t position(std::int64_t layer) const { return context->tokens() + own.size(layer); }
  StepTimes& times(std::int64_t layer) { return step_times[static_cast<std::size_t>(layer)]; }

  // session.cc: what host and device share
  void check_usable() const;
  void check_turn(std::int64_t layer, std::int64_t tokens) const;
  void check_finite(std::int64_t layer, std::string_view what, const float* x, std::int64_t tokens,
                    std::int64_t heads) const;
  void step(const AttentionStep& step);
  void append(std::int64_t layer, const float* q, std::int64_t tokens, const TensorView& k,
              const TensorView& v);
  void take_back(std::int64_t layer, std::int64_t count);
  bool searches(std::int64_t layer, std::int64_t end) const;
  void retrieve(std::int64_t layer, const TokenQueries& queries, PartialView out);
  void search_all(std::int64_t layer, const TokenQueries& queries);
  void search(std::int64_t layer, std::int64_t head, const TokenQueries& queries);
  void attend_found(std::int64_t layer, const TokenQueries& queries, PartialView out);
  void measure_recall(std::int64_t layer);
  void measure_recall(std::int64_t layer, std::int64_t head);

  // host_step.cc: a step whose tensors are in host memory
  void host_step(const AttentionStep& step);
  void attend_visible(std::int64_t layer, const TokenQueries& queries, PartialView out);

  // device_step.cc: a step whose tensors are in a device's memory
  void device_step(const AttentionStep& step);
  void attend_earlier(std::int64_t layer, std::int64_t first);
  void open_on_device();
  void load_on_device(std::int64_t layer);

  std::shared_ptr<const Context> context;
  RetrievalOptions options;
  Device device;
  AttentionShape shape;
  CausalWindow resident;                     // what tokens attend besides the rows found
  std::vector<std::int64_t> k;               // per layer
  RowStore own;                              // rows of the session's own tokens
  std::unique_ptr<DeviceSession> on_device;  // null on the host
  SessionStats stats;
  std::vector<StepTimes> step_times;  // per layer
  double measuring_seconds = 0;       // spent on recall, no part of the steps
  bool failed = false;                // what its device keeps could not be put back

  std::vector<HeadStep> heads;
  Partial exact;
  Partial own_part;
  std::vector<RowSpan> spans;   // per KV head
  std::vector<RowsView> views;  // per KV head
};

}  // namespace topkv
