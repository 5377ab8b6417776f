#include "gpu/session/window.h"

#include <algorithm>
#include <utility>

#include "gpu/device.h"
#include "gpu/runtime/faults.h"
#include "src/core/io/faults.h"

namespace topkv::gpu {

CudaWindow::CudaWindow(CudaStep& step, std::byte* memory)
    : step_(step), resident_(step.device, step.shape, step.context_window, memory) {}

void CudaWindow::load(std::int64_t first_layer, std::span<const RowSpan> rows) {
  step_.leave();  // of one that failed
  for (std::int64_t layer = first_layer; !rows.empty(); ++layer) {
    const auto heads = static_cast<std::size_t>(step_.attention.kv_heads_of(layer));
    resident_.reserve(rows[0].first, rows[0].end(), step_.compute);
    resident_.load(layer, rows.first(heads), step_.compute);
    rows = rows.subspan(heads);
  }
  step_.compute.synchronize();  // the copies read the rows until then
}

void CudaWindow::begin_step() {
  begun_ = false;
  const std::int64_t first = step_.queries.first;
  const std::int64_t rows = step_.given.kv_count();
  if (rows > 0) resident_.reserve(first, first + rows, step_.compute);
}

void CudaWindow::begin(cudaStream_t stream) {
  if (begun_) return;
  StepInput taken = step_.input();
  if (step_.copied_by_scan) {
    taken.host_q = nullptr;
  } else {
    inject_copy_delay(stream);
  }
  copy_in(taken, stream);
  if (!step_.copied_by_scan) step_.workspace->on_host.record(stream);
  const AttentionStep& given = step_.given;
  const std::int64_t rows = given.kv_count();
  const std::int64_t first = step_.queries.first;
  reach_fault("session.keep_rows");
  if (rows > 0 && step_.attention.has_rows(given.layer))
    resident_.add(given.layer, given.k, given.v, rows, first, stream);
  behind_ = !resident_.has_window(given.layer, first);
  for (std::int64_t i = 0; i < step_.passes.size(); ++i) {
    PositionRange sees = step_.passes[i].sees;
    if (behind_) sees = sees.within({0, step_.shape.context_tokens});  // own rows follow in attend
    resident_.attend(given.layer, rows, step_.queries_of(i), sees, step_.exact(),
                     i == 0 ? Into::overwrite : Into::merge, stream);
  }
  begun_ = true;
}

void CudaWindow::begin_beside() {
  if (begun_) return;
  StepWorkspace& workspace = *step_.workspace;
  workspace.begun.block(workspace.beside);
  begin(workspace.beside);
  workspace.exact_done.record(workspace.beside);
  beside_ = true;
}

void CudaWindow::attend(std::int64_t layer, std::span<const RowSpan> rows) {
  begin_beside();
  if (std::exchange(beside_, false)) step_.workspace->exact_done.block(step_.compute);
  if (behind_ && rows[0].first >= step_.shape.context_tokens) {
    const CausalWindow exact = step_.shape.always_attended(layer);
    const std::int64_t begin = exact.begin(step_.queries.first);
    const DeviceVisibility visible{true, exact.window, exact.sinks};
    stream(layer, rows, {begin, rows[0].end()}, visible);
    return stream(layer, rows, {0, std::min(exact.sinks, begin)}, visible);
  }
  if (resident_.dense(layer))
    stream(layer, rows, {0, resident_.window_begin(layer, step_.queries.first)}, {});
}

void CudaWindow::stream(std::int64_t layer, std::span<const RowSpan> rows,
                        const PositionRange& positions, const DeviceVisibility& visible) {
  const PositionRange range = positions.within({rows[0].first, rows[0].end()});
  if (range.size() == 0) return;
  step_.workspaces->tiles()->stream(step_.layer_heads, rows, range, resident_.stored_keys(layer),
                                    step_.compute, [&](const DeviceRows& tile) {
                                      gpu::attend(step_.layer_heads, step_.queries, tile, visible,
                                                  step_.exact(), Into::merge, step_.compute);
                                    });
}

void CudaWindow::reserve(std::int64_t begin, std::int64_t end) {
  resident_.reserve(begin, end, step_.compute);
}

void CudaWindow::add(const AttentionStep& step, std::int64_t first) {
  reach_fault("session.keep_rows");
  if (step_.attention.has_rows(step.layer))
    resident_.add(step.layer, step.k, step.v, step.kv_count(), first, step_.compute);
  if (step.stream != nullptr) step_.compute.synchronize();  // whose next work may overwrite K and V
}

PartialView CudaWindow::partial() {
  reach_fault("session.exact_part");
  step_.copy_out(step_.exact(), step_.layout().host_exact);
  step_.wait_for_copies();
  return step_.in_memory(step_.layout().host_exact);
}

}  // namespace topkv::gpu
