// A context: one prefilled text. It holds the rows of every layer and KV head, in host memory or in
// a mapped file, and indices over their keys.
//
// A ContextBuilder collects rows as the network produces them. freeze() turns them into a Context,
// which never changes and which any number of sessions in any number of threads share:
//
//     topkv::ContextBuilder builder(shape, {.capacity = 1'000'000});
//     builder.attend({.layer = 0, .tokens = chunk, .q = q, .k = k, .v = v, .out = out});
//     …                                                      // all layers, chunk by chunk
//     const topkv::RetrievalOptions options{.index = "codes"};  // see session.h
//     auto context = builder.freeze()->ready_for(options);
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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

class LayerStates;
class StateMemory;
struct RetrievalOptions;
struct Segment;

/// Which earlier tokens the tokens of a prefill may attend.
enum class Prefill : std::uint8_t {
  dense,   ///< all earlier tokens; the cost grows with the square of the text's length
  window,  ///< the first `sinks` tokens and the last `window` ones; the cost grows linearly
  /// The first `sinks` tokens, the last `window` ones, and blocks of 64 keys in between that each
  /// block of 128 tokens chooses for itself: those that have most of its attention. The cost grows
  /// little more than linearly.
  sparse,
  /// dense or sparse, by the text's length and the device (resolve_prefill). For
  /// Model::prefill and plans; a ContextBuilder does not know how long its text becomes.
  automatic,
};

/// Returns the name of a mode: "dense", "window", "sparse" or "auto".
std::string_view name_of(Prefill mode);
/// Returns the mode that a name names. Throws InvalidArgument for another name.
Prefill parse_prefill(std::string_view name);

/// Which earlier tokens each token of a prefill attends.
struct PrefillAttention {
  Prefill mode = Prefill::dense;
  /// window and sparse mode: last tokens attended, the query's own included
  std::int64_t window = 1024;
  std::int64_t sinks = 4;  ///< window and sparse mode: first tokens attended
  /// sparse mode: keys that a block of tokens chooses at most, for each KV head. Rounded up to a
  /// multiple of 64
  std::int64_t keys = 8192;
  /// sparse mode: keys that a block chooses at least. Rounded up to a multiple of 64. A block with
  /// no more keys between its sinks and its window attends them all; with a mass of 1, a block with
  /// no more than `keys`.
  std::int64_t least_keys = 512;
  /// sparse mode: the share of attention to meet, above 0 and up to 1. A block of tokens chooses no
  /// more keys once its sampled queries meet this share. 1: it always chooses `keys` keys.
  double mass = 0.98;
  /// sparse mode: computes the share of attention that sampled tokens meet (PrefillShare::mass)
  /// from their scores with all earlier keys, in place of an estimate. Tokens attend the same keys.
  /// It takes an eighth of the scores of a dense prefill. The host alone has it.
  bool measure = false;
};

/// Returns the attention with a mode that is not automatic. A text of `tokens` tokens is read:
/// - on the host: dense up to 8,192 tokens, and sparse beyond;
/// - on a CUDA device: dense up to 32,768 tokens, and sparse beyond;
/// - dense, if the device has no sparse prefill of this shape.
///
/// Any other mode stays. A sparse prefill needs:
/// - an AttentionShape::chunk_len that is 0 or a multiple of 128;
/// - on a CUDA device, at most 128 query heads for each KV head in layers that attend all tokens;
/// - on a CUDA device, `keys` of at most 65,536, and no `measure`.
///
/// Throws Unsupported for a mode that is sparse, or becomes sparse, without what it needs.
PrefillAttention resolve_prefill(PrefillAttention attention, const AttentionShape& shape,
                                 std::int64_t tokens, bool on_cuda);

/// Sums of what tokens of a prefill attended, over tokens and KV heads.
struct PrefillShare {
  std::int64_t queries = 0;  ///< tokens, once for each KV head
  /// The share of dense attention that each met: the mean over sampled tokens of its block,
  /// estimated while the block chose, or exact with PrefillAttention::measure. 1 for tokens that
  /// attend all earlier tokens.
  double mass = 0;
  double keys = 0;        ///< keys that each attended
  double dense_keys = 0;  ///< keys that dense attention would have attended

  /// Returns the mean share of attention that a token met; 1 without tokens.
  double mean_mass() const { return queries > 0 ? mass / static_cast<double>(queries) : 1; }
  /// Returns the share of keys that were attended; 1 without tokens.
  double key_share() const { return dense_keys > 0 ? keys / dense_keys : 1; }

