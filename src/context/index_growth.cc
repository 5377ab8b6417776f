#include "src/context/index_growth.h"

#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t worth_inserting = 32768;  // keys of a head

}  // namespace

IndexGrowth::IndexGrowth(const std::vector<std::string>& specs, ContextBuilder& builder)
    : builder_(builder), states_(builder.states()), shape_(builder.shape()) {
  for (const std::string& text : specs) {
    const IndexSpec spec(text);
    const bool seen = std::any_of(indices_.begin(), indices_.end(),
                                  [&](const auto& index) { return index->spec == spec; });
    // "exact" reads rows in place: every context has it.
    if (spec.grows() && !seen && spec.text() != "exact") {
      indices_.push_back(std::make_shared<SegmentIndex>(spec, shape_));
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
  for (const auto& index : indices_) total += index->keys(states_->tokens(0));
  const auto report = [&] {
    std::int64_t done = 0;
    for (const auto& index : indices_) done += index->inserted();
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
  Segment segment = *context->segment_;
  segment.indices.insert(segment.indices.end(), indices_.begin(), indices_.end());
  return std::shared_ptr<const Context>(new Context(shape_, std::move(segment)));
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
    beside.execute([&] { inserted = insert(worth_inserting); });
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
  for (const auto& grown : indices_) {
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      const auto& heads = grown->layers[static_cast<std::size_t>(layer)].heads;
      for (std::int64_t head = 0; head < std::ssize(heads); ++head) {
        KeyIndex* index = heads[static_cast<std::size_t>(head)].get();
        const RowsView rows = states_->rows().rows(layer, head);
        if (rows.count() - index->size() < at_least) continue;
        pieces.push_back({index, rows.part({index->size(), rows.count()}).keys});
      }
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
