#include "gpu/session/step.h"

#include <exception>
#include <utility>

#include "gpu/device.h"
#include "gpu/session/context_window.h"
#include "gpu/session/row_copy.h"
#include "src/device/pieces.h"

namespace topkv::gpu {
namespace {

constexpr std::size_t figure_bytes = CudaStep::figures_of_layer * sizeof(double);

}  // namespace

OwnScan::OwnScan(CudaDevice& device, const SessionShape& shape, const ScanLayout& layout)
    : memory(device.allocate(layout.device_bytes, "session")),
      host(layout.host_bytes),
      workspace(shape, layout, memory.data(), host.data()) {}

CudaStep::CudaStep(CudaDevice& of, const SessionShape& session,
                   std::shared_ptr<StepWorkspaces> places)
    : device(of),
      compute(of.compute_stream()),
      shape(session),
      attention(shape.attention),
      workspaces(std::move(places)),
      context_window(device.context_window(shape)) {}

void CudaStep::begin(const AttentionStep& step, std::int64_t first, const ChunkPasses& met) {
  // The workspace of a step that went ahead is left for a larger one when all its lists have been
  // read.
  if (workspace && workspace->layout.tokens < step.tokens) {
    if (lists_unread > 0) leave();
    if (workspace) workspaces->give_back(std::move(workspace));
  }
  if (!workspace) workspace = workspaces->take(step.tokens);
  given = step;
  passes = met;
  copied_by_scan = false;
  of_context = {};
  of_own = {};
  listed = {};
  sums = nullptr;
  layer_heads = heads_of(attention, step.layer);
  queries = {at<__nv_bfloat16>(layout().queries), given.tokens, attention.q_heads,
             layer_heads.head_dim, first};
}

void CudaStep::leave() {
  if (!workspace) return;
  workspace->beside.synchronize();
  compute.synchronize();
  if (own) own->stream.synchronize();
  if (lists_unread > 0) {
    workspace->scan.empty_all();
    if (own) own->workspace.empty_all();
    lists_unread = 0;
  }
  workspaces->give_back(std::move(workspace));
}

void CudaStep::close() noexcept {
  if (own) cudaStreamSynchronize(own->stream);
  try {
    leave();
  } catch (const std::exception&) {
    workspaces->lose(std::move(workspace));
  }
  cudaStreamSynchronize(compute);
  // Tiles read this session's rows.
  if (workspaces->tiles() != nullptr) workspaces->tiles()->wait();
  workspaces->leave();
}

PartialView CudaStep::in_memory(std::int64_t offset) const {
  auto* out = host<float>(offset);
  return {out, out + layout().tokens * attention.q_heads * queries.head_dim, heads(),
          queries.head_dim};
}

QueryView<__nv_bfloat16> CudaStep::queries_of(std::int64_t pass) const {
  QueryView<__nv_bfloat16> of = queries;
  of.data += pass * heads() * queries.head_dim;
  return of;
}

void CudaStep::copy_out(const PartialView& from, std::int64_t to) const {
  const PartialView into = in_memory(to);
  const auto copy = [&](float* out, const float* values, std::int64_t count) {
    TOPKV_CUDA(cudaMemcpyAsync(out, values, static_cast<std::size_t>(count) * sizeof(float),
                               cudaMemcpyDeviceToHost, compute));
  };
  copy(into.out, from.out, into.heads * into.head_dim);
  copy(into.lse, from.lse, into.heads);
}

void CudaStep::wait_for_copies() {
  workspace->staged.record(compute);
  workspace->staged.synchronize();
}

StepInput CudaStep::input() const {
  const std::int64_t d = layer_heads.head_dim;
  StepInput input;
  input.forms = static_cast<int>(passes.size());
  for (std::int64_t i = 0; i < passes.size(); ++i) input.q[i] = passes[i].queries(given);
  input.k = given.k;
  input.v = given.v;
  input.q_count = given.tokens * attention.q_heads * d;
  input.kv_count =
      attention.has_rows(given.layer) ? given.kv_count() * layer_heads.kv_heads * d : 0;
  input.host_q = host<float>(layout().host_q);
  input.host_k = host<float>(layout().host_k);
  input.host_v = host<float>(layout().host_v);
  input.queries = at<__nv_bfloat16>(layout().queries);
  input.begun = host<int>(layout().host_begun);
  input.taken = host<int>(layout().host_taken);
  input.turn = id;
  return input;
}

ListedRows CudaStep::rows_to_attend(std::int64_t layer) const {
  ListedRows rows = static_cast<const CudaRowCopy&>(*shape.row_copy).rows(layer);
  rows.stored = context_window->stored_keys(layer);
  rows.attended = figures_of(layer) + rows_figure;
  return rows;
}

std::int64_t CudaStep::figures_bytes(const SessionShape& shape) {
  return Pieces::rounded(shape.attention.layers * std::int64_t{figure_bytes});
}

}  // namespace topkv::gpu
