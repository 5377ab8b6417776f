// FAISS's notion of a storage, over keys that stay where they are: a graph above it computes its
// distances from the keys themselves, and nothing is copied.
#pragma once

#include <faiss/Index.h>
#include <faiss/impl/DistanceComputer.h>

#include "topkv/view.h"

namespace topkv {

class FaissStorage final : public faiss::Index {
 public:
  /// keys must outlive the storage; its count may grow.
  explicit FaissStorage(const KeyView* keys);

  /// Takes note of n more keys. They are read from the view, not from x.
  void add(std::int64_t n, const float* x) override;
  void reset() override;
  /// Scores are inner products. The caller deletes it (FAISS's convention).
  faiss::DistanceComputer* get_distance_computer() const override;
  /// Not offered: a graph searches through the distance computer.
  void search(std::int64_t n, const float* x, std::int64_t k, float* distances,
              std::int64_t* labels, const faiss::SearchParameters* params) const override;

 private:
  const KeyView* keys_;
};

}  // namespace topkv
