// Element types, token positions, and the shape of a model's attention.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace topkv {

/// The type of a stored vector's elements.
///
/// Tensors that a caller hands in are f32, f16 or bf16, with their elements one behind the other.
/// Rows may also be q8 or q4. Those hold blocks of 32 elements, in the manner of GGML's q8_0 and
/// q4_1; the last block is padded with zeros:
///
///     q8  34 bytes: a scale s (f16) and 32 codes c (int8); an element is s * c
///     q4  20 bytes: a scale s and a least value m (f16), and 32 codes c of 4 bits; an element is
///         m + s * c. Byte i of the codes holds element i (low bits) and element i + 16 (high bits)
///
/// Keys in q8 and q4 may also have scales of their channels (KeyView::channels) and a bias
/// (KeyView::bias). An element of a key is then the value above, times its channel's scale, plus
/// the bias.
enum class DType : std::uint8_t { f32, f16, bf16, q8, q4 };

/// Returns whether elements are stored in blocks: true for q8 and q4.
constexpr bool in_blocks(DType dtype) { return dtype == DType::q8 || dtype == DType::q4; }

/// Returns the bytes of one element. REQUIRES: dtype is f32, f16 or bf16.
std::int64_t bytes_of(DType dtype);

/// Returns the bytes of a stored vector of `dim` elements.
std::int64_t vector_bytes(DType dtype, std::int64_t dim);

/// Returns "f32", "f16", "bf16", "q8" or "q4".
std::string_view name_of(DType dtype);

/// Returns the dtype of a name that name_of returns. Throws InvalidArgument for another name; the
/// message has the choices.
DType parse_dtype(std::string_view name);

/// How rows are stored: the dtype of keys and the dtype of values.
struct KvDType {
  DType keys = DType::bf16;
  DType values = DType::bf16;

  KvDType() = default;
  KvDType(DType both) : keys(both), values(both) {}  // NOLINT: one for both is the usual case
  KvDType(DType of_keys, DType of_values) : keys(of_keys), values(of_values) {}

  bool operator==(const KvDType& other) const {
    return keys == other.keys && values == other.values;
  }

  /// Returns one name, such as "q8", if keys and values have one dtype. Else returns both, keys
  /// first: "q8/q4".
  std::string name() const;
  /// Returns the dtypes of a text such as "q8" or "q8/q4". Throws InvalidArgument for another text;
  /// the message has the choices.
  static KvDType parse(std::string_view name);
  /// Returns the bytes of K and V of one token and KV head.
  std::int64_t row_bytes(std::int64_t head_dim) const {
    return vector_bytes(keys, head_dim) + vector_bytes(values, head_dim);
  }
};

/// The id of a token in a model's vocabulary.
using Token = std::int32_t;

/// A half-open range of token positions: begin, and all positions up to end - 1.
struct PositionRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  /// Returns the number of positions; 0 when end is not above begin.
  std::int64_t size() const { return end > begin ? end - begin : 0; }
  /// Returns whether the range holds a position.
  bool contains(std::int64_t position) const { return position >= begin && position < end; }
  /// Returns the positions that both ranges hold. The result may be empty.
  PositionRange within(const PositionRange& other) const {
    return {begin > other.begin ? begin : other.begin, end < other.end ? end : other.end};
  }
};

/// How an index key is scored for a choice. q are the index queries of a token that score this
/// choice together, k is the index key.
enum class IndexScore : std::uint8_t {
  dot,   ///< the sum over q of w (q·k)
  relu,  ///< the sum over q of w max(q·k, 0)
};

/// Returns "dot" or "relu".
std::string_view name_of(IndexScore score);

/// Returns the score of a name that name_of returns. Throws InvalidArgument for another name; the
/// message has the choices.
IndexScore parse_index_score(std::string_view name);

