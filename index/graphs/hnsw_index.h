// hnswlib's graph (Malkov and Yashunin 2018) over keys that stay where they are: a node holds the
// 4-byte number of its row and nothing else. Built by hnswlib; searched by our own walk over its
// graph, which fetches the rows of all neighbours of a node at once and scores them together.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "topkv/index_spec.h"

namespace topkv {

/// spec: the whole string; options: what follows "hnsw:". Throws InvalidArgument.
///
///   M    links per node (twice as many on the ground floor); more: better recall, more memory
///   efc  candidates examined per inserted key; more: better graph, slower build
///   ef   candidates kept by a search; 0: follows k
std::shared_ptr<const IndexFactory> hnsw_factory(std::string_view spec, std::string_view options);

}  // namespace topkv
