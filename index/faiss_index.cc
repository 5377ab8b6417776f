#include "index/faiss_index.h"

#include <faiss/IVFlib.h>
#include <faiss/IndexFlat.h>
#include <faiss/IndexHNSW.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexPQ.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/IndexRefine.h>
#include <faiss/impl/DistanceComputer.h>
#include <faiss/impl/FaissException.h>
#include <faiss/impl/IDSelector.h>
#include <faiss/index_factory.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "index/approximate_index.h"
#include "index/faiss_spec.h"
#include "index/scratch.h"
#include "index/spec.h"
#include "src/core/convert.h"
#include "src/core/dot.h"
#include "src/core/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t batch_keys = 65536;  // converted to float32 and added at a time

/// FAISS's messages carry function names, files and lines: keep what follows the last "Error: ".
std::string faiss_text(const std::exception& e) {
  std::string_view text = e.what();
  const std::size_t at = text.rfind("Error: ");
  if (at != std::string_view::npos) text.remove_prefix(at + 7);
  return one_line(text);
}

/// FAISS's notion of a storage, over keys that stay where they are: a graph above it computes its
/// distances from the keys themselves, and nothing is copied.
class KeyStorage final : public faiss::Index {
 public:
  /// keys must outlive the storage; its count may grow.
  explicit KeyStorage(const KeyView* keys)
      : faiss::Index(static_cast<int>(keys->dim), faiss::METRIC_INNER_PRODUCT), keys_(keys) {}

  /// Takes note of n more keys. They are read from the view, not from x.
  void add(std::int64_t n, const float*) override { ntotal += n; }
  void reset() override { ntotal = 0; }
  /// Scores are inner products. The caller deletes it (FAISS's convention).
  faiss::DistanceComputer* get_distance_computer() const override { return new Distance(*keys_); }
  void search(std::int64_t, const float*, std::int64_t, float*, std::int64_t*,
              const faiss::SearchParameters*) const override {
    throw Error("faiss: the keys of a graph are not searched without the graph");
  }

 private:
  class Distance final : public faiss::DistanceComputer {
   public:
    explicit Distance(const KeyView& keys) : keys_(keys) {}

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

  const KeyView* keys_;
};

std::unique_ptr<faiss::Index> make_by_factory(std::int64_t dim, const std::string& factory) {
  return std::unique_ptr<faiss::Index>(
      faiss::index_factory(static_cast<int>(dim), factory.c_str(), faiss::METRIC_INNER_PRODUCT));
}

/// Keys as float32, [count, dim].
void widen(const KeyView& keys, std::int64_t first, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    to_float(keys.key(first + i), keys.dtype, keys.dim, out + i * keys.dim);
  }
}

/// At most `count` keys as float32, drawn evenly at random without replacement; always the same.
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

/// FAISS warns on stderr about small training sets; it is our choice to train on them.
void silence(faiss::Index* index) {
  if (auto* transformed = dynamic_cast<faiss::IndexPreTransform*>(index)) {
    silence(transformed->index);
  } else if (auto* refined = dynamic_cast<faiss::IndexRefine*>(index)) {
    silence(refined->base_index);
  } else if (auto* graph = dynamic_cast<faiss::IndexHNSW*>(index)) {
    silence(graph->storage);
  } else if (auto* codes = dynamic_cast<faiss::IndexPQ*>(index)) {
    codes->pq.cp.min_points_per_centroid = 1;
  } else if (auto* lists = dynamic_cast<faiss::IndexIVF*>(index)) {
    lists->cp.min_points_per_centroid = 1;
    if (auto* coded = dynamic_cast<faiss::IndexIVFPQ*>(index)) {
      coded->pq.cp.min_points_per_centroid = 1;
    }
  }
}