/// The shape of a trained indexer: a part of a model that chooses the rows that a token attends. It
/// has keys and queries of its own, *index keys* and *index queries*. Its layers were trained to
/// attend their choice alone: a session adds no sinks, no window and no tail.
///
/// A token at position p chooses among the index keys of complete groups up to p: (p + 1) /
/// tokens_per_key keys, rounded down. It attends these tokens, each once:
///
/// - the tokens of the `top` best blocks of keys, up to p;
/// - the tokens after the last complete group, which have no key yet.
///
/// | model | heads | choices | score | tokens_per_key | block | top |
/// | --- | --- | --- | --- | --- | --- | --- |
/// | DeepSeek-V3.2 (arXiv 2512.02556, section 2.1) | 64 | 1 | relu | 1 | 1 | 2048 |
/// | MiniMax-M3 | 4 | kv_heads | dot | 1 | 128 | 16 |
///
/// Qwen4 has one key for several tokens, as tokens_per_key says.
///
/// Factors on scores are the caller's: they go into index queries or weights.
struct IndexerShape {
  /// The elements of an index key. There is one index key for each group of tokens_per_key tokens.
  std::int64_t dim = 128;
  /// The index queries of a token.
  std::int64_t heads = 1;
  /// The choices of a token: 1, which all KV heads share, or kv_heads. Index queries h of a token
  /// with h / (heads / choices) = c score choice c together. heads is a multiple of choices.
  std::int64_t choices = 1;
  IndexScore score = IndexScore::relu;
  /// The tokens of a group, which have one index key: key g is of the tokens from g *
  /// tokens_per_key on. Groups are counted from position 0 of the text.
  std::int64_t tokens_per_key = 1;
  /// The keys that are chosen together, by their largest score. Blocks begin at key numbers that
  /// are multiples of `block`. Keys that a token does not see do not count for it. The last block
  /// that it sees may therefore be smaller.
  std::int64_t block = 1;
  /// The blocks that a token chooses, local blocks included. A token with no more blocks attends
  /// them all. If scores are equal, the earlier block is chosen. A score that is not a number ranks
  /// last.
  std::int64_t top = 2048;
  /// The last blocks that a token sees, which are chosen whatever they score.
  std::int64_t local_blocks = 0;
  /// How index keys are stored: f32 or bf16. Scores are float32.
  DType dtype = DType::f32;

  /// Returns the number of index keys of the first `tokens` tokens of a text.
  std::int64_t keys(std::int64_t tokens) const { return tokens / tokens_per_key; }
  /// Returns the number of index keys that `tokens` tokens from position `first` on complete: the
  /// number of keys in AttentionStep::index_k.
  std::int64_t completed(std::int64_t first, std::int64_t tokens) const {
    return keys(first + tokens) - keys(first);
  }
  /// Returns the bytes of a stored index key.
  std::int64_t key_bytes() const { return vector_bytes(dtype, dim); }

  // Written out, as C++17, which CUDA files are compiled as, knows no defaulted one.
  bool operator==(const IndexerShape& o) const {
    return dim == o.dim && heads == o.heads && choices == o.choices && score == o.score &&
           tokens_per_key == o.tokens_per_key && block == o.block && top == o.top &&
           local_blocks == o.local_blocks && dtype == o.dtype;
  }
};

