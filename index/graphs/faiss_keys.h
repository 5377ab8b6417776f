// Keys as FAISS is given them: less their mean, for FAISS's graphs and quantisers find and keep
// little of keys with a strong common mean, as keys after RoPE have one. One vector taken off all
// keys changes no ranking by inner products.
//
// FAISS ends the process (an assertion, an exception in an OpenMP
// region, a label of -1 used as a place) when a sum of squares is no longer finite, so it never
// sees large numbers: a key or a query beyond `most` is scaled down as a whole, by a power of two.
// That may cost candidates; scores are taken from the keys themselves.
#pragma once

#include <faiss/Index.h>

#include <cstdint>
#include <vector>

#include "topkv/view.h"

namespace topkv::faiss_keys {

/// What SQfp16 can hold; sums of squares over any dim and number of keys stay far from float32's
/// limit.
inline constexpr float most = 32768.0F;

/// Scales x [dim] down when an element is beyond `most`, and tells whether it did.
bool bound(float* x, std::int64_t dim);

/// The mean of the keys as bounded float32, [dim]. Throws InvalidArgument when a value is not
/// finite. REQUIRES: some keys.
std::vector<float> mean_of(const KeyView& keys);

/// Keys first to first + count - 1 less the mean as bounded float32, [count, dim]. mean: [dim], or
/// empty for 0. Throws InvalidArgument when a value is not finite.
void widen(const KeyView& keys, std::int64_t first, std::int64_t count,
           const std::vector<float>& mean, float* out);

/// At most `count` keys as widen gives them, drawn evenly at random without replacement; always the
/// same. Throws as widen does.
std::vector<float> sample(const KeyView& keys, std::int64_t count, const std::vector<float>& mean);

/// FAISS's notion of a storage, over keys that stay where they are: a graph above it computes its
/// distances from the keys themselves, and nothing is copied.
class Storage final : public faiss::Index {
 public:
  /// keys and mean, as widen takes it, must outlive the storage; the keys' count may grow.
  Storage(const KeyView* keys, const std::vector<float>* mean)
      : faiss::Index(static_cast<int>(keys->dim), faiss::METRIC_INNER_PRODUCT),
        keys_(keys),
        mean_(mean) {}

  /// Takes note of n more keys. They are read from the view, not from x.
  void add(std::int64_t n, const float*) override { ntotal += n; }
  void reset() override { ntotal = 0; }
  /// Scores are inner products with keys less their mean. The caller deletes it (FAISS's
  /// convention).
  faiss::DistanceComputer* get_distance_computer() const override;
  void search(std::int64_t, const float*, std::int64_t, float*, std::int64_t*,
              const faiss::SearchParameters*) const override;

 private:
  const KeyView* keys_;
  const std::vector<float>* mean_;
};

}  // namespace topkv::faiss_keys
