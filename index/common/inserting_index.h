// What indices that insert keys have in common: keys stay where they lie, and are inserted by
// build, and by add after it, or not at all.
#pragma once

#include <atomic>
#include <cstdint>
#include <stop_token>

#include "index/common/head_index.h"
#include "index/common/in_place_keys.h"
#include "src/core/format/archive.h"
#include "topkv/key_index.h"

namespace topkv {

class InsertingIndex : public HeadIndex {
 public:
  void add(const KeyView& keys, const std::stop_token& stop) final;
  void build(const std::stop_token& stop) final;
  std::int64_t inserted() const final { return inserted_.load(std::memory_order_relaxed); }
  std::int64_t size() const final { return keys_.size(); }

  void transfer(const KeyView& keys, Archive& archive) final;

 protected:
  const InPlaceKeys& key_list() const { return keys_; }
  const KeyView& keys() const { return keys_.view(); }
  bool built() const { return built_; }

  /// Inserts keys first..count of keys(), learning from them if nothing was inserted before, and
  /// notes them. Called by build, and by add after build; never for no keys. Ends soon with Stopped
  /// when that is requested. After a call that throws comes clear.
  virtual void insert(std::int64_t first, const std::stop_token& stop) = 0;

  /// Forgets all that was inserted.
  virtual void clear() = 0;

  /// What insert has learned of keys(), for a file; none of it where there are no keys. Reading:
  /// checks it (Archive).
  virtual void fields(Archive& archive) = 0;

  /// So many more keys are inserted. Safe from many threads.
  void note_inserted(std::int64_t count) { inserted_.fetch_add(count, std::memory_order_relaxed); }

  /// Throws Stopped when a stop was requested.
  void check_stop(const std::stop_token& stop) const;

 private:
  void insert_or_clear(std::int64_t first, const std::stop_token& stop);

  InPlaceKeys keys_;
  bool built_ = false;
  std::atomic<std::int64_t> inserted_ = 0;
};

}  // namespace topkv