/// The shape of a model's attention: sizes that all layers share, and what each layer attends and
/// keeps.
///
/// A context and a session keep one of these for a layer:
///
/// | layer | kept | set by |
/// | --- | --- | --- |
/// | attention | rows: K and V of every token | nothing |
/// | attention over a trained indexer's choice | rows and index keys of every token | indexer |
/// | attention over the last tokens | rows of the last tokens | sliding_window |
/// | attention over rows of an earlier layer | nothing | row_layer |
/// | recurrence | a state of fixed size | state_size |
///
/// For a sliding window of w tokens, a context keeps the rows of its last w tokens. A session keeps
/// the rows of all tokens of its own.
///
/// The query heads that share a KV head are its *group* (grouped-query attention). Query head h
/// belongs to KV head h / group().
struct AttentionShape {
  std::int64_t layers = 0;
  std::int64_t q_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  /// The factor on q·k before the softmax. 0 means 1/sqrt(head_dim).
  float scale = 0.0F;
  /// The cap of scores: a scaled score s becomes softcap * tanh(s / softcap) before the softmax
  /// (Gemma 2 report, 2024, section 2). 0: scores are not capped.
  float softcap = 0.0F;
  /// For each layer, the number of last tokens that a token attends, itself included. 0 means all
  /// tokens. An empty vector means that every layer attends all tokens.
  std::vector<std::int64_t> sliding_window = {};
  /// The length of a chunk of positions in dual chunk attention (An et al. 2024, arXiv 2402.17463,
  /// section 3). 0: attention is not by chunks, and a token has one query for all keys.
  ///
  /// A token has three queries: AttentionStep::q for keys of its own chunk, q_next for keys of the
  /// chunk before, and q_far for keys of all earlier chunks.
  std::int64_t chunk_len = 0;
  /// For each layer, the number of the layer whose rows it attends: its own, or the number of an
  /// earlier layer. Such a layer has queries of its own, and neither rows nor indices. It attends
  /// the rows of the earlier layer, the step's own tokens included, and uses its indices. Both
  /// layers have the same sliding window. Empty: every layer has rows of its own.
  std::vector<std::int64_t> row_layer = {};
  /// For each layer, how many float32 values its recurrent state has. Such a layer is a recurrence
  /// instead of attention: it has no rows, and its state stands for all earlier tokens. 0: the
  /// layer is attention. Empty: every layer is attention.
  std::vector<std::int64_t> state_size = {};
  /// The KV heads of layers with a sliding window. 0: kv_heads. Indices and searches never meet
  /// these layers, so that all layers with an index have heads of one kind.
  std::int64_t sliding_kv_heads = 0;
  /// The elements of a head in layers with a sliding window. 0: head_dim.
  std::int64_t sliding_head_dim = 0;
  /// Whether the value of a token is its key. Then one vector is stored for both, and a step gives
  /// no V. It is so in multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).
  bool keys_are_values = false;
  /// The trained indexer that chooses the rows that layers attend. Not set: the model has none, and
  /// rows are found as RetrievalOptions say. A CPU alone runs trained indexers.
  std::optional<IndexerShape> indexer = {};
  /// For each layer, where its choice comes from:
  ///
  /// - its own number: the layer has index keys, and chooses;
  /// - the number of an earlier layer that chooses: the layer attends the same tokens;
  /// - -1: the layer has no indexer, and rows are found as RetrievalOptions say.
  ///
  /// Empty: every layer chooses, if `indexer` is set.
  std::vector<std::int64_t> indexer_layer = {};

