// Indices of the installed FAISS, for inner products, by their factory strings.
//
// "HNSW<M>" is a graph over keys that stay where they are. Every other one keeps codes of its
// own beside them ("Flat" a float32 copy; "exact" reads the keys in place). FAISS's reader is never
// given a file: faiss_file.h. One index is built by one thread: the many indices of a context are
// built side by side, and FAISS's own OpenMP teams would only stand in each other's way.
#pragma once

#include <memory>
#include <string_view>

#include "topkv/index_spec.h"

namespace topkv {

/// spec: the whole string; text: what follows "faiss:" (see faiss_spec.h). Throws
/// InvalidArgument.
std::shared_ptr<const IndexFactory> faiss_factory(std::string_view spec, std::string_view text);

}  // namespace topkv
