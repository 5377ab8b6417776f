// What a loaded model holds.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/attention/block_budget.h"
#include "src/device/compute_device.h"
#include "src/model/draft_layer.h"
#include "src/model/kept_grammars.h"
#include "src/model/network/forward_pool.h"
#include "src/model/weights/checkpoint.h"
#include "src/model/weights/weights.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {

/// Tokens of a prompt, or of a step, given to a session at a time: bounds the activations and the
/// block of queries searched.
inline constexpr std::int64_t session_chunk = most_step_tokens;
/// The most tokens of a turn that a session is given at a time.
inline constexpr std::int64_t most_turn_piece = 2 * least_turn_tokens + query_block - 1;

/// How a prefill reads: what the options say, or what Prefill::automatic stands for. That is dense
/// if the memory of a sparse prefill would be above `room`. This alone decides: plans, prefills and
/// reports have its answer. tokens: of the text; 0: not known. Throws as resolve_prefill does.
PrefillAttention fitting_prefill(const ModelConfig& config, const DeviceSizes& device,
                                 const PrefillOptions& options, std::int64_t tokens,
                                 std::int64_t room);
/// Prefill chunks that are tried, largest first, until one fits the device's memory. tokens: of the
/// text; 0: not known. REQUIRES: a mode that is not automatic.
std::int64_t choose_prefill_chunk(const ModelConfig& config, const DeviceSizes& device,
                                  const PrefillOptions& options, std::int64_t tokens,
                                  std::int64_t room);
/// Device memory of a prefill beside the weights. tokens: of the text; 0: not known. REQUIRES: a
/// mode that is not automatic.
std::int64_t prefill_bytes(const ModelConfig& config, const DeviceSizes& device,
                           const PrefillOptions& options, std::int64_t chunk, std::int64_t tokens);

/// Device memory of a turn beside the weights and a session. It is dense in an automatic mode, for
/// then a sparse one takes what is free. 0: retrieval has no turns.
std::int64_t turn_bytes(const ModelConfig& config, const DeviceSizes& device,
                        const RetrievalOptions& retrieval, KvDType rows, std::int64_t tokens);

/// Model::plan, for a device of which `memory` is there and used.
DevicePlan plan_device(const ModelConfig& config, const WeightsSize& size,
                       const DeviceSizes& device, const DeviceMemory& memory,
                       PrefillOptions prefill, const RetrievalOptions& retrieval,
                       std::int64_t tokens);

struct Model::Impl {
  Impl(const std::filesystem::path& directory, const Device& device, WarningFn on_warning,
       const LoadOptions& options);

  void warn(const std::string& warning) const {
    if (on_warning) on_warning(warning);
  }
  /// See Model::check_reach. Cheap: for every step.
  void check_reach(std::int64_t tokens) const;

  /// Throws FileError when the checkpoint has none.
  const Tokenizer& text_tokenizer() const;

  /// Throws InvalidArgument naming the first token outside the vocabulary.
  void check_tokens(std::span<const Token> tokens) const;

  /// Throws InvalidArgument when the session is on another device than the model, or over a context
  /// whose attention has another shape.
  void check_session(const Session& session) const;

  /// Runs work of the network. Attention takes finite values alone: where it is given others, the
  /// reason may be a weight, which is looked for then. Throws FileError naming it.
  template <class Work>
  void blaming_weights(const Work& work) const {
    try {
      work();
    } catch (const InvalidArgument&) {
      check_weights();
      throw;
    }
  }
  /// Throws FileError naming the first weight that is not finite. Reads all.
  void check_weights() const;

  std::filesystem::path directory;
  std::filesystem::path indexer_path;  // of a trained indexer; empty: there is none
  Device device;
  ModelConfig config;
  std::optional<Tokenizer> tokenizer;      // none: the checkpoint has none
  std::unique_ptr<Checkpoint> checkpoint;  // on a CUDA device null, once the weights are there
  WeightFormat format;
  Weights weights;  // views into the checkpoint, or on the device
  // The model's own layer that drafts tokens; null: there is none, or the device is a CUDA device.
  std::shared_ptr<const DraftLayer> draft_layer;
  std::vector<float> key_bias;  // ContextOptions::key_bias; empty: none
  WarningFn on_warning;
  mutable std::atomic<bool> told_reach = false;
  mutable std::atomic<bool> told_key_biases = false;
  mutable KeptGrammars grammars;
  /// DraftLength::share() after the latest answer that timed steps of several tokens; 0: none did.
  mutable std::atomic<double> further_token_share = 0;

  // Passes for sessions. On a CUDA device one is made at load: nothing is to be allocated there
  // later on, unless several threads generate at once.
  mutable ForwardPool forwards{config, weights, device.compute(), session_chunk};
};

}  // namespace topkv