  PrefillShare& operator+=(const PrefillShare& other) {
    queries += other.queries;
    mass += other.mass;
    keys += other.keys;
    dense_keys += other.dense_keys;
    return *this;
  }
};

/// The IndexerShape::top of layers in which tokens choose nothing. A prefill reads such a layer as
/// a layer without an indexer, and keeps its index keys.
inline constexpr std::int64_t every_index_block = std::int64_t{1} << 40;

/// Options of a ContextBuilder.
struct ContextOptions {
  /// Tokens that rows are reserved for. More tokens are refused until ContextBuilder::reserve makes
  /// room.
  std::int64_t capacity = 0;
  /// How rows are stored. The host takes every dtype. A CUDA device takes bf16 for both halves, or
  /// q8 or q4 for each half.
  KvDType dtype = {};
  /// Which earlier tokens ContextBuilder::attend lets a token attend. Not Prefill::automatic.
  PrefillAttention attention = {};
  /// Bytes that the rows may take; 0 means the memory that the machine has free. Checked before
  /// anything is reserved.
  std::int64_t memory_budget = 0;
  /// Keeps some queries of ContextBuilder::attend for indices that learn from them: h2o, tova, and
  /// squeezed with s or coarse (IndexSpec::learns_queries).
  ///
  /// Queries of up to 640 tokens are kept, as float32 in host memory. They do not count against
  /// memory_budget; ContextMemory::queries_bytes reports them. On a CUDA device each step then
  /// waits for its attention.
  ///
  /// A layer keeps no queries once it has rows from one of these:
  /// - append();
  /// - a step whose out is its q;
  /// - a step with q_next or q_far;
  /// - a step that has K and V of only some of its tokens.
  bool keep_queries = false;
  /// The part that all keys have in common: the biases of K projections. A bias may be many times
  /// as large as the rest of a key. Empty: no bias is known.
  ///
  /// Keys in q8 and q4 are rounded without it, so that their few levels serve the rest of the key.
  /// It is added again when a key is read. Keys in other dtypes ignore it. It need not be exact;
  /// the nearer it is, the less rounding loses.
  ///
  /// Layout: b, [layers, kv_heads, 3, head_dim]. Element i of a key at position p contains this, as
  /// RoPE turns a bias:
  ///
  ///     b[0][i] cos(p b[2][i]) + b[1][i] sin(p b[2][i])
  ///
  /// Positions count the tokens of the context and then of a session. They count modulo
  /// AttentionShape::chunk_len when that is above 0.
  ///
  /// The constructor of ContextBuilder throws InvalidArgument for another size and for a value that
  /// is not finite. Factors must be below 2^96, and frequencies below 2^16.
  std::vector<float> key_bias = {};
};

/// Host memory that a context takes, in bytes.
struct ContextMemory {
  std::int64_t rows_bytes = 0;   ///< the rows, and the index keys of trained indexers
  std::int64_t index_bytes = 0;  ///< all indices and tails
  /// The queries of the prefill that the context keeps (ContextOptions::keep_queries).
  std::int64_t queries_bytes = 0;
  std::int64_t states_bytes = 0;  ///< the recurrent states (AttentionShape::state_size)
};

/// A prefilled text: what each layer keeps of it (AttentionShape), and indices over its keys. It
/// never changes once it is made. All members are const and safe from many threads.
class Context : public std::enable_shared_from_this<Context> {
 public:
  Context(const Context&) = delete;  // shared by pointer
  Context& operator=(const Context&) = delete;

