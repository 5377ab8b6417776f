// Layers of a model that keep a state of fixed size in place of rows.
#pragma once

#include <cstdint>

namespace topkv {

/// The sizes of Gated DeltaNet layers (Yang et al. 2024, arXiv 2412.06464), as Qwen3-Next and
/// Qwen3.5 have them.
///
/// A token's projection to q, k and v passes a short convolution over the last `kernel` tokens and
/// SiLU. q and k are then normalised. Each value head has a matrix S [key_dim, value_dim], and
/// key_head_of(h) names the head of q and of k that serves value head h:
///
///     S = a S + b k (v - a k^T S)      a, b: the token's decay and learning rate, from 0 to 1
///     out = q^T S / sqrt(key_dim)      (eq. 10 of the paper)
///
/// The state of a layer is the inputs of the convolution for the last kernel - 1 tokens, the oldest
/// first: [kernel - 1, qkv_width()]. After them comes S: [value_heads, key_dim, value_dim].
struct GatedDeltaNet {
  std::int64_t key_heads = 0;    ///< heads of q and of k; 0: the model has no such layer
  std::int64_t value_heads = 0;  ///< heads of v; a multiple of key_heads
  std::int64_t key_dim = 0;      ///< elements of a head of q and k
  std::int64_t value_dim = 0;    ///< elements of a head of v
  std::int64_t kernel = 0;       ///< tokens that the convolution sees, 2 or more
  /// The order of the value heads. false: a query head serves consecutive value heads. true: the
  /// first value heads of all query heads come first, then the second ones, and so on.
  bool tiled = false;

  /// Returns the head of q and of k that serves a value head.
  constexpr std::int64_t key_head_of(std::int64_t value_head) const {
    return tiled ? value_head % key_heads : value_head / (value_heads / key_heads);
  }
  /// Returns whether a value head is the first of those that its key head serves.
  constexpr bool is_first_of_key_head(std::int64_t value_head) const {
    return tiled ? value_head < key_heads : value_head % (value_heads / key_heads) == 0;
  }

  /// Returns the elements of q and k, and of v, of a token.
  constexpr std::int64_t key_width() const { return key_heads * key_dim; }
  constexpr std::int64_t value_width() const { return value_heads * value_dim; }
  /// Returns the channels of the convolution: q, k and v of a token, one behind the other.
  constexpr std::int64_t qkv_width() const { return 2 * key_width() + value_width(); }
  /// Returns where S begins in a state, and the values of a whole state.
  constexpr std::int64_t matrices_at() const { return (kernel - 1) * qkv_width(); }
  constexpr std::int64_t state_size() const {
    return matrices_at() + value_heads * key_dim * value_dim;
  }
};

/// The sizes of Mamba-2 layers (Dao & Gu 2024, arXiv 2405.21060), as Granite 4 and Nemotron-H have
/// them.
///
/// A token's projection gives z; x, B and C; and dt of each head. x, B and C pass a short
/// convolution over the last `kernel` tokens, with a bias, and SiLU. Each head has a matrix S
/// [state_dim, head_dim], and B and C of a group serve heads / groups consecutive heads:
///
///     S = e^(dt A) S + dt B x^T,  y = S^T C + D x      (section 2 of the paper)
///
/// y silu(z) is then normalised over each group's heads. The state of a layer is the inputs of the
/// convolution for the last kernel - 1 tokens, the oldest first: [kernel - 1, input_width()]. After
/// them comes S: [heads, state_dim, head_dim].
struct Mamba2 {
  std::int64_t heads = 0;      ///< heads of x; 0: the model has no such layer. A multiple of groups
  std::int64_t head_dim = 0;   ///< elements of a head of x
  std::int64_t groups = 0;     ///< groups of heads, each with a B and a C
  std::int64_t state_dim = 0;  ///< elements of B and of C of a group
  std::int64_t kernel = 0;     ///< tokens that the convolution sees, 2 or more

  /// Returns the elements of x, and of z, of a token.
  constexpr std::int64_t width() const { return heads * head_dim; }
  /// Returns the channels of the convolution: x, B and C of a token, one behind the other.
  constexpr std::int64_t input_width() const { return width() + 2 * groups * state_dim; }
  /// Returns where S begins in a state, and the values of a whole state.
  constexpr std::int64_t matrices_at() const { return (kernel - 1) * input_width(); }
  constexpr std::int64_t state_size() const { return matrices_at() + width() * state_dim; }
};

/// The sizes of short convolution layers, as LFM2 has them (Liquid AI 2025, LFM2 Technical Report).
///
/// A token's projection gives b, c and x, of `width` elements each. With w the weights of a
/// channel, the oldest token's first:
///
///     out[t] = c[t] sum over j in [0, kernel) of w[j] b[u] x[u], u = t - kernel + 1 + j
///
/// The state of a layer is b x for the last kernel - 1 tokens, the oldest first:
/// [kernel - 1, width].
struct ShortConvolution {
  std::int64_t width = 0;   ///< channels; 0: the model has no such layer
  std::int64_t kernel = 0;  ///< tokens that the convolution sees, 2 or more

  /// Returns the elements of b, c and x of a token, one behind the other.
  constexpr std::int64_t input_width() const { return 3 * width; }
  /// Returns the values of a state.
  constexpr std::int64_t state_size() const { return (kernel - 1) * width; }
};

}  // namespace topkv
