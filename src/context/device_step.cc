// A session's step when q, k and v come from a device: the window's part is computed there while
// the host searches; rows found are attended on either side, and the device merges.
#include <algorithm>
#include <cstring>
#include <limits>

#include "src/context/session_state.h"
#include "src/core/faults.h"
#include "src/core/stopwatch.h"
#include "src/core/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t gather_grain = 128;  // rows that a thread gathers at a time
constexpr std::int64_t prefetch_ahead = 8;  // rows

/// Adds the time since the last call to a counter.
class Lap {
 public:
  void operator()(double& counter) {
    counter += watch_.seconds();
    watch_ = Stopwatch();
  }

 private:
  Stopwatch watch_;
};

/// Copies rows positions[begin, end) of the view to places begin and on of the piece.
void gather(const RowsView& rows, const std::vector<std::int64_t>& positions, std::int64_t begin,
            std::int64_t end, std::int64_t place, const FetchPiece& piece) {
  const auto bytes = static_cast<std::size_t>(rows.stride_bytes);
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t ahead = positions[static_cast<std::size_t>(
        std::min(i + prefetch_ahead, static_cast<std::int64_t>(positions.size()) - 1))];
    for (std::size_t byte = 0; byte < bytes; byte += 64) {
      __builtin_prefetch(rows.key(ahead) + byte);
      __builtin_prefetch(rows.value(ahead) + byte);
    }
    const std::int64_t position = positions[static_cast<std::size_t>(i)];
    const std::size_t to = static_cast<std::size_t>(place + i) * bytes;
    std::memcpy(piece.keys + to, rows.key(position), bytes);
    std::memcpy(piece.values + to, rows.value(position), bytes);
  }
}

/// Tokens that a session can come to have.
std::int64_t most_tokens(const RetrievalOptions& options, std::int64_t context_tokens) {
  std::int64_t most = 0;
  return __builtin_add_overflow(context_tokens, options.capacity, &most)
             ? std::numeric_limits<std::int64_t>::max()
             : most;
}

}  // namespace

CausalWindow session_window(const RetrievalOptions& options, std::int64_t context_tokens) {
  const std::int64_t most = most_tokens(options, context_tokens);
  return {std::min(options.window, most), std::min(options.sinks, most)};
}

SessionShape session_shape(const AttentionShape& shape, const RetrievalOptions& options,
                           std::int64_t context_tokens) {
  const std::int64_t most = most_tokens(options, context_tokens);
  const CausalWindow resident = session_window(options, context_tokens);
  SessionShape out;
  out.attention = shape;
  for (std::int64_t& window : out.attention.sliding_window) window = std::min(window, most);
  out.window = resident.window;
  out.sinks = resident.sinks;
  out.dense_layers = std::min(options.dense_layers, shape.layers);
  if (options.attend_on == AttendOn::device) {
    out.lists = options.select_by == SelectBy::group ? shape.kv_heads : shape.q_heads;
    const std::vector<std::int64_t> k = options.k.resolve(shape.layers);
    out.list_rows = std::min(*std::max_element(k.begin(), k.end()), most);
  }
  return out;
}

void Session::State::open_on_device() {
  if (context->dtype() != DType::bf16) {
    throw InvalidArgument("a session on a CUDA device reads rows in bf16; the context holds " +
                          std::string(name_of(context->dtype())) +
                          ": prefill it with kv_dtype bf16");
  }
  const auto lock = device.compute()->lock();
  on_device = device.compute()->session_attention(session_shape(shape, options, context->tokens()));
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) load_on_device(layer);
}

/// Sinks and window as they are in the rows of context and session.
void Session::State::load_on_device(std::int64_t layer) {
  const auto lock = device.compute()->lock();
  const std::int64_t n = context->tokens();
  const std::int64_t end = n + own.size(layer);
  const auto load = [&](std::int64_t first, const auto& rows_of) {
    views.clear();
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) views.push_back(rows_of(head));
    on_device->load(layer, views, first, end);
  };
  load(0, [&](std::int64_t head) { return context->rows(layer, head); });
  load(n, [&](std::int64_t head) { return own.rows(layer, head); });
}

