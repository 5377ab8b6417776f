// Draft models: a small model guesses the next tokens, and a large one verifies them in one step.
//
//     auto small = std::make_shared<topkv::Model>(topkv::Model::load("models/qwen-0.6b", device));
//     auto drafts = std::make_shared<topkv::DraftModel>(small, model);
//     model.generate(session, prompt, {.draft_model = drafts});
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "topkv/model.h"

namespace topkv {

/// Options of a draft model.
struct DraftModelOptions {
  /// The most tokens of a text's end that the draft model reads, from least_draft_window to
  /// most_draft_window. It never reads more than its reach (ModelConfig::reach).
  std::int64_t window = 1024;
  /// How its rows are stored. A CUDA device takes bf16, q8 and q4.
  KvDType rows = {};
};

/// The least and the largest DraftModelOptions::window.
inline constexpr std::int64_t least_draft_window = 32;
inline constexpr std::int64_t most_draft_window = std::int64_t{1} << 24;

/// A model that drafts tokens for another model of the same vocabulary
/// (GenerateOptions::draft_model; Leviathan et al. 2023, Chen et al. 2023). The other model
/// verifies drafts and chooses each token itself, so that its answers stay as they are without
/// drafts.
///
/// It is opened once and shared by all sessions. A session for which it drafts keeps rows for it:
/// rows of the last tokens of the session's text, `window` at most. When the window is full, the
/// draft model reads the last half of it anew. Texts are read when a token is drafted, as far as
/// their tokens are known (Context::knows_tokens).
///
/// Threads: safe from many threads, each with its own session.
class DraftModel {
 public:
  /// Opens a draft model for `of`, which outlives it.
  ///
  /// Throws InvalidArgument for a null model, for a window out of range and for rows
  /// that the draft model's device does not take. Throws InvalidArgument when the vocabularies
  /// differ:
  /// - the tokenizers have different numbers of tokens, or a token of another content;
  /// - one of the two models has no tokenizer;
  /// - neither has a tokenizer, and ModelConfig::vocab_size differs.
  ///
  /// Throws OutOfMemory when the host has no memory for the rows of one session.
  DraftModel(std::shared_ptr<const Model> model, const Model& of,
             const DraftModelOptions& options = {});
  ~DraftModel();
  DraftModel(const DraftModel&) = delete;  // sessions share one by pointer
  DraftModel& operator=(const DraftModel&) = delete;

  /// Returns the model that drafts.
  const Model& model() const;
  /// Returns the most tokens of a text's end that the model reads.
  std::int64_t window() const;
  /// Returns the host memory that the rows and recurrent states of one session take, in bytes.
  std::int64_t session_bytes() const;

  /// Returns the memory of a CUDA device that a draft model takes: its weights, the activations of
  /// a step, and one session. Reads the configuration and the headers of the weights. Returns 0 for
  /// the host. Throws FileError and Unsupported as Model::load does, and InvalidArgument for a
  /// window out of range.
  static std::int64_t device_bytes(const std::filesystem::path& model, const Device& device,
                                   const DraftModelOptions& options = {});

  struct Impl;               ///< for topkv itself
  const Impl& impl() const;  ///< for topkv itself

 private:
  std::unique_ptr<const Impl> impl_;
};

}  // namespace topkv
