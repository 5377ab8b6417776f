// FAISS's indices as a spec means them: made by its factory, and what it can make at all. Graphs
// are made without the factory, over keys that stay where they are (faiss_index.cc).
#pragma once

#include <faiss/Index.h>

#include <cstdint>
#include <memory>

#include "index/graphs/faiss_spec.h"

namespace topkv {

/// Refuses, with InvalidArgument, what FAISS cannot train on so many keys of this dim; no keys are
/// always enough.
void check_faiss_sizes(const FaissSpec& spec, std::int64_t dim, std::int64_t keys);

/// An empty index of codes, in so many lists where the spec has lists, not trained. Throws Error
/// where the FAISS that is linked makes something else of the spec, and what FAISS throws.
std::unique_ptr<faiss::Index> make_faiss(const FaissSpec& spec, std::int64_t dim,
                                         std::int64_t lists);

}  // namespace topkv
