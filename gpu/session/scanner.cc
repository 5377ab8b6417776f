#include "gpu/session/scanner.h"

#include <utility>

#include "gpu/runtime/faults.h"
#include "src/core/io/faults.h"

namespace topkv::gpu {
namespace {

CudaScanner& scanner(const CodeScanner::Scan& part) {
  return static_cast<CudaScanner&>(*part.scanner);
}

const CudaCodes& codes_of(const std::shared_ptr<const DeviceIndex>& codes) {
  return static_cast<const CudaCodes&>(*codes);
}

}  // namespace

void CudaScanner::scan_own(std::shared_ptr<const DeviceIndex> codes) {
  if (!step_.own) {
    step_.own =
        std::make_unique<OwnScan>(step_.device, step_.shape, step_.workspaces->layout().scan);
  }
  step_.compute.synchronize();
  step_.own->codes = std::move(codes);
}

void CudaScanner::scan(std::int64_t layer, std::span<const Scan> parts) {
  reach_fault("session.scan");
  const Stream& compute = step_.compute;
  for (const Scan& part : parts) {
    CudaScanner& of = scanner(part);
    of.begin_lists(layer, part);
    of.step_.workspace->begun.record(compute);
  }
  StepInput copied;
  if (parts.size() == 1 && step_.given.tokens == 1 && !window_.begun()) {
    step_.copied_by_scan = true;
    inject_copy_delay(compute);
    copied = step_.input();
  }
  // Resident rows are attended beside the scan, each session's beside the others'. They come first:
  // the pass leaves no room on the device until it ends.
  for (const Scan& part : parts) scanner(part).window_.begin_beside();
  scan_for(codes_of(step_.shape.index), layer, parts, false, copied, compute);
  for (const Scan& part : parts) {
    CudaScanner& of = scanner(part);
    if (!part.own.empty()) of.scan_own_rows(layer, part);
    of.step_.progress.end(compute);
  }
}

bool CudaScanner::attends_found(std::int64_t layer, std::int64_t rows) const {
  return step_.shape.row_copy && step_.shape.row_copy->has(layer) &&
         step_.workspaces->layout().scan.listed_rows(rows) <= most_listed;
}

std::int64_t CudaScanner::scan_tokens(std::int64_t rows) const {
  return step_.layout().scan.scan_tokens(rows);
}

/// The partials of scans of this session's tokens are parts of the step.
void CudaScanner::begin_lists(std::int64_t layer, const Scan& wanted) {
  step_.progress.begin();
  const bool own = !wanted.own.empty();
  if (step_.shape.has_row_rules) {  // the caller adds it
    to_judge_ = step_.workspace->scan.given(wanted.tail);
    copied_ = false;
  } else {
    step_.of_context = step_.workspace->scan.given(wanted.tail);
    if (own) step_.of_own = step_.own->workspace.given(wanted.tail);
    if (wanted.tail) step_.sums = step_.figures_of(layer);
  }
  if (wanted.attend_found) step_.listed = step_.workspace->scan.listed();
  step_.lists_unread +=
      ((own ? 1 : 0) + (wanted.attend_found ? 0 : 1)) * std::ssize(wanted.allowed) * lists();
}

/// Begins scans over codes, each for as many tokens as one scan takes. own: of the session's own
/// rows. The host's copies that `copied` names are made beside the first scan.
void CudaScanner::scan_for(const CudaCodes& codes, std::int64_t layer, std::span<const Scan> parts,
                           bool own, StepInput copied, cudaStream_t stream) {
  CodeScan scan = codes.scan(layer);
  const auto find = [&] {
    scan.splits = codes.splits(scan.tokens);
    gpu::prepare_queries(scan, copied, stream);
    gpu::list_rows(scan, stream);
    copied = {};
    scan = codes.scan(layer);
  };
  for (const Scan& part : parts) {
    const CudaStep& of = scanner(part).step_;
    const ScanWorkspace& workspace = own ? of.own->workspace : of.workspace->scan;
    const std::span<const PositionRange> ranges = own ? part.own : part.allowed;
    const std::int64_t tokens = std::ssize(ranges) / of.attention.kv_heads;
    for (std::int64_t i = 0; i < tokens; ++i) {
      const auto add = [&] {
        const std::int64_t first = own ? of.shape.context_tokens : 0;
        return workspace.add_token(codes, part, {ranges, first}, i, of.given, scan);
      };
      if (!add()) {
        find();
        add();
      }
      if (part.attend_found && !own) workspace.attend_listed(of.rows_to_attend(layer), part, scan);
    }
  }
  find();
}

/// Beside the scan of the context. What follows on the compute stream waits for both.
void CudaScanner::scan_own_rows(std::int64_t layer, const Scan& part) {
  OwnScan& own = *step_.own;
  step_.workspace->begun.block(own.stream);
  scan_for(codes_of(own.codes), layer, {&part, 1}, true, {}, own.stream);
  own.done.record(own.stream);
  own.done.block(step_.compute);
}

void CudaScanner::drain_list(const List& list, Wait wait, ArrivingRows& rows) {
  const ScanWorkspace& workspace = list.own ? step_.own->workspace : step_.workspace->scan;
  int* const places = workspace.list(list);
  step_.progress.drain_list(places, step_.workspaces->layout().scan.list_rows(list.rows), wait,
                            rows);
  ScanWorkspace::empty(places);  // by the thread that has it in its cache
  --step_.lists_unread;
}

TailParts CudaScanner::scanned() {
  const StepLayout& layout = step_.layout();
  if (!copied_) {
    step_.copy_out(to_judge_.exact, layout.host_rare);
    step_.copy_out(to_judge_.estimate, layout.host_tail);
    TOPKV_CUDA(cudaMemcpyAsync(step_.host<TailNoise>(layout.host_tail_noise), to_judge_.noise,
                               static_cast<std::size_t>(step_.heads()) * sizeof(TailNoise),
                               cudaMemcpyDeviceToHost, step_.compute));
    step_.wait_for_copies();
    copied_ = true;
  }
  return {step_.in_memory(layout.host_tail), step_.in_memory(layout.host_rare),
          step_.host<TailNoise>(layout.host_tail_noise)};
}

}  // namespace topkv::gpu