  /// Returns the shape of the model's attention.
  const AttentionShape& shape() const { return shape_; }
  /// Returns the number of tokens.
  std::int64_t tokens() const;
  /// Returns how the rows are stored.
  KvDType dtype() const;
  /// Returns the host memory that the context takes.
  ContextMemory memory() const;
  /// Returns the bytes of one index, its tail included. Throws InvalidArgument when the context has
  /// no index of this spec.
  ///
  /// A tail may share the codes of keys with an index. These codes count for both here, and once in
  /// memory().
  std::int64_t index_memory(std::string_view spec) const;
  /// Returns the bytes of an index that one token's step reads to choose rows. It counts the layers
  /// from `from_layer` on that have an index. Returns -1 when the index does not know this. Throws
  /// InvalidArgument when the context has no index of this spec.
  std::int64_t bytes_read_to_search(std::string_view spec, std::int64_t from_layer = 0) const;
  /// Returns the bytes of a tail that one token's step reads to estimate attention, in the layers
  /// from `from_layer` on. Bytes that a search of `beside_index` reads anyway do not count. Throws
  /// InvalidArgument when the context has no such tail or no such index.
  std::int64_t bytes_read_to_estimate(std::string_view tail, std::string_view beside_index,
                                      std::int64_t from_layer = 0) const;
  /// The name that index_memory() had in version 0.1.0.
  [[deprecated("use index_memory")]] std::int64_t index_bytes(std::string_view spec) const {
    return index_memory(spec);
  }
  /// The name that bytes_read_to_search() had in version 0.1.0.
  [[deprecated("use bytes_read_to_search")]] std::int64_t search_bytes(
      std::string_view spec, std::int64_t first = 0) const {
    return bytes_read_to_search(spec, first);
  }
  /// The name that bytes_read_to_estimate() had in version 0.1.0.
  [[deprecated("use bytes_read_to_estimate")]] std::int64_t tail_bytes(
      std::string_view spec, std::string_view with, std::int64_t first = 0) const {
    return bytes_read_to_estimate(spec, with, first);
  }
  /// Returns the specs of the context's indices and tails, with all defaults spelled out (see
  /// IndexSpec). "exact" is always among them, for it reads the rows in place.
  std::vector<std::string> indices() const;
  /// Returns whether the context has the index or tail that a spec names, in any spelling. Throws
  /// InvalidArgument for an invalid spec.
  bool has_index(std::string_view spec) const;

  /// Returns the rows that one layer and KV head attends; they may be the rows of an earlier layer
  /// (AttentionShape::row_layer). Row i is of token first_row(layer) + i. The view is valid while
  /// the context lives. Throws InvalidArgument for a layer or KV head that the context does not
  /// have, and for a layer with a recurrent state.
  RowsView rows(std::int64_t layer, std::int64_t kv_head) const;
  /// Returns the number of the first token whose rows a layer has: above 0 for a layer with a
  /// sliding window, whose earlier rows no later token attends. Throws InvalidArgument for a layer
  /// that the context does not have.
  std::int64_t first_row(std::int64_t layer) const;
  /// Returns the recurrent state of one layer after the last token: AttentionShape::state_size_of
  /// values, or no value if there is no token. The view is valid while the context lives. Throws
  /// InvalidArgument for a layer without a recurrent state.
  std::span<const float> state(std::int64_t layer) const;
  /// Returns the index that queries of one layer and KV head search, valid while the context lives.
  /// For the tail `mean` it is the index over the codes of its keys. A layer that attends the rows
  /// of an earlier layer uses the index of that layer.
  ///
  /// A spec that is spelled as indices() spells it is found without being parsed. Throws
  /// InvalidArgument when the context has no index of this spec, for a layer with a sliding window,
  /// and for a layer with a recurrent state.
  const KeyIndex& index(std::string_view spec, std::int64_t layer, std::int64_t kv_head) const;

  /// Returns a context over the same rows that also has an index or a tail. Builds it, all heads in
  /// parallel, unless this context has it. Only layers for which AttentionShape::has_index is true
  /// get an index. This context does not change.
  ///
  /// progress: stage "index", in keys over all heads.
  ///
  /// device: a CUDA device takes part in two kinds of builds. The host builds all other indices.
  /// - Codes: the device makes the codes of rows that are page-locked, about as fast as it can read
  ///   them. A CUDA device's prefill or load_context locks rows. The host makes the codes of other
  ///   rows, and all codes when the device lacks the few dozen MiB that this takes.
  /// - Clusters (squeezed, retroinfer): the device clusters the keys of any rows, if heads have at
  ///   most 256 elements and one head's keys in 16 bits fit its memory. Else the host clusters
  ///   them.
  ///
  /// Throws InvalidArgument for an invalid spec and for keys that the index does not take. It does
  /// so too when an index learns from queries and the context kept none
  /// (ContextOptions::keep_queries). An exception that progress throws ends the build and reaches
  /// the caller.
  ///
  /// REQUIRES: the calling thread does not hold the device's lock, which only topkv's own code can.
  std::shared_ptr<const Context> with_index(std::string_view spec, const ProgressFn& progress = {},
                                            const Device& device = {}) const;

  /// Returns a context over the same rows that knows its tokens. Sessions over it look in them for
  /// drafts (GenerateOptions::draft). Model::prefill names the tokens itself, and so does
  /// load_context if the file has them. This context does not change. Throws InvalidArgument when
  /// the number of tokens differs from tokens().
  std::shared_ptr<const Context> with_tokens(std::span<const Token> tokens) const;
  /// Returns whether the context knows its tokens.
  bool knows_tokens() const;

