// Continuous batching: answers that grow together, while sessions join and leave between steps.
//
//     topkv::GenerationBatch batch(model);
//     batch.add(a, prompt_a, {.max_tokens = 100});
//     while (batch.size() > 0) {
//       if (somebody_asks()) batch.add(b, prompt_b, {.max_tokens = 50});
//       for (auto& [id, result, error] : batch.step()) answer(id, result, error);
//     }
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

/// The turn of a prompt that waits for its next chunk.
///
/// Prompts take turns by chunk. The prompt with the fewest tokens left is read first, so that a
/// long prompt does not hold up short ones. A prompt that most_passed steps have passed over goes
/// before all others, so that it does not wait forever.
struct PromptTurn {
  static constexpr std::int64_t most_passed = 8;

  std::int64_t left = 0;    ///< tokens of the prompt that are not read yet
  std::int64_t passed = 0;  ///< steps since the prompt was added or last read

  /// Returns whether this prompt is read before the other one.
  bool before(const PromptTurn& other) const;
};

/// Sessions over one context that answer in joint steps. Each session has options of its own, and
/// sessions join and leave between steps. Each answer differs by rounding alone from the answer
/// that Model::generate would give.
///
/// One thread at a time uses a batch. A callback that calls its own batch gets InvalidArgument.
/// While a batch holds sessions, it keeps a forward pass of the model for itself.
class GenerationBatch {
 public:
  using Id = std::int64_t;
  static constexpr std::int64_t most_sessions = 256;

  /// A session that has ended and left the batch.
  struct Finished {
    Id id = 0;
    GenerateResult result = {};  ///< the answer; its `times` are 0 (see GenerationBatch::times)
    /// The failure that ended the answer. The session is then as it was before its add. Null: the
    /// answer ended by its options, its callbacks or the model.
    std::exception_ptr error = {};
  };

  /// Makes an empty batch. The model must outlive it.
  explicit GenerationBatch(const Model& model);
  /// Ends the batch. Sessions that are still in it are then as they were before their add. To keep
  /// a session's tokens, call remove first.
  ~GenerationBatch();
  GenerationBatch(GenerationBatch&&) noexcept;
  GenerationBatch& operator=(GenerationBatch&&) noexcept;

  /// Queues a session with a prompt, and returns its id. Ids count from 0. The prompt is copied.
  /// The callbacks are called within step.
  ///
  /// REQUIRES: the session lives until it has left the batch, and nobody else uses it until then.
  ///
  /// Throws, and changes nothing:
  /// - as Model::generate does before any work;
  /// - as Session::check_together does for the sessions of the batch and this one;
  /// - InvalidArgument when the batch holds most_sessions sessions;
  /// - OutOfMemory when the rows that all sessions may yet take are more than the free memory. A
  ///   session may take rows up to max_tokens and its capacity. Sessions with a memory_budget do
  ///   not count.
  Id add(Session& session, std::span<const Token> prompt, const GenerateOptions& options = {},
         TokenFn on_token = {}, TextFn on_text = {});

  /// Makes one step, and returns the sessions that ended in it, in the order of their add. An empty
  /// batch returns none.
  ///
  /// A step reads one chunk of the prompt whose turn it is (PromptTurn): 256 tokens, or the rest.
  /// If the session reads turns (RetrievalOptions::turns), a chunk of a long prompt has
  /// from least_turn_tokens to 2 * least_turn_tokens + 127 tokens.
  /// It then makes a joint step of one token for every session whose prompt was read before.
  /// Callbacks receive these tokens, and the first token of a prompt that was read to its end. With
  /// dual chunk attention the sessions are stepped one after the other.
  ///
  /// reads: false reads no prompt in this step, which counts as passing over every prompt. A caller
  /// with several batches lets one of them read at a time: the batch whose next_prompt is before
  /// the others.
  ///
  /// Failures:
  /// - A failure of one session is its own, and the others go on: a callback that throws, a
  ///   capacity that is exceeded, or memory for its prompt that is missing.
  /// - A failure of the joint step is a failure of all sessions that take part in it.
  /// - If the joint step lacks memory, each session steps by itself. Only sessions fail that find
  ///   no memory then.
  ///
  /// Throws std::bad_alloc alone, when there is no memory to list the sessions that ended. The next
  /// step returns them.
  std::vector<Finished> step(bool reads = true);

  /// Removes a session, and returns the answer that it has so far.
  ///
  /// The session keeps the tokens that it was fed: the prompt, or the part that was read, and the
  /// answer without its last token. The result has the text that was held back, which no callback
  /// receives. Throws InvalidArgument when the batch has no session of this id.
  GenerateResult remove(Id id);

  /// Returns the number of sessions in the batch.
  std::int64_t size() const;
  /// Returns the number of sessions whose prompts are not read to their ends.
  std::int64_t reading() const;
  /// Returns the turn of the prompt that the next step reads from. Not set when all prompts are
  /// read.
  std::optional<PromptTurn> next_prompt() const;
  /// Returns the times of all steps. On a CUDA device it waits for the steps that were given.
  ForwardTimes times() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace topkv
