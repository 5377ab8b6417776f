// What FAISS's indices have learned, in files: a layout of our own (docs/context-files.md), of
// which every number is checked before FAISS has it. FAISS's own files are neither written nor
// read.
#pragma once

#include <faiss/Index.h>
#include <faiss/IndexHNSW.h>

#include <cstdint>
#include <memory>

#include "index/faiss_spec.h"
#include "src/core/archive.h"

namespace topkv {

/// An index of codes, in lists or not, over so many keys of this dim. Reading makes it: of as many
/// bytes as there are, but for a fixed part. Throws as Archive::check does, and what make_faiss
/// throws.
void faiss_fields(const FaissSpec& spec, std::int64_t dim, std::int64_t keys,
                  std::unique_ptr<faiss::Index>& index, Archive& archive);

/// A graph over so many keys. Reading: into one of no nodes, of the same number of links.
void faiss_graph_fields(faiss::IndexHNSW& graph, std::int64_t keys, Archive& archive);

}  // namespace topkv