  /// Returns a context over the same rows that sessions with these options can open: it also has
  /// the index and the tail that the options name. Builds what this context lacks, the index first.
  /// Returns this context itself when it lacks nothing. This context does not change.
  ///
  /// Reads RetrievalOptions::index and RetrievalOptions::tail alone. The tails "" and "none" name
  /// nothing to build: an index has its own tail from the start. The index "none" is an index, and
  /// is built.
  ///
  /// progress: stage "index" while the index is built, stage "tail" while the tail is, both in keys
  /// over all heads.
  ///
  /// device: takes part in builds as in with_index(). Its free memory is not checked: a session on
  /// it may still throw OutOfMemory (device_index_bytes).
  ///
  /// Throws InvalidArgument before anything is built, for:
  /// - an invalid spec;
  /// - an index that finds no rows by itself, such as `mean`;
  /// - a tail that estimates nothing, such as `hnsw`;
  /// - an index or a tail that does not take these keys.
  ///
  /// Throws as with_index() does while it builds.
  ///
  /// REQUIRES: a shared_ptr owns this context, as it owns every context of topkv. The calling
  /// thread does not hold the device's lock, which only topkv's own code can.
  std::shared_ptr<const Context> ready_for(const RetrievalOptions& options,
                                           const ProgressFn& progress = {},
                                           const Device& device = {}) const;

 private:
  friend class ContextBuilder;
  friend class ContextFile;
  friend class IndexGrowth;
  friend class Session;
  Context(AttentionShape shape, Segment segment);
  std::shared_ptr<const StateMemory> state_memory(std::int64_t layer) const;

  AttentionShape shape_;
  std::shared_ptr<const Segment> segment_;
};

/// Collects the rows of a text and freezes them into a Context. One thread at a time.
class ContextBuilder {
 public:
  /// Reserves rows for options.capacity tokens. On a CUDA device attend() computes there. Rows are
  /// page-locked there from the first call of attend(), or of reserve() with a chunk, on.
  ///
  /// Throws OutOfMemory when the rows do not fit. Throws InvalidArgument for an invalid shape, for
  /// options that are out of range, and for a dtype that the device does not take. Throws
  /// Unsupported for a trained indexer on a CUDA device.
  ContextBuilder(AttentionShape shape, ContextOptions options, const Device& device = {});
  ~ContextBuilder();
  ContextBuilder(ContextBuilder&&) noexcept;
  ContextBuilder& operator=(ContextBuilder&&) noexcept;

  /// Makes room for `tokens` tokens in all. Does nothing when there is room already. Rows move, and
  /// both copies are in memory for a moment, so reserve once when the length is known.
  ///
  /// chunk: above 0, the most tokens that a coming step has. A CUDA device then takes its memory
  /// for such steps now rather than in the first step. It takes more only when a step has more
  /// tokens.
  ///
  /// Throws:
  /// - InvalidArgument when layers hold different numbers of tokens;
  /// - OutOfMemory when the rows, or the device's memory for steps, do not fit;
  /// - Unsupported for a head_dim that the device does not take.
  void reserve(std::int64_t tokens, std::int64_t chunk = 0);

  /// Appends K and V of the next tokens of one layer. K is post-RoPE, as attention sees it. Both
  /// are [tokens, kv_heads, head_dim] with any strides, in f32, f16 or bf16, in host memory. Layers
  /// may be filled in any order. values is a null view when keys are values
  /// (AttentionShape::keys_are_values).
  ///
  /// Throws InvalidArgument, and leaves the layer as it was, when:
  /// - a value is NaN or infinite; the message names layer, head and position;
  /// - shapes differ, or the capacity is exceeded;
  /// - values are given, and keys are values;
  /// - the layer has no rows of its own (AttentionShape::has_rows), or it has index keys
  ///   (AttentionShape::has_index_keys), which attend() takes;
  /// - a step of attend() has not yet been given to every layer.
  void append(std::int64_t layer, const TensorView& keys, const TensorView& values);

  /// Appends K and V of the next tokens of a layer, and computes the attention of these tokens. It
  /// is the step of a prefill for an application that owns its network.
  ///
  /// Attention is causal, over the tokens that ContextOptions::attention lets each token attend. A
  /// layer with a trained indexer attends its choice, whatever ContextOptions::attention is, unless
  /// IndexerShape::top is every_index_block.
  /// Give every layer of attention the same tokens in turn, the first layer first. Layers with a
  /// recurrent state get these tokens by advance(), before the step of the first layer of attention
  /// or after it. A layer that attends the rows of an earlier layer has null k and v.
  ///
  /// Throws InvalidArgument when a value is not finite, a pointer is null, the capacity is
  /// exceeded, or a layer is out of turn. Whatever is thrown, the layer is then as it was before
  /// the call. Give it its tokens again, or take back the tokens of the other layers with
  /// truncate().
  ///
  /// On a CUDA device the call returns before `out` is written. A later call, or freeze(), reports
  /// values that are not finite. Rows that were given since are then lost, and the builder refuses
  /// further use: make another one.
  void attend(const AttentionStep& step);

