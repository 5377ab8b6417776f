// Generation, for one session or many: the one place where prompts are read and answers grow.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/core/threads/stopwatch.h"
#include "src/model/generate/answer_text.h"
#include "src/model/generate/draft_length.h"
#include "src/model/generate/generate_parts.h"
#include "src/model/generate/grammar_impl.h"
#include "src/model/generate/progress_scope.h"
#include "src/model/generate/sampler.h"
#include "src/session/past_tokens.h"
#include "topkv/generation.h"

namespace topkv {

/// Tokens that may follow, and what speaks for each.
struct DraftTokens {
  void clear() {
    tokens.clear();
    evidence.clear();
  }
  std::vector<Token> tokens;
  std::vector<DraftLength::Evidence> evidence;
};

/// One of the sessions that answer together.
struct ActiveAnswer {
  enum class Stage : std::uint8_t {
    prompt,  ///< has some of it before it
    chosen,  ///< has a next token, which is not told
    told,    ///< its last token is told, and is to be fed
  };

  ActiveAnswer(GenerationBatch::Id id, Session& of, std::span<const Token> asked,
               const GenerateOptions& with, TokenFn tell, TextFn say, const Model::Impl& model);

  /// The draft whose first tokens the last step fed.
  const DraftTokens& fed() const { return feeds_guesses ? guessed : found; }
  /// Whether its next token is chosen from logits; else it is the likeliest.
  bool from_logits() const { return sampler.needs_logits() || options.logprobs >= 0 || grammar; }
  /// Chooses what follows. REQUIRES: from_logits; they are finite.
  void choose(std::span<const float> logits);
  /// Reports the prompt's log-probabilities from number `first` on to the callback.
  void tell_prompt_logprobs(std::size_t first) const;
  /// Tells the chosen token. False where the answer ends with it or before.
  bool tell(std::span<const Token> end_tokens);
  /// The result as it is, which the session keeps: it leaves.
  GenerateResult leave();
  /// Bytes of rows that its session may yet take of what the machine has free; 0 where it has a
  /// budget of its own.
  std::int64_t bytes_to_come() const;
  /// REQUIRES: the prompt is not read to its end.
  PromptTurn turn() const {
    return {.left = std::ssize(prompt) - static_cast<std::int64_t>(read), .passed = passed};
  }

  GenerationBatch::Id id;
  Session* session;
  std::vector<Token> prompt;
  std::size_t read = 0;  // tokens of it
  std::int64_t length;   // of the session, with the prompt
  GenerateOptions options;
  TokenFn on_token;
  TextFn on_text;
  Sampler sampler;
  std::unique_ptr<GrammarState> grammar;  // as far as the answer is told; null: any text
  std::optional<AnswerText> text;         // where it is asked for
  ProgressScope reading;
  SessionRollback undo;
  double searched_before;
  Stage stage = Stage::prompt;
  std::int64_t passed = 0;  // steps that read another prompt, since this one was read last
  Token next = 0;
  TokenLogprobs next_logprobs = {};  // where they are asked for
  // Drafts of the last step, which fed the first tokens of one of them.
  DraftTokens found = {};    // in the text
  DraftTokens guessed = {};  // by the draft model, or by the model's own draft layer
  bool feeds_guesses = false;
  std::size_t drafted = 0;   // tokens that were fed
  std::size_t accepted = 0;  // of these, that were chosen and told
  DraftLength draft_length;
  std::optional<ForwardLease> guessing;  // of the draft model or layer, once it drafts
  GenerateResult result = {};
  std::optional<Stopwatch> decoding;  // from its first token on

 private:
  /// Tells a piece of text, unless it is empty.
  bool say(const std::string& piece);
  /// Ends the answer, with the text that was held back.
  void end(Finish why);
};

/// Sessions that answer together. A failure of one is kept for it among those that finished, and
/// its session is then as it was before its add.
class DecodeLoop {
 public:
  static constexpr std::int64_t logits_at_a_time = 16;  ///< tokens, whose logits are in memory

  explicit DecodeLoop(const Model::Impl& model) : model_(model) {}

  /// Throws as Model::generate does before any work. REQUIRES: Session::check_together with those
  /// that are in.
  GenerationBatch::Id add(Session& session, std::span<const Token> prompt,
                          const GenerateOptions& options, TokenFn on_token, TextFn on_text);

  /// Reads a chunk of the first prompt that is not read, if there is one.
  void read_in_order();
  /// Reads a chunk of the prompt whose turn it is, if there is one and `reads`; counts that all
  /// others were passed over.
  void read_by_turns(bool reads);
  /// Feeds the last tokens of all that told one, together.
  void feed();
  /// Tells the tokens that are chosen, and those of drafts that are accepted.
  void tell();
  /// Those that left since this was last called. into: empty, with room for all members. Does not
  /// throw.
  void finished(std::vector<GenerationBatch::Finished>& into);

