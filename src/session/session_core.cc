#include "src/session/session_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "index/common/index_factory.h"
#include "src/context/index_on_device.h"
#include "src/session/session_sizes.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Returns the most tokens that a session can come to have.
std::int64_t most_tokens(const RetrievalOptions& options, std::int64_t context_tokens) {
  std::int64_t most = 0;
  return __builtin_add_overflow(context_tokens, options.capacity, &most)
             ? std::numeric_limits<std::int64_t>::max()
             : most;
}

/// Returns the attention of a session over a context of a shape.
AttentionShape session_attention(AttentionShape shape, const RetrievalOptions& options) {
  if (!shape.indexer) return shape;
  shape.indexer->top = options.indexer_top.value_or(shape.indexer->top);
  shape.indexer->local_blocks = options.indexer_local_blocks.value_or(shape.indexer->local_blocks);
  if (shape.indexer->top < 1) {
    throw InvalidArgument(
        fmt::format("indexer_top is {}; expected 1 block or more", shape.indexer->top));
  }
  if (shape.indexer->local_blocks < 0 || shape.indexer->local_blocks > shape.indexer->top) {
    throw InvalidArgument(
        fmt::format("indexer_local_blocks is {}; expected 0 to the {} blocks that a token chooses",
                    shape.indexer->local_blocks, shape.indexer->top));
  }
  return shape;
}

}  // namespace

SessionShape session_shape(const AttentionShape& shape, const RetrievalOptions& options,
                           std::int64_t context_tokens) {
  const std::int64_t most = most_tokens(options, context_tokens);
  SessionShape out;
  out.attention = shape;
  for (std::int64_t& window : out.attention.sliding_window)
    window = std::min(window, std::max<std::int64_t>(most, 1));
  out.window = std::min(options.window, most);
  out.sinks = std::min(options.sinks, most);
  out.dense_layers = std::min(options.dense_layers, shape.layers);
  out.most_own = options.capacity;
  out.context_tokens = context_tokens;
  return out;
}

SessionCore::SessionCore(std::shared_ptr<const Context> ctx, const Segment& frozen,
                         RetrievalOptions opts, const Device& where)
    : context(std::move(ctx)),
      options(std::move(opts)),
      device(where),
      shape(session_attention(context->shape(), options)),
      spec(session_shape(shape, options, context->tokens())),
      schedule(options, shape.layers, context->tokens()),
      own(std::make_shared<LayerStates>(shape, context->dtype(), options.capacity,
                                        options.memory_budget, "session")),
      segments{frozen, {.first = context->tokens(), .states = own}},
      indices{segments[0].find(options.index), nullptr},
      tail(segments[0].find(options.tail)),
      indexer(shape),
      step_times(static_cast<std::size_t>(shape.layers)) {
  load_spans.reserve(static_cast<std::size_t>(std::max(shape.kv_heads, shape.sliding_kv_heads)));
  if (indices[0] != nullptr && !indices[0]->spec.factory().traits().finds) indices[1] = indices[0];
  own->rows().use_channels(segments[0].states->rows(), context->tokens());
  own->rows().index_keys().begin_at(context->tokens());
  check_indexer();
  spec.rows = context->dtype();
  spec.context = segments[0].row_store();
  if (!device.compute()->takes_rows(context->dtype())) {
    throw InvalidArgument(
        "a session on a CUDA device reads rows in bf16, q8 and q4; the context "
        "holds " +
        context->dtype().name() + ": prefill it with kv_dtype bf16");
  }
  bool retrieves = false;
  for (std::int64_t l = 0; l < shape.layers; ++l) retrieves = retrieves || spec.retrieves(l);
  spec.tail = retrieves && options.tail != no_tail;
  spec.has_row_rules = spec.tail && (options.mass || options.error);
  if (spec.has_row_rules) schedule.use_rules();
  if (retrieves && indices[0] != nullptr) {
    // Codes are searched, not scanned, with another tail, or when a group shares its rows. The host
    // searches codes that can have no tail: that takes no longer, and ranks rows by their keys. A
    // device may choose entries in place of the host's search.
    const IndexTraits& of = indices[0]->spec.factory().traits();
    if ((device.is_cuda() ? !options.host_search : of.has_tail) &&
        (!of.has_codes || can_use_scan(options))) {
      spec.index = upload_index(device, shape, segments[0], *indices[0]);
    }
  }
  if (spec.index) stats.device_index_bytes = spec.index->memory();
  if (options.device_rows > 0) copy_rows();
  for (std::int64_t l = 0; spec.index && l < shape.layers; ++l) {
    spec.usual_rows = std::max(spec.usual_rows, schedule.first(l));
    spec.most_rows = std::max(spec.most_rows, schedule.last(l));
    spec.most_entries = std::max(spec.most_entries, spec.index->most_entries(l, schedule.k(l)));
  }
  searched_segments = segments.size() - (spec.scans() || attends_own() ? 1 : 0);
  const auto lock = device.compute()->lock();
  backend = device.compute()->decode_backend(spec);
}