  /// Gives a layer with a recurrent state its next `tokens` tokens: its state after them. The
  /// state has AttentionShape::state_size_of values, in host memory; they are copied.
  ///
  /// Throws InvalidArgument, and leaves the layer as it was, for a layer without a recurrent state,
  /// another number of values, a value that is not finite, and tokens beyond the capacity.
  void advance(std::int64_t layer, std::int64_t tokens, std::span<const float> state);
  /// Returns the recurrent state of a layer after its last token; no value if there is no token.
  /// The view is valid until the builder gets or forgets tokens. Throws InvalidArgument for a layer
  /// without a recurrent state.
  std::span<const float> state(std::int64_t layer) const;
  /// Keeps the present recurrent states in host memory, so that truncate() can come back to this
  /// token. Each snapshot takes the memory of all states, and 16 are kept at most, as of
  /// Session::snapshot. Throws InvalidArgument when layers hold different
  /// numbers of tokens.
  void snapshot();
  /// Returns the most tokens, at most `tokens`, that truncate() can keep. Layers that attend all
  /// tokens can go back to any token. Recurrent states can go back to a snapshot, to the token
  /// before the last advance(), and to 0.
  ///
  /// A layer with a sliding window can go back by one window at least, by the last step of
  /// attend(), and to 0. Beyond that it keeps no rows.
  std::int64_t reachable(std::int64_t tokens) const;

  /// Gives the builder a copy of all that a context holds, so that a text can be read on. The
  /// builder has no tokens yet. Queries that the context kept are kept on
  /// (ContextOptions::keep_queries).
  ///
  /// Throws OutOfMemory when the rows do not fit. Throws InvalidArgument, and leaves the builder
  /// without tokens, when:
  /// - the builder has tokens, or no capacity for the context's;
  /// - the attention shapes or the dtypes of the rows differ;
  /// - the context has the own rows of a session (Session::own_rows), which came after others.
  void resume(const Context& context);

  /// Waits until the rows of all steps are in host memory. Reports values that are not finite, as a
  /// later call of attend() would. On the host there is nothing to wait for.
  ///
  /// Throws InvalidArgument when the last step was not given to every layer, and for values that
  /// are not finite.
  void synchronize();

  /// Keeps the first `tokens` tokens of every layer and forgets all later ones. It takes back
  /// speculative tokens that were rejected, or a step that only some layers have taken.
  ///
  /// Throws InvalidArgument when a layer has fewer tokens, and when a layer no longer has what it
  /// kept at this token: its recurrent state, or the rows of its sliding window. The message names
  /// reachable(tokens): truncate to that, and give the tokens after it again.
  void truncate(std::int64_t tokens);

  /// Returns the number of tokens that a layer was given. Throws InvalidArgument for a layer that
  /// the shape does not have.
  std::int64_t tokens(std::int64_t layer) const;
  /// Returns what the tokens given to attend() attended in a layer whose tokens choose keys
  /// (Prefill::sparse); nothing for another layer. Tokens that truncate() took away count. Waits
  /// for the device. Throws InvalidArgument for a layer that the shape does not have.
  PrefillShare share(std::int64_t layer) const;
  /// Returns the number of tokens that rows are reserved for.
  std::int64_t capacity() const;
  const AttentionShape& shape() const;
  const Device& device() const;

  /// Turns the rows into a context with the index "exact"; Context::with_index adds others. The
  /// builder refuses further use afterwards. Throws InvalidArgument when layers hold different
  /// numbers of tokens, and for values that are not finite in steps on a CUDA device.
  std::shared_ptr<const Context> freeze();

 private:
  friend class IndexGrowth;
  friend struct TextLayers;
  struct State;
  std::shared_ptr<const LayerStates> states() const;
  // advance() and state() for a network that computes on the builder's device.
  void advance(std::int64_t layer, std::int64_t tokens, std::shared_ptr<StateMemory> state);
  std::shared_ptr<const StateMemory> state_memory(std::int64_t layer) const;
  std::shared_ptr<StateMemory> spare_state(std::int64_t layer);
  std::unique_ptr<State> state_;
};

}  // namespace topkv
