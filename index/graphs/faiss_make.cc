#include "index/graphs/faiss_make.h"

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexPQ.h>
#include <faiss/IndexScalarQuantizer.h>
#include <faiss/index_factory.h>
#include <faiss/invlists/InvertedLists.h>
#include <fmt/format.h>

#include <string>

#include "topkv/error.h"

namespace topkv {
namespace {

template <class T>
bool is(const faiss::Index* index) {
  return dynamic_cast<const T*>(index) != nullptr;
}

bool has_code_as_meant(const faiss::Index* index, const FaissSpec& spec) {
  switch (spec.code) {
    case FaissSpec::Code::flat:
      return spec.has_lists ? is<faiss::IndexIVFFlat>(index) : is<faiss::IndexFlat>(index);
    case FaissSpec::Code::pq:
      return spec.has_lists ? is<faiss::IndexIVFPQ>(index) : is<faiss::IndexPQ>(index);
    default:
      return spec.has_lists ? is<faiss::IndexIVFScalarQuantizer>(index)
                            : is<faiss::IndexScalarQuantizer>(index);
  }
}

/// Whether FAISS made of the factory string what this spec means. Another FAISS may read it
/// otherwise, and only what is meant has been tested.
bool is_as_meant(const faiss::Index* index, const FaissSpec& spec, std::int64_t dim) {
  if (index->d != dim || index->metric_type != faiss::METRIC_INNER_PRODUCT) return false;
  if (!has_code_as_meant(index, spec)) return false;
  const auto* lists = dynamic_cast<const faiss::IndexIVF*>(index);
  return lists == nullptr ||
         (is<faiss::IndexFlat>(lists->quantizer) &&
          dynamic_cast<const faiss::ArrayInvertedLists*>(lists->invlists) != nullptr);
}

/// FAISS warns on stderr about small training sets; it is our choice to train on them.
void silence(faiss::Index* index) {
  if (auto* codes = dynamic_cast<faiss::IndexPQ*>(index)) {
    codes->pq.cp.min_points_per_centroid = 1;
  } else if (auto* lists = dynamic_cast<faiss::IndexIVF*>(index)) {
    lists->cp.min_points_per_centroid = 1;
    if (auto* coded = dynamic_cast<faiss::IndexIVFPQ*>(index)) {
      coded->pq.cp.min_points_per_centroid = 1;
    }
  }
}

}  // namespace

void check_faiss_sizes(const FaissSpec& spec, std::int64_t dim, std::int64_t keys) {
  if (spec.code == FaissSpec::Code::pq && dim % spec.parts != 0) {
    throw InvalidArgument(
        fmt::format("{}: keys of dim {} cannot be cut into {} equal parts; the parts of PQ must "
                    "divide the dim",
                    spec.text(), dim, spec.parts));
  }
  if (keys == 0) return;
  const std::int64_t centroids =
      spec.code == FaissSpec::Code::pq ? std::int64_t{1} << spec.bits : 0;
  if (centroids > keys) {
    throw InvalidArgument(
        fmt::format("{}: {} centroids need at least as many keys, there are {}; ask for fewer "
                    "bits (PQ{}x4 has 16), or for an SQ code",
                    spec.text(), centroids, keys, spec.parts));
  }
  if (spec.has_lists && spec.lists > keys) {
    throw InvalidArgument(fmt::format(
        "{}: {} lists need at least as many keys, there are {}; ask for fewer lists, or write "
        "IVF without a number",
        spec.text(), spec.lists, keys));
  }
}

std::unique_ptr<faiss::Index> make_faiss(const FaissSpec& spec, std::int64_t dim,
                                         std::int64_t lists) {
  std::string factory = spec.factory(lists);
  // Training for polysemous search, which is not used here, takes minutes.
  if (spec.code == FaissSpec::Code::pq) factory += "np";
  std::unique_ptr<faiss::Index> index(
      faiss::index_factory(static_cast<int>(dim), factory.c_str(), faiss::METRIC_INNER_PRODUCT));
  if (!is_as_meant(index.get(), spec, dim))
    throw Error(
        fmt::format("{}: the FAISS that topkv is linked with makes another kind of index of it; "
                    "use an index that is not FAISS's",
                    spec.text()));
  silence(index.get());
  return index;
}

}  // namespace topkv
