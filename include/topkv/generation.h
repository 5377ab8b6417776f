// Continuous batching: answers that grow together while sessions come and go.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "topkv/model.h"
#include "topkv/session.h"

namespace topkv {

/// A prompt that waits for its next chunk. Prompts take turns by chunk: the one with the fewest
/// tokens left is read first, so that a long prompt does not hold up the short ones. A prompt that
/// most_passed steps have passed over goes before all others, so that it does not wait forever.
struct PromptTurn {
  static constexpr std::int64_t most_passed = 8;

  std::int64_t left = 0;    ///< tokens that are not read yet
  std::int64_t passed = 0;  ///< steps since it was added or read last

  /// Whether this prompt is read before the other one.
  bool before(const PromptTurn& other) const;
};

/// Sessions over one context that answer in joint steps, as in Model::generate_together, but each
/// with options of its own, and joining and leaving between steps. Each answers what it would
/// alone, but for rounding. One thread at a time; what is called within a step and calls the batch
/// in turn is given InvalidArgument. While it holds sessions it has a forward pass of the model for
/// itself.
class GenerationBatch {
 public:
  using Id = std::int64_t;
  static constexpr std::int64_t most_sessions = 256;

  /// A session that has left by itself.
  struct Finished {
    Id id = 0;
    GenerateResult result = {};  ///< times are the batch's, and 0 here
    /// What ended it otherwise than its options, callbacks or the model: its session is then as it
    /// was before its add. Null: nothing.
    std::exception_ptr error = {};
  };

  /// The model outlives it.
  explicit GenerationBatch(const Model& model);
  /// Sessions that are still in are then as they were before their add; remove keeps them.
  ~GenerationBatch();
  GenerationBatch(GenerationBatch&&) noexcept;
  GenerationBatch& operator=(GenerationBatch&&) noexcept;

  /// Queues a session with its prompt, which is copied; ids count from 0. It outlives its stay, in
  /// which nobody else uses it. Callbacks are called within step. Throws, changing nothing, as
  /// Model::generate does before any work, InvalidArgument beyond most_sessions, as
  /// Session::check_together does, and OutOfMemory where rows that all may yet take (by max_tokens
  /// and capacity, but for sessions with a memory_budget) are more than what is free.
  Id add(Session& session, std::span<const Token> prompt, const GenerateOptions& options = {},
         TokenFn on_token = {}, TextFn on_text = {});

  /// Reads a chunk (256 tokens, or all that is left) of the prompt whose turn it is (PromptTurn).
  /// Then makes a joint step, a token each, of all sessions whose prompts were read before. Tells
  /// their tokens, and the first token of a prompt that ends. Returns the sessions that ended, in
  /// the order of their add; an empty batch returns none. (With dual chunk attention the sessions
  /// of a step go one after the other.)
  ///
  /// reads: false to read no prompt in this step, which then passes over all of them. A caller with
  /// several batches has one of them read at a time: the one whose next_prompt is before the
  /// others.
  ///
  /// A failure of one session (a callback throws, its capacity does not suffice, or memory for its
  /// prompt) is its own, and the others go on. A failure of the joint step is a failure of all that
  /// take part in it. Where the joint step lacks memory, each session steps by itself, and only
  /// those fail that find none.
  /// Throws std::bad_alloc alone, for want of room to list those that ended: the next step gives
  /// them.
  std::vector<Finished> step(bool reads = true);

  /// Takes one out, with what it has so far. Its session keeps what it was fed: its prompt, or the
  /// part that was read, and its answer but for the last token. Text that was held back is in the
  /// result, and not told. Throws InvalidArgument when there is none of that id (any longer).
  GenerateResult remove(Id id);

  /// Sessions that are in.
  std::int64_t size() const;
  /// Of those, the ones whose prompts are not read to their ends.
  std::int64_t reading() const;
  /// The prompt that the next step reads from; none when all prompts are read.
  std::optional<PromptTurn> next_prompt() const;
  /// Where the time of all steps went. On a CUDA device it waits for the steps that were given.
  ForwardTimes times() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace topkv
