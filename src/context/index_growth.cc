#include "src/context/index_growth.h"

#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "index/index_kind.h"
#include "src/core/threads.h"
#include "src/core/watched.h"

namespace topkv {
namespace {

constexpr std::int64_t segment = 32768;  // keys of a head that are worth an insertion

}  // namespace

std::int64_t GrownIndex::inserted() const {
  std::int64_t sum = 0;
  for (const auto& index : heads) sum += index ? index->inserted() : 0;
  return sum;
}

std::int64_t GrownIndex::memory() const {
  std::int64_t sum = 0;
  for (const auto& index : heads) sum += index ? index->memory() : 0;
  return sum + tail_memory();
}

std::int64_t GrownIndex::tail_memory() const {
  std::int64_t sum = 0;
  for (const auto& tail : tails) sum += tail ? tail->memory() : 0;
  return sum;
}

std::int64_t GrownIndex::keys(std::int64_t tokens) const {
  const auto count =
      std::count_if(heads.begin(), heads.end(), [](const auto& index) { return index != nullptr; });
  return count * tokens;
}

GrownIndex make_indices(const IndexSpec& spec, const AttentionShape& shape) {
  GrownIndex indices{spec, {}, {}};
  for (std::int64_t i = 0; i < shape.layers * shape.kv_heads; ++i) {
    const bool sliding = shape.window_of(i / shape.kv_heads) > 0;
    indices.heads.push_back(sliding ? nullptr : spec.kind().make());
  }
  indices.tails.resize(indices.heads.size());
  return indices;
}

void build_watched(const std::function<void(const std::stop_token&)>& build,
                   const GrownIndex& indices, std::int64_t tokens, const ProgressFn& progress) {
  const std::int64_t total = indices.keys(tokens);
  run_watched(build, [&] {
    const std::int64_t done = indices.inserted();
    if (done < total) progress({"index", "keys", done, total});
  });
  progress({"index", "keys", total, total});
}

IndexGrowth::IndexGrowth(const std::vector<std::string>& specs, ContextBuilder& builder)
    : builder_(builder), store_(builder.store()), shape_(builder.shape()) {
  for (const std::string& text : specs) {
    const IndexSpec spec(text);
    const bool seen = std::any_of(indices_.begin(), indices_.end(),
                                  [&](const GrownIndex& grown) { return grown.spec == spec; });
    // "exact" reads rows in place: every context has it.
    if (spec.grows() && !seen && spec.text() != "exact") {
      indices_.push_back(make_indices(spec, shape_));
    }
  }
  if (!indices_.empty()) thread_ = std::thread([this] { run(); });
}

IndexGrowth::~IndexGrowth() {
  stop_.request_stop();
  wait_for_rest({});
}

/// Tells the thread that all rows have arrived, and waits for it.
void IndexGrowth::wait_for_rest(const ProgressFn& progress) {
  if (!thread_.joinable()) return;
  std::unique_lock lock(mutex_);
  finishing_ = true;
  changed_.notify_all();
  std::int64_t total = 0;
  for (const GrownIndex& grown : indices_) total += grown.keys(store_->size(0));
  const auto report = [&] {
    std::int64_t done = 0;
    for (const GrownIndex& grown : indices_) done += grown.inserted();
    if (progress && done < total) progress({"index", "keys", done, total});
  };
  while (!changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return ended_; })) {
    lock.unlock();
    report();
    lock.lock();
  }
  lock.unlock();
  thread_.join();
  if (progress && !error_) progress({"index", "keys", total, total});
}

std::shared_ptr<const Context> IndexGrowth::freeze(const ProgressFn& progress) {
  const auto context = builder_.freeze();  // all rows have arrived
  wait_for_rest(progress);                 // when progress throws, the destructor ends the thread
  if (error_) std::rethrow_exception(error_);
  return context->with_grown(std::move(indices_));
}

void IndexGrowth::run() {
  try {
    insert_all();
  } catch (...) {
    error_ = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void IndexGrowth::insert_all() {
  // One core stays with the thread that gives the device its work, until that is done.
  const auto cores = static_cast<int>(std::max<std::int64_t>(1, thread_count() - 1));
  oneapi::tbb::task_arena beside(cores);
  while (!stop_.stop_requested()) {
    bool last = false;
    {
      const std::lock_guard lock(mutex_);
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
      const std::int64_t fresh = store_->size(layer) - index->size();
      if (fresh < at_least) continue;
      const std::int64_t stride = shape_.head_dim * bytes_of(store_->dtype());
      const std::byte* first =
          store_->arrays(layer, i % shape_.kv_heads).keys + index->size() * stride;
      pieces.push_back({index, {first, store_->dtype(), fresh, shape_.head_dim, stride}});
    }
  }
  parallel_for(static_cast<std::int64_t>(pieces.size()), 1,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const Piece& piece = pieces[static_cast<std::size_t>(i)];
                   const bool built = piece.index->size() > 0;
                   piece.index->add(piece.keys, stop_.get_token());
                   if (!built) piece.index->build(stop_.get_token());
                 }
               });
  return !pieces.empty();
}

}  // namespace topkv
