// A context: one prefilled text. Rows of every layer and KV head in host memory, and indices over
// the keys.
//
// Life: a ContextBuilder takes rows as the network produces them, freeze() turns it into a
// Context, which is immutable and shared by any number of sessions in any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "topkv/attention.h"
#include "topkv/device.h"
#include "topkv/key_index.h"
#include "topkv/progress.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

class RowStore;
struct Segment;

/// What the queries of a prefill chunk may attend.
enum class Prefill : std::uint8_t {
  dense,   ///< all earlier tokens
  window,  ///< the first `sinks` tokens and the last `window` ones: cost linear in the context
};

struct PrefillAttention {
  Prefill mode = Prefill::dense;
  /// Window mode: tokens attended besides the sinks, the query's own included.
  std::int64_t window = 1024;
  std::int64_t sinks = 4;
};

struct ContextOptions {
  /// Tokens to reserve rows for; more are refused until reserve() makes room.
  std::int64_t capacity = 0;
  /// How rows are stored; a CUDA device takes bf16, q8 and q4.
  KvDType dtype = {};
  /// What attend() lets tokens see.
  PrefillAttention attention = {};
  /// Bytes the rows may take; 0: what the machine has free. Checked before anything is reserved.
  std::int64_t memory_budget = 0;
  /// Keeps some of attend()'s queries, up to 640 tokens' in float32 in host memory, for indices
  /// that learn from them (IndexSpec::learns_queries: h2o, tova, squeezed with s or coarse). Beside
  /// memory_budget; ContextMemory::queries_bytes counts them. On a CUDA device each step then waits
  /// for its attention.
  bool keep_queries = false;
  /// What K of all tokens has in common: the biases of K projections, which may be many times as
  /// large as the rest of a key. Rows in q8 and q4 are rounded without it, so that they keep the
  /// rest; what is read back has it again, and rows in other dtypes take no notice of it.
  /// [layers, kv_heads, 3, head_dim]: element i of a key at the position p has
  /// b[0][i] cos(p b[2][i]) + b[1][i] sin(p b[2][i]), as RoPE turns a bias. Positions count a
  /// context's tokens, then a session's, modulo AttentionShape::chunk_len where that is above 0.
  /// Empty: nothing. A value that is not finite, a factor of 2^96 or more, a frequency of 2^16 or
  /// more, or another size is an InvalidArgument of ContextBuilder. It need not be exact: the
  /// nearer it is, the less is lost.
  std::vector<float> key_bias = {};
};

struct ContextMemory {
  std::int64_t rows_bytes = 0;
  std::int64_t index_bytes = 0;
  /// Of the prefill's queries that it keeps (ContextOptions::keep_queries).
  std::int64_t queries_bytes = 0;
};

/// Immutable once made; all members are const and safe from many threads.
class Context {
 public:
  Context(const Context&) = delete;  // shared by pointer
  Context& operator=(const Context&) = delete;

  const AttentionShape& shape() const { return shape_; }
  std::int64_t tokens() const;
  KvDType dtype() const;
  ContextMemory memory() const;
  /// Of one of its indices, its tail included; keys' codes that a tail shares with an index are
  /// counted for each of them, and in memory() once. Throws InvalidArgument when it has none of
  /// this spec.
  std::int64_t index_bytes(std::string_view spec) const;
  /// Bytes that one token's step reads of an index to choose rows, in all layers that it searches,
  /// from layer `first` on; -1: not known. Throws InvalidArgument when it has none of this spec.
  std::int64_t search_bytes(std::string_view spec, std::int64_t first = 0) const;
  /// Likewise of a tail, to estimate, but what a search of the index `with` reads anyway.
  std::int64_t tail_bytes(std::string_view spec, std::string_view with,
                          std::int64_t first = 0) const;
  /// Spec strings of its indices, all defaults spelled out (see IndexSpec); "exact" is always
  /// among them, for it reads the rows in place.
  std::vector<std::string> indices() const;
  /// Whether it has the index, or the tail, that this spec names, however it is spelled. Throws
  /// InvalidArgument on a spec that is not understood.
  bool has_index(std::string_view spec) const;

  /// Rows of one (layer, KV head); valid while the context lives.
  RowsView rows(std::int64_t layer, std::int64_t kv_head) const;
  /// Throws InvalidArgument when the context has no index that this spec names. A spec as indices()
  /// has it is found without being parsed. Of a tail alone (`mean`): that of its keys' codes.
  const KeyIndex& index(std::string_view spec, std::int64_t layer, std::int64_t kv_head) const;