void SessionCore::check_indexer() const {
  if (!shape.indexer) return;
  if (device.is_cuda()) {
    throw Unsupported(
        "a session on a CUDA device over layers with a trained indexer; trained indexers run on a "
        "CPU so far: give the device cpu");
  }
  const std::int64_t first = segments[0].states->rows().index_keys().first_position();
  if (first == 0) return;
  throw InvalidArgument(
      fmt::format("a session over own rows of another session, whose index keys begin at position "
                  "{}; give them to resume(), in a session over the context before them",
                  first));
}

void SessionCore::copy_rows() {
  if (!device.is_cuda() || !spec.scans() || spec.has_row_rules) {
    throw InvalidArgument(
        fmt::format("device_rows (--kv-gpu-rows) is {}, but only a session that scans codes on a "
                    "CUDA device, without mass and "
                    "error, attends rows there; leave it 0",
                    options.device_rows));
  }
  std::vector<std::int64_t> layers;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    if (spec.retrieves(l) && shape.has_rows(l)) layers.push_back(l);
  }
  spec.row_copy =
      device.compute()->copy_rows(shape, segments[0].row_store(), layers, options.device_rows);
  if (spec.row_copy) stats.device_row_bytes = spec.row_copy->memory();
}

/// No thread may wait for the device's streams while another thread records the work that it gives
/// them.
void SessionCore::release_backend() noexcept {
  if (!backend.owner) return;
  DeviceLock lock;
  try {
    lock = device.compute()->lock();
  } catch (const std::exception&) {  // a device that no longer works
  }
  backend = {};
}

PositionRange SessionCore::seen_of(const Segment& segment, std::int64_t layer) const {
  const std::int64_t rows = segment.tokens(layer);
  const std::int64_t begin = std::clamp<std::int64_t>(sees.begin - segment.first, 0, rows);
  return {begin, std::clamp<std::int64_t>(sees.end - segment.first, begin, rows)};
}

PositionRange SessionCore::between(const Segment& segment, std::int64_t layer,
                                   std::int64_t position) const {
  const CausalWindow exact = spec.always_attended(layer);
  const std::int64_t end =
      std::clamp<std::int64_t>(exact.begin(position) - segment.first, 0, segment.tokens(layer));
  const PositionRange range =
      seen_of(segment, layer)
          .within({std::clamp<std::int64_t>(exact.sinks - segment.first, 0, end), end});
  return {range.begin, std::max(range.begin, range.end)};
}

bool SessionCore::meets_chunks(const AttentionStep& step) const {
  return shape.chunk_len > 0 && position(step.layer) + step.tokens > shape.chunk_len;
}

bool SessionCore::searches(std::int64_t layer, std::int64_t end) const {
  // Rows to find lie between the sinks and the window of the last token.
  if (shape.has_indexer(layer)) return true;
  const PositionRange beyond{spec.sinks, end - spec.window};
  return spec.retrieves(layer) && beyond.within(sees).size() > 0;
}

std::int64_t SessionCore::left_window(std::int64_t layer) const {
  const std::int64_t begin = CausalWindow{spec.window, spec.sinks}.begin(position(layer));
  return std::clamp<std::int64_t>(begin - context->tokens(), 0, own->tokens(layer));
}

void SessionCore::count_search(std::int64_t layer, double seconds) {
  stats.search_seconds += seconds;
  times(layer).search += seconds;
}

void SessionCore::count_steps(std::int64_t layer, std::int64_t tokens) {
  stats.steps += tokens;
  if (spec.retrieves(layer) || shape.has_indexer(layer)) stats.retrieving_steps += tokens;
}

void SessionCore::load(PositionRange layers) {
  sees = all_positions;
  load_spans.clear();
  const auto lock = device.compute()->lock();
  for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
    for (std::int64_t head = 0; head < shape.kv_heads_of(layer); ++head) {
      const RowsView none{};  // of a recurrence
      load_spans.push_back({shape.is_attention(layer) ? segments.back().rows(layer, head) : none,
                            segments.back().first});
    }
  }
  backend.window->load(layers.begin, load_spans);
}

void SessionCore::check_usable() const {
  if (!failed) return;
  throw InvalidArgument(
      "this session lost its window, or a step's results, when its device or a thread of its own "
      "failed; make another one over the context");
}

}  // namespace topkv
