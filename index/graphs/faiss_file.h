// The learned data of FAISS's indices in files, in a layout of our own
// (docs/reference/context-files.md). Every number is checked before FAISS has it. FAISS's own files
// are neither written nor read.
#pragma once

#include <faiss/Index.h>
#include <faiss/IndexHNSW.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "index/graphs/faiss_spec.h"
#include "src/core/format/archive.h"

namespace topkv {

/// The length of the array that comes next, where it has been read already; else it is none.
using KnownLength = std::optional<std::int64_t>;

/// The mean that was taken off the keys [dim], or an empty one. Files of version 0.1.0 have none
/// and begin with the length of their first array, which is given back. Throws as Archive::check
/// does.
KnownLength mean_fields(std::int64_t dim, std::vector<float>& mean, Archive& archive);

/// An index of codes, in lists or not, over so many keys of this dim. first: the length of its
/// first array. Reading makes it: of as many bytes as there are, but for a fixed part. Throws as
/// Archive::check does, and what make_faiss throws.
void faiss_fields(const FaissSpec& spec, std::int64_t dim, std::int64_t keys, KnownLength first,
                  std::unique_ptr<faiss::Index>& index, Archive& archive);

/// A graph over so many keys. first: the length of its first array. Reading: into one of no nodes,
/// of the same number of links.
void faiss_graph_fields(faiss::IndexHNSW& graph, std::int64_t keys, KnownLength first,
                        Archive& archive);

}  // namespace topkv