void Session::State::device_step(const AttentionStep& step) {
  const std::int64_t layer = step.layer;
  const std::int64_t tokens = step.tokens;
  const std::int64_t d = shape.head_dim;
  const std::int64_t first = position(layer);
  StepTimes& time = times(layer);
  Lap lap;
  reach_fault("session.begin");
  const DeviceSession::Step copied = on_device->begin(step, first);
  lap(time.q_out);
  append(layer, copied.q, tokens, copied.k, copied.v);
  lap(time.append);
  if (!retrieves(layer) && shape.window_of(layer) == 0) {
    attend_earlier(layer, first);
    lap(time.copy);
  }
  const TokenQueries queries{copied.q, tokens, shape.q_heads * d, d, first};
  PartialView found{nullptr, nullptr, 0, d};
  if (searches(layer, first + tokens)) {
    const bool fetches = options.attend_on == AttendOn::device && tokens == 1;
    if (!fetches) {
      exact.reset(tokens * shape.q_heads, d);
      found = exact.view();
    }
    retrieve(layer, queries, found);
    lap = Lap();
    if (fetches) {
      send_found(layer);
      lap = Lap();
    }
  }
  reach_fault("session.finish");
  on_device->finish(step, found);
  lap(time.merge);
}

/// Dense layers: all rows before the resident window, from both stores.
void Session::State::attend_earlier(std::int64_t layer, std::int64_t first) {
  const std::int64_t end = on_device->window_begin(layer, first);
  const std::int64_t n = context->tokens();
  const auto attend = [&](std::int64_t count, const auto& rows_of) {
    if (count <= 0) return;
    views.clear();
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      views.push_back(rows_of(head));
      views.back().count = count;
    }
    on_device->attend_all(layer, views);
  };
  attend(std::min(end, n), [&](std::int64_t head) { return context->rows(layer, head); });
  attend(end - n, [&](std::int64_t head) { return own.rows(layer, head); });
}

/// Gathers the rows found, KV head by KV head, each on its way while the next is gathered.
void Session::State::send_found(std::int64_t layer) {
  StepTimes& time = times(layer);
  Lap lap;
  const bool shared = options.select_by == SelectBy::group;
  const std::int64_t lists = shared ? 1 : shape.group();
  const std::int64_t most =
      std::min(k[static_cast<std::size_t>(layer)], context->tokens() + options.capacity);
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    const Selector& selector = heads[static_cast<std::size_t>(head)].selector;
    const RowsView from_context = context->rows(layer, head);
    const RowsView from_own = own.rows(layer, head);
    pieces.clear();
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < lists; ++i) {
      const Selection& selection = selector.of(i);
      const auto count = static_cast<std::int64_t>(selection.context.size() + selection.own.size());
      pieces.push_back(on_device->stage(head * lists + i, count, most));
      longest = std::max(longest, count);
      stats.rows_retrieved += shared ? count * shape.group() : count;
    }
    const std::int64_t blocks = (longest + gather_grain - 1) / gather_grain;
    parallel_for(lists * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const FetchPiece& piece = pieces[static_cast<std::size_t>(task / blocks)];
        const Selection& selection = selector.of(task / blocks);
        const auto context_rows = static_cast<std::int64_t>(selection.context.size());
        const std::int64_t from = task % blocks * gather_grain;
        const std::int64_t to = std::min(from + gather_grain, piece.count);
        gather(from_context, selection.context, from, std::min(to, context_rows), 0, piece);
        gather(from_own, selection.own, std::max<std::int64_t>(0, from - context_rows),
               to - context_rows, context_rows, piece);
      }
    });
    lap(time.gather);
    on_device->send(pieces);
    lap(time.copy);
  }
}

}  // namespace topkv
