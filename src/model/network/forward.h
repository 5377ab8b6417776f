// The forward pass of a decoder, written once for prefill, sessions, every family and every device.
// What tells families apart are the flags of ModelConfig and which weights there are.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "src/attention/chunk_passes.h"
#include "src/device/compute_device.h"
#include "src/device/host/experts.h"
#include "src/model/network/rope.h"
#include "src/model/network/text_layers.h"
#include "src/model/weights/weights.h"
#include "topkv/model.h"

namespace topkv {

/// Tokens that the projections of latent attention take at a time: bounds their activations.
inline constexpr std::int64_t latent_tokens = 512;

/// Throws InvalidArgument: logits are not finite.
[[noreturn]] void fail_not_finite();

/// Runs tokens through the network, chunk by chunk. Owns the activations of one chunk, allocated
/// once. One thread at a time; weights outlive it.
class Forward {
 public:
  /// chunk: most tokens of one run. Throws OutOfMemory.
  Forward(const ModelConfig& config, const Weights& weights,
          const std::shared_ptr<ComputeDevice>& device, std::int64_t chunk);

  /// Device memory of the activations of a chunk.
  static std::int64_t bytes(const ModelConfig& config, const DeviceSizes& device,
                            std::int64_t chunk);

  std::int64_t chunk() const { return chunk_; }

  /// Takes tokens at positions first and on; their final states stay until the next call. length:
  /// of the text that is read with them, for DualChunk::original_max_position.
  /// REQUIRES: tokens within the vocabulary, at most chunk of them, within the length.
  void run(std::span<const Token> tokens, std::int64_t first, std::int64_t length,
           const TextLayers& text);

  /// Likewise one token of each of several texts, at positions of their own.
  /// REQUIRES: as above; the model has no dual chunk attention.
  void run_each(std::span<const Token> tokens, std::span<const std::int64_t> positions,
                const TextLayers& texts);

  /// Runs tokens through a draft layer, at positions first and on. states: the hidden states of the
  /// tokens before them, [tokens, hidden_size], in host memory.
  /// REQUIRES: as run; ModelConfig::draft_layer.
  void run_draft(std::span<const Token> tokens, std::span<const float> states, std::int64_t first,
                 const TextLayers& text);
  /// Writes the hidden states [count, hidden_size] of tokens begin and on of the last run, behind
  /// the last norm, to host memory: a draft layer reads them.
  void states(std::int64_t begin, std::int64_t count, std::span<float> out);

  /// Logits [count, vocab] of tokens begin and on of the last run, in host memory.
  void logits(std::int64_t begin, std::int64_t count, float* out);
  /// The most likely token after each of tokens begin and on of the last run, `best.size()` of
  /// them. Throws InvalidArgument where no logit of one is a number (fail_not_finite).
  void best(std::int64_t begin, std::span<Token> best);

  /// Seconds so far. attention includes what attend spent searching. Waits for the device.
  ForwardTimes times() const;

 private:
  struct Angles {
    float *cos, *sin;
  };
  /// The activations, one behind the other in a buffer.
  struct Activations {
    float *x, *q, *k, *v, *attended, *gate, *up, *logits;
    float* lse;                             // of attention, with sinks
    float *scores, *shares;                 // of experts: a router's, and of those that it chose
    float* parts;                           // what each of these gives, over gate and up
    float* shared_weight;                   // of the expert that all tokens share
    std::int32_t *chosen, *slots, *places;  // numbers of experts; SortedSlots
    float* branch;  // what a part of a layer gives, where that is normalised before it is added
    float *q_next, *q_far;         // with dual chunk attention
    float *q_gated, *output_gate;  // with output gates: of q's projection, and q's gates
    // Of latent attention, for latent_tokens at a time. head_values, head_operand and head_products
    // are of each head: what a product reads, and what it gives.
    float *q_latent, *head_q, *latent, *rope_key, *head_values, *head_products;
    std::byte *q_operand, *head_operand;
    std::int32_t* head_numbers;  // 0, 1, … of each head
    // Of recurrent layers, for some tokens at a time; see RecurrentWidths.
    float *recurrent_in, *recurrent_gate, *recurrent_rates, *recurrent_room, *recurrent_out;
    float* recurrent_states[2];     // of one layer, between pieces
    std::byte* recurrent_heads;     // operand
    const float** state_table;      // of each layer, before and after a token
    Angles angles, sliding_angles;  // LayerRope::model's, and sliding's
    // With dual chunk attention, or queries that grow (the first); `angles` are then the keys'.
    Angles query_angles[query_forms];
    std::byte *hidden, *heads, *mlp;  // operands
    std::byte* gathered;              // of hidden, one for each slot
    float* mixed;                     // of MLP and experts, with ExpertMixture::own_norms
    // With ModelConfig::layer_inputs: [layers, tokens, size] twice, [tokens, size], and its
    // operand.
    float *layer_inputs, *layer_rows, *layer_gate;
    std::byte* layer_gated;
    float *index_q, *index_k, *index_weights;  // with AttentionShape::indexer
    float* states;      // with ModelConfig::draft_layer: [tokens, hidden], of the tokens before
    std::byte* joined;  // with draft_layer, an operand: [tokens, 2 * hidden]
  };
  /// Activations of MLPs and of experts.
  template <class Place>
  static void lay_out_recurrences(const ModelConfig& config, std::int64_t op, std::int64_t chunk,
                                  const Place& place, Activations& out);
  template <class Place>
  static void lay_out_latent(const LatentAttention& net, std::int64_t heads, std::int64_t op,
                             std::int64_t chunk, const Place& place, Activations& out);
  template <class Place>
  static void lay_out_mlp(const ModelConfig& config, std::int64_t op, std::int64_t chunk,
                          const Place& place, Activations& out);
  static std::int64_t lay_out(const ModelConfig& config, DType operand, std::int64_t chunk,
                              std::byte* memory, Activations& out);

