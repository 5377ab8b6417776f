// Queries of a prefill that a context keeps: some spread evenly over its tokens, and those of its
// last. Methods of the literature rank keys by the attention that they gave (H2O, TOVA), or set
// thresholds by it (Squeezed Attention).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "index/prefill_queries.h"
#include "src/core/archive.h"
#include "topkv/types.h"

namespace topkv {

class KeptQueries {
 public:
  static constexpr std::int64_t last = 128;         ///< tokens
  static constexpr std::int64_t most_spread = 512;  ///< at least half as many, of long texts

  KeptQueries() = default;
  explicit KeptQueries(const AttentionShape& shape);

  /// Takes of tokens first and on, that many, of a layer. read(token, count, to): copies the
  /// queries [count, q_heads, head_dim] of `count` of these tokens from number `token` on.
  void take(std::int64_t layer, std::int64_t first, std::int64_t tokens,
            const std::function<void(std::int64_t token, std::int64_t count, float* to)>& read);
  /// Forgets tokens from a position on.
  void truncate(std::int64_t tokens);
  /// Keeps none of a layer from now on, as tokens came without queries.
  void lose(std::int64_t layer);

  /// Of a KV head; none when tokens of the layer came without queries, and none of the last tokens
  /// where some of these were taken back. gathered: becomes the memory
  /// of what is given. tokens: of the context.
  PrefillQueries of(const AttentionShape& shape, std::int64_t layer, std::int64_t kv_head,
                    std::int64_t tokens, std::vector<float>& gathered,
                    std::vector<std::int64_t>& positions) const;

  /// What is kept of a layer of a context of so many tokens, for a file; nothing where there are no
  /// layers. REQUIRES, reading: made with the shape.
  bool has_layers() const { return !layers_.empty(); }
  void fields(std::int64_t layer, std::int64_t tokens, Archive& archive);

  /// Bytes that it holds, of all layers.
  std::int64_t memory() const;

 private:
  struct Layer {
    bool lost = false;
    std::int64_t stride = 16;  // of positions that are spread
    std::vector<std::int64_t> positions =
        {};                        // ascending: multiples of stride, and the last tokens
    std::vector<float> data = {};  // [positions, q_heads, head_dim]
  };
  void thin(Layer& layer, std::int64_t end);

  std::int64_t width_ = 0;  // q_heads * head_dim
  std::vector<Layer> layers_;
};

}  // namespace topkv
