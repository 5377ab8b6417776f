#include "index/graphs/faiss_keys.h"

#include <faiss/impl/DistanceComputer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "index/common/in_place_keys.h"
#include "src/core/math/dot.h"
#include "topkv/error.h"

namespace topkv::faiss_keys {
namespace {

/// An inner product that can be compared: of keys that are read in place it may overflow.
float comparable(float product) {
  constexpr float largest = std::numeric_limits<float>::max();
  return std::isnan(product) ? 0.0F : std::clamp(product, -largest, largest);
}

/// One thread's, as FAISS has them. Products of a query and of two keys are on one scale: FAISS
/// compares them when it chooses links.
class Distance final : public faiss::DistanceComputer {
 public:
  Distance(const KeyView& keys, const std::vector<float>& mean) : keys_(keys), mean_(mean) {}

  void set_query(const float* x) override {
    query_ = x;
    of_mean_ = std::inner_product(mean_.begin(), mean_.end(), x, 0.0);
  }
  float operator()(std::int64_t i) override {
    return comparable(static_cast<float>(dot(query_, keys_, i) - of_mean_));
  }
  float symmetric_dis(std::int64_t i, std::int64_t j) override {
    if (mean_.empty()) return comparable(dot_stored(keys_, i, j));
    const std::vector<float>& a = one_.at(i, *this);
    const std::vector<float>& b = other_.at(j, *this);
    return dot(a.data(),
               {reinterpret_cast<const std::byte*>(b.data()), DType::f32, 1, keys_.dim,
                keys_.dim * bytes_of(DType::f32)},
               0);
  }

 private:
  /// The key that was asked for last, less the mean: FAISS asks for one beside many others.
  struct Centred {
    std::int64_t position = -1;
    std::vector<float> key;

    const std::vector<float>& at(std::int64_t wanted, const Distance& of) {
      if (position == wanted) return key;
      key.resize(static_cast<std::size_t>(of.keys_.dim));
      widen(of.keys_, wanted, 1, of.mean_, key.data());
      position = wanted;
      return key;
    }
  };

  KeyView keys_;
  const std::vector<float>& mean_;
  const float* query_ = nullptr;
  double of_mean_ = 0;  // the query's product with the mean
  Centred one_;
  Centred other_;
};

}  // namespace

bool bound(float* x, std::int64_t dim) {
  float largest = 0;
  for (std::int64_t i = 0; i < dim; ++i) largest = std::max(largest, std::abs(x[i]));
  if (largest <= most) return false;
  const float scale = std::ldexp(1.0F, std::ilogb(most) - std::ilogb(largest) - 1);
  for (std::int64_t i = 0; i < dim; ++i) x[i] *= scale;
  return true;
}

std::vector<float> mean_of(const KeyView& keys) {
  return mean_of_keys(keys, [&](std::int64_t i, float* out) { widen(keys, i, 1, {}, out); });
}

void widen(const KeyView& keys, std::int64_t first, std::int64_t count,
           const std::vector<float>& mean, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    float* key = out + i * keys.dim;
    widen_key(keys, first + i, key);
    bound(key, keys.dim);
    if (mean.empty()) continue;
    for (std::size_t j = 0; j < mean.size(); ++j) key[j] -= mean[j];
    bound(key, keys.dim);
  }
}

std::vector<float> sample(const KeyView& keys, std::int64_t count, const std::vector<float>& mean) {
  count = std::min(count, keys.count);
  std::vector<float> out(static_cast<std::size_t>(count * keys.dim));
  std::mt19937_64 random(1);
  std::int64_t taken = 0;
  for (std::int64_t i = 0; taken < count; ++i) {  // selection sampling: Knuth, algorithm S
    const auto left = static_cast<std::uint64_t>(keys.count - i);
    if (random() % left < static_cast<std::uint64_t>(count - taken)) {
      widen(keys, i, 1, mean, out.data() + taken * keys.dim);
      ++taken;
    }
  }
  return out;
}

faiss::DistanceComputer* Storage::get_distance_computer() const {
  return new Distance(*keys_, *mean_);
}

void Storage::search(std::int64_t, const float*, std::int64_t, float*, std::int64_t*,
                     const faiss::SearchParameters*) const {
  throw Error("faiss: the keys of a graph are not searched without the graph");
}

}  // namespace topkv::faiss_keys
