// Rows and queries made up for `topkv bench`, so that shapes of large models can be timed without
// their weights.
//
// Every number is a function of (seed, layer, head, position) alone: the same whatever the number
// of threads and however the context is cut into pieces. Per (layer, KV head):
//
//   key     = offset + centre of the token's cluster + 0.7 noise  (+ the attractor)
//   offset    the same for all keys, large in a few channels, as RoPE leaves it in real keys
//   centre    one of 256; they turn slowly along the text, a right angle over a million tokens, and
//             a stretch of text uses mostly 64 of them
//   attractor a direction that all queries like; in the first 4 tokens (as attention sinks have
//             it) and in every 1024th token or so (heavy hitters)
//   value   = standard normal
//   query   = sharpness x (centre of a token somewhere in the text + 0.5 noise + 0.8 attractor)
//
// The sharpness makes three kinds of layers. How much of the attention the best rows hold is not
// promised but measured by every run: see attention_mass.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "topkv/context.h"
#include "topkv/progress.h"

namespace topkv::cli {

enum class LayerKind : std::uint8_t {
  diffuse,  ///< layer 0: nearly uniform
  broad,    ///< odd layers: the best thousand rows hold a good part
  focused,  ///< even layers from 2 on: the best few dozen do
};

LayerKind kind_of_layer(std::int64_t layer);
std::string_view name_of(LayerKind kind);

/// The rows and queries of one layer. Const members are safe from many threads.
class BenchLayer {
 public:
  BenchLayer(const AttentionShape& shape, std::int64_t layer, std::uint64_t seed);

  /// Keys and values of tokens [begin, begin + count), bf16, [kv_heads, count, head_dim] each.
  /// Runs in parallel.
  void fill(std::int64_t begin, std::int64_t count, std::byte* keys, std::byte* values) const;

  /// The same rows as a session takes them: float32, [count, kv_heads, head_dim].
  void fill_float(std::int64_t begin, std::int64_t count, float* keys, float* values) const;

  /// Queries of one token, float32, [q_heads, head_dim]; each head looks for a token below
  /// `tokens`, a different one at each `step`.
  void queries(std::int64_t step, std::int64_t tokens, float* out) const;

 private:
  struct Head {
    std::uint64_t stream = 0;      // of the generator
    std::vector<float> offset;     // [head_dim]
    std::vector<float> attractor;  // [head_dim]
    std::vector<float> from, to;   // [clusters, head_dim]: a centre turns from one to the other
  };
  static constexpr std::int64_t clusters = 256;
  static constexpr std::int64_t era = 2048;  // tokens for which centres stand still

  std::int64_t cluster_of(const Head& head, std::int64_t token) const;
  void centre(const Head& head, std::int64_t cluster, std::int64_t token, float* out) const;
  void key(const Head& head, std::int64_t token, const float* centre, float* scratch,
           float* out) const;

  std::int64_t head_dim_;
  std::int64_t group_;
  float sharpness_;
  std::vector<Head> heads_;  // [kv_heads]
};

/// Appends generated rows to every layer until it has `tokens`.
void append_rows(ContextBuilder& builder, const std::vector<BenchLayer>& layers,
                 std::int64_t tokens, const ProgressFn& progress);

/// All layers of a shape.
std::vector<BenchLayer> bench_layers(const AttentionShape& shape, std::uint64_t seed);

/// How concentrated the attention of one layer is, as measured.
struct AttentionMass {
  LayerKind kind = LayerKind::diffuse;
  std::int64_t layer = 0;
  std::int64_t k = 0;
  double share = 0;  ///< of the attention between sinks and window, held by the k best rows; mean
};

/// Exact, for 8 queries of KV head 0 in the first layer of each kind that attends all tokens.
/// Nothing for contexts with no rows between sinks and window.
std::vector<AttentionMass> attention_mass(const Context& context,
                                          const std::vector<BenchLayer>& layers,
                                          const std::vector<std::int64_t>& ks, std::int64_t sinks,
                                          std::int64_t window);

}  // namespace topkv::cli
