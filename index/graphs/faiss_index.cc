#include "index/graphs/faiss_index.h"

#include <faiss/IVFlib.h>
#include <faiss/IndexHNSW.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexPQ.h>
#include <faiss/impl/FaissException.h>
#include <faiss/impl/IDSelector.h>
#include <faiss/invlists/InvertedLists.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "index/common/approximate_index.h"
#include "index/common/index_factory.h"
#include "index/common/scratch.h"
#include "index/common/spec.h"
#include "index/graphs/faiss_file.h"
#include "index/graphs/faiss_interrupt.h"
#include "index/graphs/faiss_keys.h"
#include "index/graphs/faiss_make.h"
#include "index/graphs/faiss_spec.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Keys converted to float32 and added at a time: few, so that inserted() tells how far a build is.
constexpr std::int64_t batch_codes = 8192;
constexpr std::int64_t batch_nodes = 1024;

/// FAISS's messages carry function names, files and lines: keep what follows the last "Error: ".
std::string faiss_text(const std::exception& e) {
  std::string_view text = e.what();
  const std::size_t at = text.rfind("Error: ");
  if (at != std::string_view::npos) text.remove_prefix(at + 7);
  return one_line(text);
}

/// What a vector of FAISS holds. Some of them are of other types in other versions.
template <class Vector>
std::int64_t bytes_of_vector(const Vector& vector) {
  if constexpr (requires { vector.capacity(); }) {
    return static_cast<std::int64_t>(vector.capacity() * sizeof(vector[0]));
  } else {
    return static_cast<std::int64_t>(vector.size() * sizeof(vector[0]));
  }
}

template <class Vector>
void trim(Vector& vector) {
  if constexpr (requires { vector.shrink_to_fit(); }) vector.shrink_to_fit();
}

/// Calls body with every vector that grows with the keys.
template <class Body>
void each_vector(faiss::Index* index, const Body& body) {
  if (auto* graph = dynamic_cast<faiss::IndexHNSW*>(index)) {
    body(graph->hnsw.neighbors);
    body(graph->hnsw.offsets);
    body(graph->hnsw.levels);
  } else if (auto* lists = dynamic_cast<faiss::IndexIVF*>(index)) {
    each_vector(lists->quantizer, body);
    if (auto* arrays = dynamic_cast<faiss::ArrayInvertedLists*>(lists->invlists)) {
      body(arrays->codes);
      body(arrays->ids);
      for (auto& codes : arrays->codes) body(codes);
      for (auto& ids : arrays->ids) body(ids);
    }
  } else if (auto* codes = dynamic_cast<faiss::IndexFlatCodes*>(index)) {
    body(codes->codes);
  }
}

class FaissIndex final : public ApproximateIndex {
 public:
  explicit FaissIndex(FaissSpec spec) : spec_(std::move(spec)) {}

  std::int64_t memory() const override {
    auto bytes = static_cast<std::int64_t>(sizeof *this) + rare_memory() + bytes_of_vector(mean_);
    each_vector(index_.get(), [&](const auto& vector) { bytes += bytes_of_vector(vector); });
    if (const auto* codes = dynamic_cast<const faiss::IndexPQ*>(index_.get())) {
      bytes += bytes_of_vector(codes->pq.centroids);
    } else if (const auto* lists = dynamic_cast<const faiss::IndexIVFPQ*>(index_.get())) {
      bytes += bytes_of_vector(lists->pq.centroids);
    }
    return bytes;
  }
  std::string spec() const override { return spec_.text(); }

 protected:
  void insert_judged(std::int64_t first, std::vector<float>& residuals,
                     const std::stop_token& stop) override {
    const OneOpenmpThread one_openmp_thread;
    const OneBlasThread one_blas_thread;
    const bool fresh = !index_;
    const std::int64_t added = first;
    try {
      const FaissInterrupt interrupt(stop);
      if (fresh) make();
      const std::int64_t most = spec_.links > 0 ? batch_nodes : batch_codes;
      std::vector<float> batch;
      for (; first < keys().count; first += most) {
        check_stop(stop);
        const std::int64_t count = std::min(most, keys().count - first);
        batch.resize(static_cast<std::size_t>(count * keys().dim));
        faiss_keys::widen(keys(), first, count, mean_, batch.data());
        add_batch(count, batch.data(), residuals);
        note_inserted(count);
      }
    } catch (const Error&) {
      throw;
    } catch (const faiss::FaissException& e) {
      check_stop(stop);
      throw Error(fmt::format("{}: FAISS: {}", spec(), faiss_text(e)));
    }
    if (fresh) {
      each_vector(index_.get(), [](auto& vector) { trim(vector); });
      try_parameters();
    }
    if (const auto* graph = dynamic_cast<const faiss::IndexHNSW*>(index_.get())) {
      const faiss::HNSW& hnsw = graph->hnsw;
      link_residuals_.find(
          keys(), added, [](std::int64_t node) { return node; },
          [&](std::int64_t node, const auto& visit) {
            std::size_t begin = 0;
            std::size_t end = 0;
            hnsw.neighbor_range(node, 0, &begin, &end);
            for (std::size_t at = begin; at < end && hnsw.neighbors[at] >= 0; ++at)
              visit(hnsw.neighbors[at]);
          },
          residuals);
    }
  }