/// Bytes that an index holds; what FAISS does not tell is estimated from its code size.
std::int64_t bytes_held(const faiss::Index* index) {
  if (const auto* transformed = dynamic_cast<const faiss::IndexPreTransform*>(index)) {
    return bytes_held(transformed->index);
  }
  if (const auto* refined = dynamic_cast<const faiss::IndexRefine*>(index)) {
    return bytes_held(refined->base_index) + bytes_held(refined->refine_index);
  }
  if (const auto* graph = dynamic_cast<const faiss::IndexHNSW*>(index)) {
    const faiss::HNSW& hnsw = graph->hnsw;
    return bytes_held(graph->storage) +
           static_cast<std::int64_t>(hnsw.neighbors.size() * sizeof(hnsw.neighbors[0]) +
                                     hnsw.offsets.size() * sizeof(hnsw.offsets[0]) +
                                     hnsw.levels.size() * sizeof(hnsw.levels[0]));
  }
  if (const auto* lists = dynamic_cast<const faiss::IndexIVF*>(index)) {
    const auto entry = static_cast<std::int64_t>(lists->code_size + sizeof(std::int64_t));
    return bytes_held(lists->quantizer) + lists->ntotal * entry;
  }
  if (dynamic_cast<const KeyStorage*>(index) != nullptr) return 0;
  try {
    return index->ntotal * static_cast<std::int64_t>(index->sa_code_size());
  } catch (const faiss::FaissException&) {  // an index without a code of fixed size
    return index->ntotal * index->d * 4;
  }
}

class FaissIndex final : public ApproximateIndex {
 public:
  explicit FaissIndex(FaissSpec spec) : spec_(std::move(spec)) {}

  std::int64_t memory() const override {
    return static_cast<std::int64_t>(sizeof *this) + (index_ ? bytes_held(index_.get()) : 0);
  }
  std::string spec() const override { return spec_.text(); }

 protected:
  void insert(std::int64_t first) override {
    const OneOpenmpThread one_openmp_thread;
    const OneBlasThread one_blas_thread;
    try {
      if (!index_) make();
      std::vector<float> batch;
      for (; first < keys().count; first += batch_keys) {
        const std::int64_t count = std::min(batch_keys, keys().count - first);
        batch.resize(static_cast<std::size_t>(count * keys().dim));
        widen(keys(), first, count, batch.data());
        index_->add(count, batch.data());
      }
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      throw Error(fmt::format("{}: FAISS: {}", spec(), faiss_text(e)));
    }
    try_parameters();
  }

  void candidates(const float* query, PositionRange allowed, std::int64_t want,
                  std::vector<std::int64_t>& found) const override {
    const std::int64_t count = spec_.is_graph ? std::max(want, ef(want)) : want;
    const Scratch<std::vector<float>> distances;
    distances->resize(static_cast<std::size_t>(count));
    found.assign(static_cast<std::size_t>(count), -1);
    try {
      search(query, allowed, count, distances->data(), found.data());
    } catch (const std::exception& e) {
      throw Error(fmt::format("{}: FAISS: {}", spec(), faiss_text(e)));
    }
  }

