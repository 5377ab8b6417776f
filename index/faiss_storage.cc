#include "index/faiss_storage.h"

#include "src/core/dot.h"
#include "topkv/error.h"

namespace topkv {
namespace {

class KeyDistance final : public faiss::DistanceComputer {
 public:
  explicit KeyDistance(const KeyView& keys) : keys_(keys) {}

  void set_query(const float* x) override { query_ = x; }
  float operator()(std::int64_t i) override {
    return dot(query_, keys_.key(i), keys_.dtype, keys_.dim);
  }
  float symmetric_dis(std::int64_t i, std::int64_t j) override {
    return dot_stored(keys_.key(i), keys_.key(j), keys_.dtype, keys_.dim);
  }

 private:
  KeyView keys_;
  const float* query_ = nullptr;
};

}  // namespace

FaissStorage::FaissStorage(const KeyView* keys)
    : faiss::Index(static_cast<int>(keys->dim), faiss::METRIC_INNER_PRODUCT), keys_(keys) {}

void FaissStorage::add(std::int64_t n, const float*) { ntotal += n; }

void FaissStorage::reset() { ntotal = 0; }

faiss::DistanceComputer* FaissStorage::get_distance_computer() const {
  return new KeyDistance(*keys_);
}

void FaissStorage::search(std::int64_t, const float*, std::int64_t, float*, std::int64_t*,
                          const faiss::SearchParameters*) const {
  throw Error("faiss: the keys of a graph are not searched without the graph");
}

}  // namespace topkv
