#include "index/common/inserting_index.h"

#include <fmt/format.h>

#include "topkv/error.h"

namespace topkv {

void InsertingIndex::add(const KeyView& keys, const std::stop_token& stop) {
  const InPlaceKeys before = keys_;
  keys_.append(keys);
  if (!built_ || keys_.size() == before.size()) return;
  try {
    insert_or_clear(before.size(), stop);
  } catch (...) {
    keys_ = before;  // the memory of keys that were not taken may go
    throw;
  }
}

void InsertingIndex::build(const std::stop_token& stop) {
  if (built_) {
    throw InvalidArgument(spec() + ": build called twice; keys added after it are searchable");
  }
  if (keys_.size() > 0) insert_or_clear(0, stop);
  built_ = true;
}

void InsertingIndex::insert_or_clear(std::int64_t first, const std::stop_token& stop) {
  try {
    insert(first, stop);
    check_stop(stop);  // what ends an insertion may take long, and ask nothing
  } catch (...) {
    built_ = false;
    clear();
    inserted_ = 0;
    throw;
  }
}

void InsertingIndex::transfer(const KeyView& keys, Archive& archive) {
  if (!archive.reading()) {
    if (size() > 0) fields(archive);
    return;
  }
  keys_.append(keys);
  try {
    if (size() > 0) fields(archive);
  } catch (...) {
    clear();
    keys_ = {};
    throw;
  }
  inserted_ = size();
  built_ = true;
}

void InsertingIndex::check_stop(const std::stop_token& stop) const {
  if (stop.stop_requested()) {
    throw Stopped(fmt::format("{}: stopped after {} of {} keys", spec(), inserted(), size()));
  }
}

}  // namespace topkv
