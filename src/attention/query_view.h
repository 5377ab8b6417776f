// The queries of consecutive tokens, in host memory or in device memory.
#pragma once

#include <cstdint>

namespace topkv {

/// A view of queries: [tokens, heads, head_dim], contiguous. They are float32 on the host, and bf16
/// in a CUDA device's memory.
template <class T>
struct QueryView {
  const T* data = nullptr;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;  ///< query heads of a token
  std::int64_t head_dim = 0;
  std::int64_t first = 0;  ///< position of the first token

  /// Returns the query of a token's head, both by number: [head_dim].
  const T* query(std::int64_t token, std::int64_t head) const {
    return data + (token * heads + head) * head_dim;
  }
  /// Returns the queries of `count` tokens, from number `begin` on.
  QueryView part(std::int64_t begin, std::int64_t count) const {
    return {query(begin, 0), count, heads, head_dim, first + begin};
  }
};

/// Queries on the host.
using TokenQueries = QueryView<float>;

}  // namespace topkv