 private:
  /// Makes the index for the keys that are there, and trains it on a sample of them.
  void make() {
    const KeyView& view = keys();
    if (spec_.graph_links > 0) {
      storage_ = std::make_unique<KeyStorage>(&view);
      index_ =
          std::make_unique<faiss::IndexHNSW>(storage_.get(), static_cast<int>(spec_.graph_links));
    } else {
      // About sqrt(N) lists: reading the centroids and reading a few lists then cost alike.
      const auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(view.count)));
      index_ = make_by_factory(view.dim, spec_.factory_with(std::max<std::int64_t>(1, root)));
    }
    silence(index_.get());
    std::int64_t sample_keys = 65536;
    if (auto* graph = dynamic_cast<faiss::IndexHNSW*>(index_.get())) {
      graph->hnsw.efConstruction = static_cast<int>(spec_.efc);
    }
    if (const auto* lists = faiss::ivflib::try_extract_index_ivf(index_.get())) {
      const auto list_count = static_cast<std::int64_t>(lists->nlist);
      if (list_count > view.count) {
        throw InvalidArgument(fmt::format(
            "{}: {} lists need at least as many keys, there are {}; ask for fewer lists, or write "
            "IVF without a number",
            spec(), list_count, view.count));
      }
      sample_keys = std::max(sample_keys, 64 * list_count);
    }
    if (!index_->is_trained) {
      const std::vector<float> points = sample(view, sample_keys);
      index_->train(static_cast<std::int64_t>(points.size()) / view.dim, points.data());
    }
  }

  /// Some indices of some FAISS versions take no parameters per search. Those keep what is set
  /// here.
  void try_parameters() {
    takes_parameters_ = true;
    std::vector<float> query(static_cast<std::size_t>(keys().dim), 1.0F);
    float distance = 0;
    std::int64_t label = -1;
    try {
      search(query.data(), {0, keys().count}, 1, &distance, &label);
    } catch (const faiss::FaissException&) {
      takes_parameters_ = false;
      if (auto* lists = faiss::ivflib::try_extract_index_ivf(index_.get())) {
        lists->nprobe = static_cast<std::size_t>(nprobe(*lists, 128));
      }
    }
  }

  void search(const float* query, PositionRange allowed, std::int64_t count, float* distances,
              std::int64_t* labels) const {
    if (!takes_parameters_) {
      index_->search(1, query, count, distances, labels);
      return;
    }
    faiss::IDSelectorRange selector(allowed.begin, allowed.end);
    const bool all = allowed.size() == keys().count;
    if (const auto* lists = faiss::ivflib::try_extract_index_ivf(index_.get())) {
      faiss::SearchParametersIVF parameters;
      parameters.nprobe = static_cast<std::size_t>(nprobe(*lists, count));
      if (!all) parameters.sel = &selector;
      index_->search(1, query, count, distances, labels, &parameters);
    } else if (spec_.is_graph) {
      // No selector: FAISS's graph search (1.7.3) stops early with one, and finds too little.
      faiss::SearchParametersHNSW parameters;
      parameters.efSearch = static_cast<int>(count);
      index_->search(1, query, count, distances, labels, &parameters);
    } else {
      faiss::SearchParameters parameters;
      if (!all) parameters.sel = &selector;
      index_->search(1, query, count, distances, labels, &parameters);
    }
  }

  /// How many lists to read to find `want` keys.
  std::int64_t nprobe(const faiss::IndexIVF& lists, std::int64_t want) const {
    const auto list_count = static_cast<std::int64_t>(lists.nlist);
    const std::int64_t holding = (want * list_count + keys().count - 1) / keys().count;
    // The best keys for one of attention's queries are spread over many lists.
    const std::int64_t chosen = spec_.nprobe > 0
                                    ? std::max(spec_.nprobe, holding)
                                    : std::max({std::int64_t{16}, 4 * holding, list_count / 8});
    return std::min(chosen, list_count);
  }

  std::int64_t ef(std::int64_t want) const {
    // Attention's queries lie far from the keys that a graph is built of: they need a wide search.
    return spec_.ef > 0 ? spec_.ef : std::max<std::int64_t>(256, 8 * want);
  }

  FaissSpec spec_;
  std::unique_ptr<KeyStorage> storage_;  // of an in-place graph; outlives index_
  std::unique_ptr<faiss::Index> index_;
  bool takes_parameters_ = true;
};

/// FAISS reads a factory string only together with a dimension. Takes the string if it suits any of
/// the common ones; whether it suits the keys shows when they are known.
void check_factory(std::string_view spec, const FaissSpec& parsed) {
  std::string refusal;
  for (const std::int64_t dim : {128, 96, 80, 256}) {
    try {
      make_by_factory(dim, parsed.factory_with(1));
      return;
    } catch (const std::exception& e) {
      if (refusal.empty()) refusal = faiss_text(e);
    }
  }
  throw InvalidArgument(
      fmt::format("index \"{}\": FAISS does not take \"{}\" ({}); a factory string is for example "
                  "IVF,SQ8 or IVF4096,SQ8 or HNSW32",
                  one_line(spec), one_line(parsed.factory), refusal));
}

}  // namespace

std::unique_ptr<KeyIndex> make_faiss_index(std::string_view spec, std::string_view text) {
  FaissSpec parsed = FaissSpec::parse(spec, text);
  check_factory(spec, parsed);
  return std::make_unique<FaissIndex>(std::move(parsed));
}

}  // namespace topkv