  /// Returns the number of query heads that share a KV head, in layers that attend all tokens.
  std::int64_t group() const { return q_heads / kv_heads; }
  /// Returns the factor on q·k before the softmax: scale, or 1/sqrt(head_dim) when scale is 0.
  float softmax_scale() const;
  /// Returns the number of KV heads of a layer.
  std::int64_t kv_heads_of(std::int64_t layer) const {
    return sliding_kv_heads > 0 && window_of(layer) > 0 ? sliding_kv_heads : kv_heads;
  }
  /// Returns the elements of a head in a layer.
  std::int64_t head_dim_of(std::int64_t layer) const {
    return sliding_head_dim > 0 && window_of(layer) > 0 ? sliding_head_dim : head_dim;
  }
  /// Returns whether layers with a sliding window have other heads than the other layers.
  bool has_two_widths() const;
  /// Returns the elements of a token's keys in the layer that has most.
  std::int64_t widest_kv() const;
  /// Returns the elements of a head in the layer that has most.
  std::int64_t widest_head() const;
  /// Returns the sliding window of a layer in tokens. 0: the layer attends all tokens.
  std::int64_t window_of(std::int64_t layer) const {
    return sliding_window.empty() ? 0 : sliding_window[static_cast<std::size_t>(layer)];
  }
  /// Returns the layer whose rows a layer attends: the layer itself, or an earlier one.
  std::int64_t row_layer_of(std::int64_t layer) const {
    return row_layer.empty() ? layer : row_layer[static_cast<std::size_t>(layer)];
  }
  /// Returns how many float32 values the recurrent state of a layer has. 0: the layer is attention.
  std::int64_t state_size_of(std::int64_t layer) const {
    return state_size.empty() ? 0 : state_size[static_cast<std::size_t>(layer)];
  }
  /// Returns whether a layer is attention.
  bool is_attention(std::int64_t layer) const { return state_size_of(layer) == 0; }
  /// Returns the layer whose choice a layer attends: the layer itself, or an earlier one. -1: the
  /// layer has no trained indexer.
  std::int64_t indexer_layer_of(std::int64_t layer) const {
    if (!indexer) return -1;
    return indexer_layer.empty() ? layer : indexer_layer[static_cast<std::size_t>(layer)];
  }
  /// Returns whether a layer attends the choice of a trained indexer.
  bool has_indexer(std::int64_t layer) const { return indexer_layer_of(layer) >= 0; }
  /// Returns whether a layer has index keys, and chooses.
  bool has_index_keys(std::int64_t layer) const { return indexer_layer_of(layer) == layer; }
  /// Returns the number of layers that have index keys.
  std::int64_t index_key_layers() const;
  /// Returns whether a layer is attention over all tokens: it has neither a sliding window nor a
  /// trained indexer.
  bool attends_all(std::int64_t layer) const {
    return is_attention(layer) && window_of(layer) == 0 && !has_indexer(layer);
  }
  /// Returns whether a layer has rows of its own.
  bool has_rows(std::int64_t layer) const {
    return is_attention(layer) && row_layer_of(layer) == layer;
  }
  /// Returns whether a layer has indices of its own: it has rows, and attends all of them.
  bool has_index(std::int64_t layer) const { return has_rows(layer) && attends_all(layer); }
  /// Returns the bytes of the row of one token and KV head in a layer without a sliding window: K
  /// and V, or K alone when keys are values.
  std::int64_t row_bytes(KvDType dtype) const {
    return keys_are_values ? vector_bytes(dtype.keys, head_dim) : dtype.row_bytes(head_dim);
  }
  /// Returns the bytes of the row of one token and KV head in a layer.
  std::int64_t row_bytes_of(std::int64_t layer, KvDType dtype) const {
    const std::int64_t dim = head_dim_of(layer);
    return keys_are_values ? vector_bytes(dtype.keys, dim) : dtype.row_bytes(dim);
  }
  /// Returns the number of the first layer that is attention.
  std::int64_t first_attention() const;
  /// Returns the number of layers that have rows of their own.
  std::int64_t row_layers() const;
  /// Returns the bytes of the rows and index keys of a context of `tokens` tokens. A layer with a
  /// sliding window has rows of the window's tokens alone. Not checked for overflow.
  std::int64_t context_bytes(KvDType dtype, std::int64_t tokens) const;
  /// Returns the bytes of the rows and index keys of one token, in all layers: of one more token of
  /// a session. A token's share of an index key is rounded up.
  std::int64_t bytes_per_token(KvDType dtype) const;
  /// Checks the shape. Throws InvalidArgument when:
  /// - layers, q_heads, kv_heads or head_dim is below 1;
  /// - q_heads is not a multiple of kv_heads;
  /// - scale or softcap is negative or not finite;
  /// - sliding_window is neither empty nor of `layers` entries, or an entry is negative;
  /// - chunk_len is negative, or is above 0 while a layer has a sliding window;
  /// - row_layer is neither empty nor of `layers` entries, or an entry names a later layer, a layer
  ///   without rows of its own, or a layer with another sliding window;
  /// - state_size is neither empty nor of `layers` entries, or an entry is negative;
  /// - a layer with a recurrent state has a sliding window, or attends rows of another layer;
  /// - sliding_kv_heads is negative, or q_heads is not a multiple of it;
  /// - sliding_head_dim is negative, or differs from head_dim while scale is 0;
  /// - a member of indexer is out of range (1 to 2^20; local_blocks 0 to top), choices is neither 1
  ///   nor kv_heads, heads is not a multiple of choices, or dtype is neither f32 nor bf16;
  /// - indexer_layer is neither empty nor of `layers` entries, is given without indexer, or an
  /// entry
  ///   is neither -1, nor the layer itself, nor an earlier layer that chooses;
  /// - a layer with an indexer has a recurrent state or a sliding window, or chunk_len is above 0;
  /// - no layer is attention.
  void check() const;
  /// Checks the dtypes of rows of this shape. Throws InvalidArgument when keys are values, and
  /// their dtypes differ.
  void check_rows(KvDType dtype) const;
};

}  // namespace topkv
