#include "index/graphs/faiss_file.h"

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexPQ.h>
#include <faiss/IndexScalarQuantizer.h>
#include <faiss/invlists/InvertedLists.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "index/graphs/faiss_keys.h"
#include "index/graphs/faiss_make.h"

namespace topkv {
namespace {

constexpr std::int64_t most_lists = 1 << 24;  // of any spec

/// What is learned of keys, and of what remains of them beside unit centroids, is below this; sums
/// of products with a query stay far from float32's limit.
constexpr float most_learned = 4 * faiss_keys::most;

template <class Values>
bool are_within(const Values& values, float most) {
  return std::all_of(values.begin(), values.end(), [&](float x) { return std::abs(x) <= most; });
}

/// An array whose length may have been read already.
template <class T, class Memory>
void array_after(const KnownLength& length, std::vector<T, Memory>& values, Archive& archive) {
  if (length) {
    archive.elements(values, *length);
  } else {
    archive.array(values);
  }
}

/// Numbers of a type in bytes.
template <class Number>
Number number_at(const std::uint8_t* bytes, std::size_t i) {
  Number number;
  std::memcpy(&number, bytes + i * sizeof number, sizeof number);
  return number;
}

/// Codes of floating-point numbers may be anything; of others every bit is as good as another.
template <class Codes>
void check_codes(FaissSpec::Code code, const Codes& codes, const Archive& archive) {
  if (code == FaissSpec::Code::flat) {
    for (std::size_t i = 0; i < codes.size() / sizeof(float); ++i) {
      archive.check(std::abs(number_at<float>(codes.data(), i)) <= faiss_keys::most,
                    "an element of a key is beyond FAISS's limits");
    }
  } else if (code == FaissSpec::Code::sqfp16) {
    constexpr std::uint16_t exponent = 0x7c00;
    for (std::size_t i = 0; i < codes.size() / sizeof(std::uint16_t); ++i) {
      archive.check((number_at<std::uint16_t>(codes.data(), i) & exponent) != exponent,
                    "a code is not finite");
    }
  }
}

void quantiser_fields(faiss::ScalarQuantizer& quantiser, KnownLength first, Archive& archive) {
  const bool learns = quantiser.qtype != faiss::ScalarQuantizer::QT_fp16;
  array_after(first, quantiser.trained, archive);
  archive.check(quantiser.trained.size() == (learns ? 2 * quantiser.d : 0),
                "it has not one range for each element");
  archive.check(are_within(quantiser.trained, most_learned),
                "a range is wider than keys can make it");
  const auto ranges =
      quantiser.trained.begin() + static_cast<std::ptrdiff_t>(learns ? quantiser.d : 0);
  archive.check(std::all_of(ranges, quantiser.trained.end(), [](float x) { return x >= 0; }),
                "a range is below 0");
}

void quantiser_fields(faiss::ProductQuantizer& quantiser, KnownLength first, Archive& archive) {
  const std::size_t size = quantiser.centroids.size();
  array_after(first, quantiser.centroids, archive);
  archive.check(quantiser.centroids.size() == size,
                "its parts have another number of centroids than their bits give");
  archive.check(are_within(quantiser.centroids, most_learned),
                "a centroid of a part is farther than keys can make it");
}

/// What codes mean.
void quantiser_fields(faiss::Index& index, KnownLength first, Archive& archive) {
  if (auto* scalar = dynamic_cast<faiss::IndexScalarQuantizer*>(&index)) {
    quantiser_fields(scalar->sq, first, archive);
  } else if (auto* product = dynamic_cast<faiss::IndexPQ*>(&index)) {
    quantiser_fields(product->pq, first, archive);
  } else if (auto* scalar_lists = dynamic_cast<faiss::IndexIVFScalarQuantizer*>(&index)) {
    quantiser_fields(scalar_lists->sq, first, archive);
  } else if (auto* product_lists = dynamic_cast<faiss::IndexIVFPQ*>(&index)) {
    quantiser_fields(product_lists->pq, first, archive);
  }
}

/// Each list's keys and their codes.
void list_fields(const FaissSpec& spec, std::int64_t keys, faiss::IndexIVF& index,
                 Archive& archive) {
  auto& lists = dynamic_cast<faiss::ArrayInvertedLists&>(*index.invlists);
  std::vector<bool> there(static_cast<std::size_t>(archive.reading() ? keys : 0));
  std::int64_t count = 0;
  for (std::size_t list = 0; list < index.nlist; ++list) {
    auto& ids = lists.ids[list];
    auto& codes = lists.codes[list];
    archive.array(ids);
    archive.array(codes);
    if (!archive.reading()) continue;
    archive.check(codes.size() == ids.size() * index.code_size,
                  "a list has not one code for each of its keys");
    for (const std::int64_t id : ids) {
      archive.check(id >= 0 && id < keys && !there[static_cast<std::size_t>(id)],
                    "its lists do not have each key once");
      there[static_cast<std::size_t>(id)] = true;
    }
    count += static_cast<std::int64_t>(ids.size());
    check_codes(spec.code, codes, archive);
  }
  archive.check(!archive.reading() || count == keys, "its lists do not have each key once");
}

/// Centroids of lists [lists, dim], of which there are 0 where the spec has no lists.
std::vector<float> centroid_fields(const FaissSpec& spec, std::int64_t dim, KnownLength first,
                                   const faiss::Index* index, Archive& archive) {
  std::vector<float> centroids;
  if (!spec.has_lists) return centroids;
  if (!archive.reading()) {
    const auto& lists = dynamic_cast<const faiss::IndexIVF&>(*index);
    centroids.resize(lists.nlist * static_cast<std::size_t>(dim));
    lists.quantizer->reconstruct_n(0, static_cast<std::int64_t>(lists.nlist), centroids.data());
  }
  array_after(first, centroids, archive);
  const std::int64_t lists = std::ssize(centroids) / dim;
  archive.check(lists * dim == std::ssize(centroids) && lists >= 1 && lists <= most_lists &&
                    (spec.lists == 0 || lists == spec.lists),
                "it has another number of lists");
  archive.check(are_within(centroids, most_learned),
                "the centroid of a list is farther than keys can make it");
  return centroids;
}

}  // namespace

KnownLength mean_fields(std::int64_t dim, std::vector<float>& mean, Archive& archive) {
  constexpr std::int64_t mark = -1;  // which no length is
  std::int64_t length = mark;
  archive.value(length);
  if (length != mark) {
    mean.clear();
    return length;
  }
  archive.array(mean);
  archive.check(mean.empty() || std::ssize(mean) == dim,
                "its mean has another dimension than its keys");
  archive.check(are_within(mean, faiss_keys::most), "a mean is farther than keys can make it");
  return {};
}

void faiss_fields(const FaissSpec& spec, std::int64_t dim, std::int64_t keys, KnownLength first,
                  std::unique_ptr<faiss::Index>& index, Archive& archive) {
  const std::vector<float> centroids = centroid_fields(spec, dim, first, index.get(), archive);
  if (spec.has_lists) first.reset();  // it was the centroids'

  const std::int64_t lists = std::ssize(centroids) / dim;
  if (archive.reading()) {
    check_faiss_sizes(spec, dim, keys);
    // Taken as it is made: centroids of parts, and lists, of which each has two lengths.
    const std::int64_t of_parts =
        spec.code == FaissSpec::Code::pq ? (dim << spec.bits) * std::int64_t{sizeof(float)} : 0;
    archive.check_left(of_parts + lists * 2 * std::int64_t{sizeof(std::int64_t)},
                       "it ends before its lists and centroids");
    index = make_faiss(spec, dim, lists);
  }
  quantiser_fields(*index, first, archive);
  if (auto* in_lists = dynamic_cast<faiss::IndexIVF*>(index.get())) {
    list_fields(spec, keys, *in_lists, archive);
    if (archive.reading()) in_lists->quantizer->add(lists, centroids.data());
  } else {
    auto& flat = dynamic_cast<faiss::IndexFlatCodes&>(*index);
    archive.array(flat.codes);
    archive.check(flat.codes.size() == static_cast<std::size_t>(keys) * flat.code_size,
                  "it has not one code for each key");
    if (archive.reading()) check_codes(spec.code, flat.codes, archive);
  }
  if (!archive.reading()) return;
  index->ntotal = keys;
  index->is_trained = true;
}

void faiss_graph_fields(faiss::IndexHNSW& graph, std::int64_t keys, KnownLength first,
                        Archive& archive) {
  using Node = faiss::HNSW::storage_idx_t;
  faiss::HNSW& hnsw = graph.hnsw;
  archive.check(keys <= std::numeric_limits<Node>::max(),
                "it has more keys than a graph of FAISS takes");
  std::vector<std::uint8_t> floors(hnsw.levels.begin(), hnsw.levels.end());  // at most some 30
  array_after(first, floors, archive);
  archive.value(hnsw.entry_point);
  archive.array(hnsw.neighbors);
  if (!archive.reading()) return;
  archive.check(keys > 0 && std::ssize(floors) == keys, "it has not one level for each key");
  const auto most = static_cast<std::int64_t>(hnsw.cum_nneighbor_per_level.size()) - 1;
  hnsw.levels.assign(floors.begin(), floors.end());
  hnsw.offsets.resize(floors.size() + 1);
  for (std::size_t node = 0; node < floors.size(); ++node) {
    archive.check(floors[node] >= 1 && floors[node] <= most, "a key has an unknown level");
    hnsw.offsets[node + 1] =
        hnsw.offsets[node] + static_cast<std::size_t>(hnsw.cum_nb_neighbors(floors[node]));
  }
  archive.check(hnsw.offsets.back() == hnsw.neighbors.size(),
                "the places of links do not match the levels");
  hnsw.max_level = *std::max_element(floors.begin(), floors.end()) - 1;
  archive.check(hnsw.entry_point >= 0 && hnsw.entry_point < keys &&
                    floors[static_cast<std::size_t>(hnsw.entry_point)] == hnsw.max_level + 1,
                "its entry point is not a key of the highest level");
  for (std::size_t node = 0; node < floors.size(); ++node) {
    for (int floor = 0; floor < floors[node]; ++floor) {
      std::size_t begin = 0;
      std::size_t end = 0;
      hnsw.neighbor_range(static_cast<std::int64_t>(node), floor, &begin, &end);
      for (std::size_t at = begin; at < end; ++at) {
        const Node linked = hnsw.neighbors[at];
        archive.check(linked == -1 || (linked >= 0 && linked < keys &&
                                       floors[static_cast<std::size_t>(linked)] > floor),
                      "a link leads to a key that is not on its level");
      }
    }
  }
  graph.storage->ntotal = graph.ntotal = keys;
  // Floors of keys that come later are drawn behind those of keys that were there.
  for (std::int64_t key = 0; key < keys; ++key) hnsw.random_level();
}

}  // namespace topkv
