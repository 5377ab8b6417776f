// Queries of a prefill that a context keeps: queries of some tokens spread evenly over the text,
// and of its last tokens. Methods of the literature rank keys by the attention that these queries
// gave (H2O, TOVA), or set thresholds by it (Squeezed Attention).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "index/common/prefill_queries.h"
#include "src/core/format/archive.h"
#include "topkv/types.h"

namespace topkv {

/// A sample of the queries of a prefill, in all layers. One thread at a time.
class PrefillQuerySample {
 public:
  static constexpr std::int64_t last = 128;         ///< last tokens that are kept
  static constexpr std::int64_t most_spread = 512;  ///< long texts keep at least half of these

  PrefillQuerySample() = default;
  explicit PrefillQuerySample(const AttentionShape& shape);

  /// Keeps some queries of a layer's next `tokens` tokens, the first of which is at position
  /// `first`. read(token, count, to) copies the queries [count, q_heads, head_dim] of `count` of
  /// these tokens, from number `token` on.
  void take(std::int64_t layer, std::int64_t first, std::int64_t tokens,
            const std::function<void(std::int64_t token, std::int64_t count, float* to)>& read);
  /// Forgets the tokens from position `tokens` on.
  void truncate(std::int64_t tokens);
  /// Keeps no queries of a layer from now on, because it got tokens without queries.
  void lose(std::int64_t layer);

  /// Returns the kept queries of a layer and KV head, of a context of `tokens` tokens. `gathered`
  /// becomes their memory.
  ///
  /// There are none if the layer got tokens without queries. There are none of the last tokens if
  /// some of those were taken back.
  PrefillQueries of(const AttentionShape& shape, std::int64_t layer, std::int64_t kv_head,
                    std::int64_t tokens, std::vector<float>& gathered,
                    std::vector<std::int64_t>& positions) const;

  /// Returns whether any layer keeps queries.
  bool has_layers() const { return !layers_.empty(); }
  /// Transfers the queries of a layer to or from a file, for a context of `tokens` tokens. REQUIRES
  /// for reading: this was made with the shape.
  void fields(std::int64_t layer, std::int64_t tokens, Archive& archive);

  /// Returns the bytes of all kept queries.
  std::int64_t memory() const;

 private:
  struct Layer {
    bool lost = false;
    std::int64_t stride = 16;  // distance of spread positions
    std::vector<std::int64_t> positions =
        {};                        // ascending: multiples of stride, and the last tokens
    std::vector<float> data = {};  // [positions, q_heads, head_dim]
  };
  void thin(Layer& layer, std::int64_t end);

  std::int64_t width_ = 0;  // q_heads * head_dim
  std::vector<Layer> layers_;
};

}  // namespace topkv