  /// Runs tokens of so many texts, whose angles are in place. step: what attend is given besides
  /// them. lock: is held but while attend runs.
  void run_placed(std::span<const Token> tokens, std::int64_t texts, AttentionStep step,
                  const TextLayers& layers, DeviceLock lock);
  /// What lies between the attention of layer l - 1 and that of layer l (the beginning and the end
  /// of the network for the first and the last). Of one token on a device that replays, recurrences
  /// are a part of it. Returns the layer that is next: one of attention, one of another recurrence,
  /// or the number of layers.
  std::int64_t between(std::int64_t l, std::int64_t tokens);
  void end_layer(std::int64_t l, std::int64_t tokens);
  void begin_layer(std::int64_t l, std::int64_t tokens);
  bool replays(std::int64_t tokens) const { return tokens == 1 && device_->replays(); }
  /// Finds the states of a token that is replayed, and gives the text those after it.
  void find_states(const TextLayers& layers);
  void keep_states(const TextLayers& layers);
  void queries_keys_values(std::int64_t l, std::int64_t tokens);
  /// Writes what RoPE turns the index queries and index keys of these positions by.
  void place_index_angles(std::span<const std::int64_t> positions);
  /// Makes index queries, index keys and weights of a layer that has an indexer.
  void index_inputs(std::int64_t l, std::int64_t tokens);
  void give_index_inputs(AttentionStep& step) const;
  /// Queries and rows of latent attention.
  void latent_inputs(std::int64_t l, std::int64_t tokens);
  void latent_rows(const LatentWeights& w, std::int64_t first, std::int64_t count);
  void latent_queries(const LatentWeights& w, std::int64_t first, std::int64_t count);
  /// heads = the values of each head that the attended latents stand for.
  void latent_values(const LatentWeights& w, std::int64_t tokens);
  /// head_products = W x for the rows of each head in head_values, [heads, tokens, inputs].
  void multiply_heads(const ExpertMatrices& weights, std::int64_t tokens);
  void number_heads();
  /// Tokens that go through a recurrent layer at a time: bounds its activations.
  static constexpr std::int64_t recurrent_tokens = 1024;
  /// Elements of a token in the activations of recurrent layers.
  struct RecurrentWidths {
    std::int64_t in = 0;     ///< what the convolution sees
    std::int64_t gate = 0;   ///< what gates the output
    std::int64_t rates = 0;  ///< what decays and rates of learning are made of
    std::int64_t room = 0;   ///< what a step works in
    std::int64_t out = 0;    ///< of the recurrence
    std::int64_t heads = 0;  ///< what is projected back
  };
  static RecurrentWidths recurrent_widths(const ModelConfig& config);
  /// The state of a layer before some tokens, null for zeros, and where the state after them goes;
  /// or where these two pointers stand in the device's memory.
  struct StatePlaces {
    const float* before = nullptr;
    float* after = nullptr;
    const float* const* table = nullptr;
  };
  /// A recurrent layer. Many tokens go through all of it in pieces; of few the projections in and
  /// out are parts of what lies between layers, which a device may replay.
  void recur(std::int64_t l, std::int64_t tokens, std::int64_t texts, const TextLayers& layers);
  /// Projects `count` tokens from `first` on, which are in a_.hidden.
  void recurrence_inputs(const LayerWeights& w, std::int64_t first, std::int64_t count);
  /// Whether take_tokens does what lies between a layer's projections, in one operation.
  bool takes_all(const LayerWeights& w) const { return recording_ && !w.delta.empty(); }
  /// Takes `tokens` of the tokens that are projected into the state, from number `at` on.
  void take_tokens(const LayerWeights& w, std::int64_t at, std::int64_t tokens,
                   const StatePlaces& states);
  /// x += the layer's output for these tokens.
  void recurrence_output(const LayerWeights& w, std::int64_t first, std::int64_t count);
  /// Returns where the device has a state.
  const float* state_here(const StateMemory* state);
  /// Returns memory for the next state of a layer.
  std::shared_ptr<StateMemory> next_state(const TextLayers& layers, std::int64_t text,
                                          std::int64_t l);
  /// Writes the angles of positions first and on to where layers find them.
  void place_angles(std::int64_t first, std::int64_t tokens, std::int64_t length);
  /// Writes what the queries of these positions are turned and multiplied by, if they grow.
  void place_growing_angles(std::span<const std::int64_t> positions);
  void place_chunk_angles(std::int64_t first, std::int64_t tokens, std::int64_t length);
  void place(const RopeAngles& angles, std::int64_t rotary_dim, std::int64_t tokens,
             const Angles& to);
  /// The model's angles of a run's tokens from number `first` on.
  RopeAngles angles_from(std::int64_t first) const {
    const std::int64_t skipped = first * config_.rotary_dim / 2;
    return {.cos = a_.angles.cos + skipped,
            .sin = a_.angles.sin + skipped,
            .rotary_dim = config_.rotary_dim,
            .interleaved = config_.rope_interleaved};
  }
  /// Rotates a layer's queries and keys, unless it has no RoPE.
  void rope(std::int64_t l, std::int64_t tokens);
  /// a_.x = the input of a draft layer: the embeddings in a_.x joined with a_.states.
  void join_states(std::int64_t tokens);
  /// Makes the inputs of all layers of some tokens, whose embeddings are in a_.x.
  void make_layer_inputs(std::span<const Token> tokens);
  /// x += what a layer makes of its inputs.
  void add_layer_input(std::int64_t l, std::int64_t tokens);
  /// hidden = what a part of a layer reads of x.
  void read_residual(const Vector& norm, std::int64_t tokens);
  /// x += what a part of a layer gives: [tokens, hidden], normalised where the family does so.
  void add_to_residual(const Matrix& weight, const Vector& bias, const Vector& norm,
                       const std::byte* operand, std::int64_t tokens, float* x);
  void attention_output(std::int64_t l, std::int64_t tokens);
  void mlp(const LayerWeights& w, std::int64_t tokens);
  /// x += what MLP and experts give, with ExpertMixture::own_norms.
  void mlp_and_experts(const LayerWeights& w, std::int64_t tokens);
  /// Chooses the experts of some tokens by their operands.
  void choose_experts(const MixtureWeights& w, const std::byte* operand, std::int64_t tokens);
  /// x += what the chosen experts make of some tokens' operands.
  void run_experts(const MixtureWeights& w, const std::byte* operand, std::int64_t tokens,
                   float* x);
  /// x += what a mixture of experts makes of some tokens' operands.
  void mix(const MixtureWeights& w, const std::byte* operand, std::int64_t tokens, float* x);
  /// x += what the expert that all tokens share makes of some tokens' operands.
  void shared_expert(const MixtureWeights& w, const std::byte* operand, std::int64_t tokens,
                     float* x);
  /// a_.mlp = the gate of a_.gate and a_.up, so many values.
  void activate(std::int64_t values);
  /// Logits of rows of the hidden states, from `begin` on, at the head of a_.logits. REQUIRES: at
  /// most logit_rows; the device is locked.
  void make_logits(std::int64_t begin, std::int64_t rows);
  void project(std::initializer_list<Product> products, const std::byte* x, std::int64_t tokens,
               bool accumulate = false);
  void norm(const Vector& weight, std::int64_t tokens);
  /// Begins a phase; nothing while a step is recorded, for then it is one.
  void begin(Phase phase) {
    if (!recording_) clock_->begin(phase);
  }

  const ModelConfig& config_;
  const Weights& weights_;
  std::shared_ptr<ComputeDevice> device_;
  std::int64_t chunk_;
  Buffer memory_;
  Activations a_{};
  RopeTable rope_;
  RopeTable sliding_rope_;
  RopeTable index_rope_;                 // of a trained indexer
  RopeAngles index_angles_;              // of a run's tokens
  std::vector<std::int64_t> positions_;  // of a chunk, for angles
  std::vector<std::int32_t> experts_;    // chosen by tokens, in host memory
  SortedSlots sorted_;
  std::vector<std::int64_t> head_ends_;  // of multiply_heads: where the rows of a head end
  std::unique_ptr<PhaseClock> clock_;
  std::vector<std::unique_ptr<Recording>> steps_;  // of one token: [layers + 1]
  bool recording_ = false;
  struct States {
    std::shared_ptr<const StateMemory> before;
    std::shared_ptr<StateMemory> after;
  };
  std::vector<States> states_;  // of a token that is replayed: [layers]
};

}  // namespace topkv