  /// A context over the same rows that has this index, or tail, too; builds it unless it is there,
  /// all heads in parallel. Layers with a sliding window get none. This context stays as it is.
  /// progress counts keys, over all heads.
  /// device: makes codes of rows that are page-locked, because a CUDA device prefilled them, about
  /// as fast as it can read them; of other rows, and where the device has not the few dozen MiB
  /// that this takes, the host makes them. It clusters keys of any rows (squeezed, retroinfer)
  /// where it has room for a head's in 16 bits and heads have at most 256 elements, else the host
  /// does. Other indices are the host's. The caller holds no lock of the device.
  std::shared_ptr<const Context> with_index(std::string_view spec, const ProgressFn& progress = {},
                                            const Device& device = {}) const;

 private:
  friend class ContextBuilder;
  friend class ContextFile;
  friend class IndexGrowth;
  friend class Session;
  Context(AttentionShape shape, Segment segment);

  AttentionShape shape_;
  std::shared_ptr<const Segment> segment_;
};

/// Collects rows. One thread at a time.
class ContextBuilder {
 public:
  /// Reserves the rows. Throws OutOfMemory (wanted and available bytes) or InvalidArgument.
  /// On a CUDA device attend() computes there, and rows are page-locked once it, or reserve() with
  /// a chunk, is called.
  ContextBuilder(AttentionShape shape, ContextOptions options, const Device& device = {});
  ~ContextBuilder();
  ContextBuilder(ContextBuilder&&) noexcept;
  ContextBuilder& operator=(ContextBuilder&&) noexcept;

  /// Makes room for this many tokens in all; nothing happens when there is. Rows move, so both
  /// copies are in memory for a moment: reserve once when the length is known.
  /// chunk, when above 0: most tokens of the steps to come. A CUDA device's memory for them is then
  /// taken now rather than in the first step, and again only when a step has more.
  /// REQUIRES: all layers hold the same tokens. Throws as the constructor does, and Unsupported for
  /// a head_dim that the device does not know.
  void reserve(std::int64_t tokens, std::int64_t chunk = 0);

  /// Appends K (post-RoPE, as attention sees it) and V of the next tokens of one layer; both
  /// [tokens, kv_heads, head_dim] in any strides, in host memory. Layers may be filled in any
  /// order. Throws InvalidArgument when a value is NaN or infinite (naming layer, head and
  /// position), shapes differ, or capacity is exceeded; the layer is then as it was before.
  void append(std::int64_t layer, const TensorView& keys, const TensorView& values);

  /// The step of a prefill for an application that owns its network: appends K and V of the next
  /// tokens of a layer and gives the attention of these tokens, causal, over all that
  /// options.attention lets them see. Every layer must be given the same tokens in turn, layer 0
  /// first.
  /// Throws InvalidArgument as append does, when q is not finite, a pointer is null or a layer is
  /// out of turn. Whatever it throws, the layer is then as it was before: give it its tokens again,
  /// or take the others' back with truncate().
  /// On a CUDA device the call returns before out is there, and values that are not finite are
  /// reported by a later call or by freeze(); rows given since are then lost, and the builder with
  /// them.
  void attend(const AttentionStep& step);

  /// Waits until the rows of all steps are in host memory, for good: reports now, as a later call
  /// would, values that are not finite. Nothing to wait for on the host.
  /// REQUIRES: the last step was given to every layer.
  void synchronize();

  /// Forgets the tokens from number `tokens` on, in all layers: speculative ones that were
  /// rejected, or those of a step that some layers have taken and others have not. Throws
  /// InvalidArgument when a layer has fewer.
  void truncate(std::int64_t tokens);

  /// Tokens given to the layer.
  std::int64_t tokens(std::int64_t layer) const;
  std::int64_t capacity() const;
  const AttentionShape& shape() const;
  const Device& device() const;

  /// Turns the rows into a context with the "exact" index; add others with Context::with_index.
  /// The builder is empty afterwards. Throws InvalidArgument when layers differ in length.
  std::shared_ptr<const Context> freeze();

 private:
  friend class IndexGrowth;
  struct State;
  std::shared_ptr<const RowStore> store() const;
  std::unique_ptr<State> state_;
};

}  // namespace topkv