  void structure_fields(Archive& archive) override {
    const OneOpenmpThread one_openmp_thread;
    const OneBlasThread one_blas_thread;
    try {
      KnownLength first;
      if (spec_.centres()) first = mean_fields(keys().dim, mean_, archive);
      if (spec_.links > 0) {
        if (archive.reading()) make_graph();
        faiss_graph_fields(dynamic_cast<faiss::IndexHNSW&>(*index_), keys().count, first, archive);
        link_residuals_.fields(keys().count, archive);
      } else {
        faiss_fields(spec_, keys().dim, keys().count, first, index_, archive);
      }
      if (archive.reading()) try_parameters();
    } catch (const faiss::FaissException& e) {
      archive.check(false, "FAISS: " + faiss_text(e));
    }
  }

  void clear_structure() override {
    index_.reset();
    storage_.reset();
    mean_ = {};
    link_residuals_.clear();
  }

  void candidates(const float* query, PositionRange allowed, std::int64_t want,
                  std::vector<std::int64_t>& found) const override {
    const std::int64_t count = spec_.links > 0 ? std::max(want, ef(want)) : want;
    const Scratch<std::vector<float>> distances;
    distances->resize(static_cast<std::size_t>(count));
    const Scratch<std::vector<float>> bounded;
    bounded->assign(query, query + keys().dim);
    faiss_keys::bound(bounded->data(), keys().dim);
    found.assign(static_cast<std::size_t>(count), -1);
    try {
      search(bounded->data(), allowed, count, distances->data(), found.data());
    } catch (const faiss::FaissException& e) {
      throw Error(fmt::format("{}: FAISS: {}", spec(), faiss_text(e)));
    }
  }

 private:
  /// Adds keys x [count, dim], and their residuals behind others: of an index with lists the
  /// squared distance of a key from the centroid of its list. Codes without lists are all read by
  /// every search: theirs are 0.
  void add_batch(std::int64_t count, const float* x, std::vector<float>& residuals) {
    auto* lists = dynamic_cast<faiss::IndexIVF*>(index_.get());
    if (lists == nullptr) {
      index_->add(count, x);
      residuals.resize(residuals.size() + static_cast<std::size_t>(count), 0.0F);
      return;
    }
    std::vector<std::int64_t> list(static_cast<std::size_t>(count));
    lists->quantizer->assign(count, x, list.data());
    reserve(*lists, list);
    lists->add_core(count, x, nullptr, list.data());
    std::vector<float> residual(static_cast<std::size_t>(keys().dim));
    for (const std::int64_t l : list) {
      lists->quantizer->compute_residual(x, residual.data(), l);
      x += keys().dim;
      residuals.push_back(
          std::inner_product(residual.begin(), residual.end(), residual.begin(), 0.0F));
    }
  }

  /// Takes the room that keys of these lists need, which FAISS would take in a region of OpenMP,
  /// where a failure ends the process.
  static void reserve(faiss::IndexIVF& index, const std::vector<std::int64_t>& list_of_each) {
    auto& arrays = dynamic_cast<faiss::ArrayInvertedLists&>(*index.invlists);
    std::vector<std::size_t> more(index.nlist);
    for (const std::int64_t list : list_of_each) ++more[static_cast<std::size_t>(list)];
    const auto grow = [](auto& vector, std::size_t size) {
      if (size > vector.capacity()) vector.reserve(std::max(size, 2 * vector.capacity()));
    };
    for (std::size_t list = 0; list < index.nlist; ++list) {
      const std::size_t keys = arrays.ids[list].size() + more[list];
      grow(arrays.ids[list], keys);
      grow(arrays.codes[list], keys * index.code_size);
    }
  }

  /// Makes the index for the keys that are there, and trains it on a sample of them.
  void make() {
    const KeyView& view = keys();
    if (spec_.centres()) mean_ = faiss_keys::mean_of(view);
    if (spec_.links > 0) return make_graph();
    check_faiss_sizes(spec_, view.dim, view.count);
    const std::int64_t lists = spec_.lists_for(view.count);
    index_ = make_faiss(spec_, view.dim, lists);
    if (!index_->is_trained) {
      const std::vector<float> points =
          faiss_keys::sample(view, std::max<std::int64_t>(65536, 64 * lists), mean_);
      index_->train(static_cast<std::int64_t>(points.size()) / view.dim, points.data());
    }
  }

  void make_graph() {
    storage_ = std::make_unique<faiss_keys::Storage>(&keys(), &mean_);
    auto graph = std::make_unique<faiss::IndexHNSW>(storage_.get(), static_cast<int>(spec_.links));
    graph->hnsw.efConstruction = static_cast<int>(spec_.efc);
    index_ = std::move(graph);
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
    } else if (spec_.links > 0) {
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
  std::vector<float> mean_;  // of the keys that it was made of, where they are centred
  std::unique_ptr<faiss_keys::Storage> storage_;  // of an in-place graph; outlives index_
  std::unique_ptr<faiss::Index> index_;
  bool takes_parameters_ = true;
  LinkResiduals link_residuals_;  // of a graph
};

class FaissFactory final : public IndexFactory {
 public:
  explicit FaissFactory(FaissSpec spec) : IndexFactory({}), spec_(std::move(spec)) {}
  std::string text() const override { return spec_.text(); }
  void check(std::int64_t dim, std::int64_t keys) const override {
    check_faiss_sizes(spec_, dim, keys);
  }
  std::unique_ptr<HeadIndex> make() const override { return std::make_unique<FaissIndex>(spec_); }

 private:
  FaissSpec spec_;
};

}  // namespace

std::shared_ptr<const IndexFactory> faiss_factory(std::string_view spec, std::string_view text) {
  return std::make_shared<FaissFactory>(FaissSpec::parse(spec, text));
}

}  // namespace topkv