  GenerateResult remove(GenerationBatch::Id id);
  std::span<const std::unique_ptr<ActiveAnswer>> members() const { return members_; }
  std::int64_t reading() const;
  /// The member whose prompt is to be read next; null: all prompts are read.
  ActiveAnswer* next_to_read() const;
  ForwardTimes times() const;

 private:
  std::size_t piece_of(const ActiveAnswer& one) const;
  /// The pass that reads a piece: the lease's, or one for the pieces of a turn.
  Forward& pass_of(const ActiveAnswer& one, std::size_t piece);
  /// Gives back what turns are read with.
  void end_turn();
  void read_chunk(ActiveAnswer& one);
  /// Feeds the last tokens of some and chooses what follows.
  bool step_with_room();
  /// Drafts what may follow the last token of the one that steps.
  void draft(ActiveAnswer& one);
  /// Finds up to `most` tokens in the text.
  void find_draft(ActiveAnswer& one, std::int64_t most);
  /// Has the draft model guess up to `most` tokens, or the model's own draft layer.
  void guess_draft(ActiveAnswer& one, std::int64_t most);
  /// Returns the text as a draft model or a draft layer has read it: the session's, or a new one.
  template <class Reader, class Of>
  static Reader& reader_of(Session& session, const std::shared_ptr<const Of>& of);
  /// Runs work on what a session keeps for drafts. What fails leaves it unusable: it is dropped.
  template <class Work>
  static void or_drop_reading(Session& session, const Work& work);
  /// Whether the model's own draft layer may draft for a member.
  bool has_layer(const ActiveAnswer& one) const {
    return model_.draft_layer && !one.options.draft_model;
  }
  /// Keeps the hidden states of the tokens that a member's session was given last, by pass_, if the
  /// model's own draft layer may draft for it.
  void keep_states(ActiveAnswer& one, std::span<const Token> tokens);
  /// Chooses what follows the last token that was fed before a draft. Keeps the logits, or the best
  /// tokens, behind the tokens of the draft.
  void choose_after_draft(ActiveAnswer& one);
  /// Chooses what follows the draft's accepted tokens.
  void choose_from_draft(ActiveAnswer& one);
  /// Whether a member's next token, which is told, is the one that its draft fed. Then chooses what
  /// follows it.
  bool accept(ActiveAnswer& one);
  /// Takes back the tokens of a draft that were not accepted.
  void end_draft(ActiveAnswer& one);
  /// drafts: the first, which then steps alone, may draft.
  void step(std::span<ActiveAnswer* const> those, bool drafts);
  /// Chooses what follows the last run's tokens from number `at` on. REQUIRES: those that choose
  /// from logits come first.
  void choose(std::int64_t at, std::span<ActiveAnswer* const> those);
  /// Runs work of one of them, or of several; where it throws, all of these leave.
  template <class Work>
  void watching(std::span<ActiveAnswer* const> those, const Work& work);
  void fail(const ActiveAnswer& one, const std::exception_ptr& error);
  /// Erases a member and counts what its session searched.
  void erase(std::size_t member);
  /// Adds log-probabilities of the prompt's tokens that follow those of the last run, which were
  /// `count` from one.read on. The logits of a few tokens are there at a time.
  void score_prompt(ActiveAnswer& one, std::size_t count);
  void check_step(const ActiveAnswer& one) const;
  /// Throws OutOfMemory where what is free does not suffice for all rows that one more may take
  /// beside those of the members: each session looked at its own alone when it was opened.
  void check_memory(const ActiveAnswer& more) const;

  const Model::Impl& model_;
  std::optional<ForwardLease> lease_;   // while there are members
  std::unique_ptr<Forward> turn_pass_;  // of more tokens; null: no turn is being read
  Forward* pass_ = nullptr;             // the one that ran last
  ForwardTimes before_;                 // of the lease's pass, when it was taken
  ForwardTimes spent_;                  // by passes that were given back
  double searched_ = 0;                 // by members that left
  GenerationBatch::Id next_id_ = 0;
  std::vector<std::unique_ptr<ActiveAnswer>> members_;  // in the order of their add
  std::vector<GenerationBatch::Finished> finished_;     // with room for all members
  // Of a step.
  std::vector<ActiveAnswer*> stepped_;
  std::vector<Session*> sessions_;
  std::vector<Token> tokens_;
  std::vector<std::int64_t> positions_;
  std::vector<Token> best_;    // of the tokens of a step
  std::vector<float> logits_;  // [up to logits_at_a_time, vocab_size]
};

}  // namespace topkv
