// The session's own rows between sinks and window, where the context's have codes. They are
// attended as they are while they are few; of more, the first ones are laid out in codes too, and
// scanned as the context's are.
//
// Their codes are learned on themselves: a context's axes would serve for text that is like it, and
// codes are the better for having been learned on what they stand for. So all are made anew when
// there are some more rows: so many that attending these meanwhile takes about as long as that.
#include <algorithm>
#include <new>

#include "src/context/index_build.h"
#include "src/core/io/faults.h"
#include "src/core/threads/stopwatch.h"
#include "src/session/codes_on_device.h"
#include "src/session/own_codes.h"
#include "src/session/session_state.h"

namespace topkv {
namespace {

constexpr std::int64_t at_once = 1024;     // rows, so that it hardly matters how steps are cut
constexpr std::int64_t part_without = 16;  // of many, one in so many may have no code

}  // namespace

/// Of the session's own rows, those that some tokens of the block have in their window and others
/// do not.
void Session::State::attend_between(std::int64_t layer, const TokenQueries& queries,
                                    PartialView out) {
  if (queries.tokens == 1) return;
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    copy_queries(layer, head, queries);
    Selector& selector = heads[static_cast<std::size_t>(head)].selector;
    selector.reset(queries.tokens * shape.group());
    take_own(layer, head, queries);
  }
  attend_found(layer, queries, out);
}

/// Of the session's own rows without codes, those that only later tokens of the block do not have
/// in their window; attend_own takes those that none has.
void Session::State::take_own(std::int64_t layer, std::int64_t head, const TokenQueries& queries) {
  const std::int64_t before = own_rows(layer, queries.first).end;
  HeadStep& step = heads[static_cast<std::size_t>(head)];
  for (std::int64_t i = 0; i < step.count(); ++i) {
    const std::int64_t token = step.query_ids[static_cast<std::size_t>(i)] / shape.group();
    const PositionRange range = own_rows(layer, queries.first + token);
    step.selector.take(segments.size() - 1, i, {std::max(before, range.begin), range.end});
  }
}

/// Whether the session's own rows are all attended, but for those with codes.
bool Session::State::attends_own() const { return step_spec.codes != nullptr || step_spec.tail; }

/// Segments whose rows are looked for: the others' are no retrieved ones.
std::size_t Session::State::searched_segments() const {
  return segments.size() - (attends_own() ? 1 : 0);
}

/// Merges into `out` the session's own rows without codes that no token of the block has in its
/// window.
void Session::State::attend_own(std::int64_t layer, const TokenQueries& queries, PartialView out) {
  const Segment& segment = segments.back();
  const PositionRange range = own_rows(layer, queries.first);
  if (range.size() <= 0) return;
  const Stopwatch attending;
  spans.clear();
  for (std::int64_t head = 0; head < shape.kv_heads; ++head)
    spans.push_back({segment.rows(layer, head).part(range), segment.first + range.begin});
  own_rest.reset(out.heads, out.head_dim);
  attend_tokens(shape, queries, {}, spans.data(), own_rest.view());
  merge(out, own_rest.view());
  times(layer).tail += attending.seconds();
}

/// Of the session's own rows between the sinks and the window of a token at a position, those that
/// are attended as they are.
PositionRange Session::State::own_rows(std::int64_t layer, std::int64_t position) const {
  const PositionRange all = between(segments.back(), layer, position);
  return {std::clamp(coded.tokens, all.begin, all.end), all.end};
}

/// Those that codes stand for.
PositionRange Session::State::coded_rows(std::int64_t layer, std::int64_t position) const {
  const PositionRange all = between(segments.back(), layer, position);
  return {all.begin, std::clamp(coded.tokens, all.begin, all.end)};
}

/// The session's own tokens before the window of the next one, the sinks among them.
std::int64_t Session::State::left_window(std::int64_t layer) const {
  const std::int64_t begin = CausalWindow{step_spec.window, step_spec.sinks}.begin(position(layer));
  return std::clamp<std::int64_t>(begin - context->tokens(), 0, own->size(layer));
}

/// Before a step of layer 0: all layers have the same tokens. Where there is no memory for codes,
/// the rows go on being attended as they are, until they are twice as many.
void Session::State::code_own() {
  if (!step_spec.codes || !step_spec.tail || step_spec.has_row_rules) return;
  const std::int64_t rows = left_window(0) / at_once * at_once;
  const std::int64_t least = device.is_cuda() ? least_coded_on_device : least_coded_on_host;
  if (rows < least || rows - coded.tried < std::max(at_once, rows / part_without)) return;
  settle();
  check_usable();
  const Stopwatch coding;
  OwnCodes next{.tokens = rows, .tried = rows, .segment = segments.back()};
  next.segment.most_tokens = rows;
  bool room = true;
  try {
    reach_fault("session.code_own");
    next.segment.indices = {build_index(indices[0]->spec, shape, next.segment, {}, device)};
    next.codes = upload_codes(device, shape, next.segment, *next.segment.indices[0]);
    reach_fault("session.scan_own");
    room = next.codes != nullptr;  // null: there are more than a scan can count
    const auto lock = device.compute()->lock();
    if (room) backend->scan_own(next.codes);
  } catch (const OutOfMemory&) {
    room = false;
  } catch (const std::bad_alloc&) {
    room = false;
  } catch (const Stopped&) {
    throw;
  } catch (...) {
    coded.tried = rows;
    throw;
  }
  if (!room) {
    coded.tried = 2 * rows;
    return;
  }
  coded = std::move(next);
  stats.coded_tokens = coded.tokens;
  stats.coded_bytes = coded.segment.indices[0]->memory(true);
  stats.device_index_bytes = step_spec.codes->memory() + coded.codes->memory();
  times(0).append += coding.seconds();
}

/// Rows of a layer have been forgotten.
void Session::State::forget_coded(std::int64_t layer) {
  const std::int64_t rows = left_window(layer);
  coded.tokens = std::min(coded.tokens, rows);
  coded.tried = std::min(coded.tried, rows);
  stats.coded_tokens = coded.tokens;
}

}  // namespace topkv
