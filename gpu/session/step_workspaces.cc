#include "gpu/session/step_workspaces.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "gpu/device.h"

namespace topkv::gpu {
namespace {

constexpr std::int64_t dense_tile = 16384;  // rows of a dense layer on their way at a time

std::array<StepLayout, 2> layouts_of(const SessionShape& shape) {
  return {StepLayout(shape, 1), StepLayout(shape, shape.max_tokens)};
}

std::int64_t tile_bytes(const SessionShape& shape) {
  const AttentionShape& a = shape.attention;
  for (std::int64_t l = 0; l < a.layers; ++l) {
    if (!a.is_attention(l)) continue;
    // A layer without rows of its own may fall behind the rows in memory (CudaWindow::attend).
    if (shape.always_attended(l).window == 0 || !a.has_rows(l))
      return RowStream::bytes(a, shape.rows, dense_tile);
  }
  return 0;
}

/// The shape that workspaces are made for, without the context that sessions share.
SessionShape without_context(SessionShape shape) {
  shape.context = nullptr;
  shape.index = nullptr;
  shape.row_copy = nullptr;
  return shape;
}

}  // namespace

StepWorkspace::StepWorkspace(CudaDevice& device, const SessionShape& shape, const StepLayout& of)
    : layout(of),
      compute(device.compute_stream()),
      memory(device.allocate(of.device_bytes, "steps")),
      host_memory(of.host_bytes),
      scan(shape, of.scan, at<std::byte>(of.scan_at), host<std::byte>(of.host_scan)) {
  for (const std::int64_t turn : {of.host_begun, of.host_taken, of.host_ready})
    *host<int>(turn) = 0;
}

StepWorkspace::~StepWorkspace() {
  cudaStreamSynchronize(beside);
  cudaStreamSynchronize(compute);
}

int StepWorkspace::next_turn() {
  turn = turn == std::numeric_limits<int>::max() ? 1 : turn + 1;
  return turn;
}

StepWorkspaces::StepWorkspaces(CudaDevice& device, const SessionShape& shape)
    : device_(device),
      shape_(without_context(shape)),
      layouts_(layouts_of(shape)),
      tile_bytes_(tile_bytes(shape)),
      tile_memory_(device.allocate(tile_bytes_, "tiles of dense layers")) {
  if (tile_bytes_ > 0) {
    tiles_ =
        std::make_unique<RowStream>(shape_.attention, shape_.rows, dense_tile, tile_memory_.data());
  }
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    sizes_[i].free.push_back(make(i));
    sizes_[i].made = 1;
  }
}

std::int64_t StepWorkspaces::bytes(const SessionShape& shape) {
  std::int64_t bytes = Arena::most_counted(tile_bytes(shape));
  for (const StepLayout& layout : layouts_of(shape))
    bytes += Arena::most_counted(layout.device_bytes);
  return bytes;
}

bool StepWorkspaces::suits(const SessionShape& shape) const {
  return shape.rows == shape_.rows && tile_bytes(shape) == tile_bytes_ &&
         layouts_of(shape) == layouts_;
}

std::unique_ptr<StepWorkspace> StepWorkspaces::make(std::size_t size) const {
  return std::make_unique<StepWorkspace>(device_, shape_, layouts_[size]);
}

void StepWorkspaces::enter() {
  const std::lock_guard lock(mutex_);
  ++sessions_;
}

void StepWorkspaces::leave() noexcept {
  {
    const std::lock_guard lock(mutex_);
    --sessions_;
  }
  while (one_too_many()) {  // goes without the lock
  }
}

std::unique_ptr<StepWorkspace> StepWorkspaces::one_too_many() noexcept {
  const std::lock_guard lock(mutex_);
  for (Size& size : sizes_) {
    if (size.free.empty() || size.made <= std::max<std::int64_t>(sessions_, 1)) continue;
    std::unique_ptr<StepWorkspace> workspace = std::move(size.free.back());
    size.free.pop_back();
    --size.made;
    return workspace;
  }
  return nullptr;
}

std::unique_ptr<StepWorkspace> StepWorkspaces::take(std::int64_t tokens) {
  const std::size_t number = size_for(tokens);
  Size& size = sizes_[number];
  {
    const std::lock_guard lock(mutex_);
    if (!size.free.empty()) {
      std::unique_ptr<StepWorkspace> workspace = std::move(size.free.back());
      size.free.pop_back();
      return workspace;
    }
    size.free.reserve(static_cast<std::size_t>(size.made) + 1);  // giving it back does not throw
    ++size.made;
  }
  try {
    return make(number);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    --size.made;
    throw;
  }
}

void StepWorkspaces::give_back(std::unique_ptr<StepWorkspace> workspace) noexcept {
  {
    const std::lock_guard lock(mutex_);
    sizes_[size_for(workspace->layout.tokens)].free.push_back(std::move(workspace));
  }
  while (one_too_many()) {
  }
}

void StepWorkspaces::lose(std::unique_ptr<StepWorkspace> workspace) noexcept {
  const std::lock_guard lock(mutex_);
  --sizes_[size_for(workspace->layout.tokens)].made;
}

}  // namespace topkv::gpu
