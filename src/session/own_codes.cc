#include "src/session/own_codes.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "src/context/index_build.h"
#include "src/context/index_on_device.h"
#include "src/core/io/faults.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/stopwatch.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t at_once = 1024;     // rows, so that it hardly matters how steps are cut
constexpr std::int64_t part_without = 16;  // the share of many rows that may have no codes: 1/16

/// Returns the rows of a session that can have codes.
std::int64_t rows_to_code(const SessionCore& session) {
  return session.left_window(session.shape.first_attention()) / at_once * at_once;
}

}  // namespace

bool OwnCodes::due() const {
  if (!wanted_) return false;
  const std::int64_t rows = rows_to_code(session_);
  const std::int64_t least =
      session_.device.is_cuda() ? least_coded_on_device : least_coded_on_host;
  return rows >= least && rows - tried_ >= std::max(at_once, rows / part_without);
}

std::int64_t OwnCodes::tokens_until_due() const {
  if (!wanted_) return std::numeric_limits<std::int64_t>::max();
  return at_once - session_.left_window(session_.shape.first_attention()) % at_once;
}

void OwnCodes::make() {
  const Stopwatch coding;
  const std::int64_t rows = rows_to_code(session_);
  Segment segment = session_.segments.back();
  segment.most_tokens = rows;
  std::shared_ptr<const DeviceIndex> codes;
  bool room = true;
  try {
    reach_fault("session.code_own");
    segment.indices = {
        build_index(session_.indices[0]->spec, session_.shape, segment, {}, session_.device)};
    codes = upload_index(session_.device, session_.shape, segment, *segment.indices[0]);
    reach_fault("session.scan_own");
    room = codes != nullptr;  // null: there are more than a scan can count
    const auto lock = session_.device.compute()->lock();
    if (room) session_.backend.scanner->scan_own(codes);
  } catch (const OutOfMemory&) {
    room = false;
  } catch (const std::bad_alloc&) {
    room = false;
  } catch (const Stopped&) {
    throw;
  } catch (...) {
    tried_ = rows;
    throw;
  }
  if (!room) {
    tried_ = 2 * rows;
    return;
  }
  tokens_ = tried_ = rows;
  segment_ = std::move(segment);
  SessionStats& stats = session_.stats;
  stats.coded_tokens = tokens_;
  stats.coded_bytes = segment_.indices[0]->memory(true);
  stats.device_index_bytes = session_.spec.index->memory() + codes->memory();
  session_.times(session_.shape.first_attention()).append += coding.seconds();
}

void OwnCodes::forget(std::int64_t layer) {
  const std::int64_t rows = session_.left_window(layer);
  tokens_ = std::min(tokens_, rows);
  tried_ = std::min(tried_, rows);
  session_.stats.coded_tokens = tokens_;
}

}  // namespace topkv
