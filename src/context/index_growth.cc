#include "src/context/index_growth.h"

#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "src/core/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t segment = 32768;  // keys of a head that are worth an insertion

}  // namespace

GrownIndex make_indices(const std::string& spec, const AttentionShape& shape) {
  GrownIndex indices{spec, {}};
  for (std::int64_t i = 0; i < shape.layers * shape.kv_heads; ++i) {
    const bool sliding = shape.window_of(i / shape.kv_heads) > 0;
    indices.heads.push_back(sliding ? nullptr : make_index(spec));
  }
  return indices;
}

IndexGrowth::IndexGrowth(const std::vector<std::string>& specs, const RowStore& store,
                         const AttentionShape& shape, const DevicePrefill& prefill)
    : store_(store), shape_(shape), prefill_(prefill) {
  for (const std::string& spec : specs) {
    if (!make_index(spec)->grows()) continue;
    indices_.push_back(make_indices(spec, shape));
  }
  if (!indices_.empty()) thread_ = std::thread([this] { run(); });
}

IndexGrowth::~IndexGrowth() {
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
  }
  stop();
}

void IndexGrowth::stop() {
  {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::vector<GrownIndex> IndexGrowth::finish() {
  stop();
  if (error_) std::rethrow_exception(error_);
  return std::move(indices_);
}

void IndexGrowth::run() {
  try {
    // One core stays with the thread that gives the device its work, until that is done.
    const auto cores = static_cast<int>(std::max<std::int64_t>(1, thread_count() - 1));
    oneapi::tbb::task_arena beside(cores);
    for (;;) {
      bool last = false;
      {
        const std::lock_guard lock(mutex_);
        if (abandoned_) return;
        last = finishing_;
      }
      if (last) {
        while (insert(1)) {
        }
        return;
      }
      bool inserted = false;
      beside.execute([&] { inserted = insert(segment); });
      if (inserted) continue;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(20), [&] { return finishing_; });
    }
  } catch (...) {
    error_ = std::current_exception();
  }
}

bool IndexGrowth::insert(std::int64_t at_least) {
  struct Piece {
    KeyIndex* index;
    KeyView keys;
  };
  std::vector<Piece> pieces;
  for (const GrownIndex& grown : indices_) {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(grown.heads.size()); ++i) {
      KeyIndex* index = grown.heads[static_cast<std::size_t>(i)].get();
      if (index == nullptr) continue;
      const std::int64_t layer = i / shape_.kv_heads;
      const std::int64_t fresh = prefill_.arrived(layer) - index->size();
      if (fresh < at_least) continue;
      const std::int64_t stride = shape_.head_dim * bytes_of(store_.dtype());
      const std::byte* first =
          store_.arrays(layer, i % shape_.kv_heads).keys + index->size() * stride;
      pieces.push_back({index, {first, store_.dtype(), fresh, shape_.head_dim, stride}});
    }
  }
  parallel_for(static_cast<std::int64_t>(pieces.size()), 1,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const Piece& piece = pieces[static_cast<std::size_t>(i)];
                   const bool built = piece.index->size() > 0;
                   piece.index->add(piece.keys);
                   if (!built) piece.index->build();
                 }
               });
  return !pieces.empty();
}

}  // namespace topkv
