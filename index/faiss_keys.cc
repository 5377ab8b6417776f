#include "index/faiss_keys.h"

#include <faiss/impl/DistanceComputer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "index/key_list.h"
#include "src/core/dot.h"
#include "topkv/error.h"

namespace topkv::faiss_keys {
namespace {

/// An inner product that can be compared: of keys that are read in place it may overflow.
float comparable(float product) {
  constexpr float largest = std::numeric_limits<float>::max();
  return std::isnan(product) ? 0.0F : std::clamp(product, -largest, largest);
}

class Distance final : public faiss::DistanceComputer {
 public:
  explicit Distance(const KeyView& keys) : keys_(keys) {}

  void set_query(const float* x) override { query_ = x; }
  float operator()(std::int64_t i) override {
    return comparable(dot(query_, keys_, i));
  }
  float symmetric_dis(std::int64_t i, std::int64_t j) override {
    return comparable(dot_stored(keys_, i, j));
  }

 private:
  KeyView keys_;
  const float* query_ = nullptr;
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

void widen(const KeyView& keys, std::int64_t first, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    float* key = out + i * keys.dim;
    widen_key(keys, first + i, key);
    bound(key, keys.dim);
  }
}

std::vector<float> sample(const KeyView& keys, std::int64_t count) {
  count = std::min(count, keys.count);
  std::vector<float> out(static_cast<std::size_t>(count * keys.dim));
  std::mt19937_64 random(1);
  std::int64_t taken = 0;
  for (std::int64_t i = 0; taken < count; ++i) {  // selection sampling: Knuth, algorithm S
    const auto left = static_cast<std::uint64_t>(keys.count - i);
    if (random() % left < static_cast<std::uint64_t>(count - taken)) {
      widen(keys, i, 1, out.data() + taken * keys.dim);
      ++taken;
    }
  }
  return out;
}

faiss::DistanceComputer* Storage::get_distance_computer() const { return new Distance(*keys_); }

void Storage::search(std::int64_t, const float*, std::int64_t, float*, std::int64_t*,
                     const faiss::SearchParameters*) const {
  throw Error("faiss: the keys of a graph are not searched without the graph");
}

}  // namespace topkv::faiss_keys
