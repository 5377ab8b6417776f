// The exact index: no structure at all. A search scores every allowed key where it lies, on all
// cores, and keeps the best k. It is bound by the bandwidth at which memory gives up the keys.
//
// Results do not depend on the number of threads, nor a query's on the queries beside it. (Blocks
// of many queries gain nothing from matrix multiplication: the keys would have to be widened first,
// and the pairwise kernel runs at the same speed from registers.)
#pragma once

#include <atomic>

#include "index/common/head_index.h"
#include "index/common/in_place_keys.h"

namespace topkv {

class ExactIndex final : public HeadIndex {
 public:
  void add(const KeyView& keys, const std::stop_token&) override;
  void build(const std::stop_token&) override;
  void search(const QueryBlock& queries, std::int64_t k, SearchResult& result) const override;
  std::int64_t inserted() const override { return inserted_.load(std::memory_order_relaxed); }
  std::int64_t size() const override { return keys_.size(); }
  std::int64_t memory() const override { return static_cast<std::int64_t>(sizeof *this); }
  std::int64_t bytes_searched() const override {
    return size() == 0 ? 0 : size() * vector_bytes(keys_.view().dtype, keys_.view().dim);
  }
  std::string spec() const override { return "exact"; }
  /// A file keeps nothing: the index has only keys.
  void transfer(const KeyView& keys, Archive& archive) override;

 private:
  InPlaceKeys keys_;
  bool built_ = false;
  std::atomic<std::int64_t> inserted_ = 0;
};

std::shared_ptr<const IndexFactory> exact_factory();

}  // namespace topkv
