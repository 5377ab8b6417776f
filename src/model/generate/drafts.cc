// Drafts of answers: where they come from, and what becomes of them once a step has verified them.
#include <algorithm>
#include <optional>

#include "src/core/math/convert.h"
#include "src/core/threads/stopwatch.h"
#include "src/model/generate/decode_loop.h"
#include "src/model/generate/draft_layer_reader.h"
#include "src/model/generate/draft_reader.h"

namespace topkv {

template <class Reader, class Of>
Reader& DecodeLoop::reader_of(Session& session, const std::shared_ptr<const Of>& of) {
  std::unique_ptr<DraftReading>& reading = session.draft_reading();
  auto* const there = dynamic_cast<Reader*>(reading.get());
  if (there != nullptr && there->is_of(of)) return *there;
  reading.reset();  // its rows first: there may be room for one alone
  session.count_draft_bytes(0);
  auto made = std::make_unique<Reader>(of);
  Reader& reader = *made;
  reading = std::move(made);
  session.count_draft_bytes(of->session_bytes());
  return reader;
}

template <class Work>
void DecodeLoop::or_drop_reading(Session& session, const Work& work) {
  try {
    work();
  } catch (...) {
    session.draft_reading().reset();
    session.count_draft_bytes(0);
    throw;
  }
}

void DecodeLoop::draft(ActiveAnswer& one) {
  const Session& session = *one.session;
  if (one.options.draft == Draft::none || model_.config.dual_chunk.chunk_size > 0) return;
  const std::int64_t alike =
      one.options.draft == Draft::lookup ? few_step_tokens : session.most_alike();
  // Of the tokens that may yet be chosen, the last one is not fed.
  const std::int64_t most =
      std::min({alike - 1, session.options().capacity - session.own_tokens() - 1,
                one.options.max_tokens - std::ssize(one.result.tokens) - 1});
  if (most <= 0) return;
  find_draft(one, most);
  one.drafted = static_cast<std::size_t>(one.draft_length.choose(one.found.evidence, false));
  if (one.drafted > 0 || !(one.options.draft_model || has_layer(one))) return;
  if (!one.draft_length.guesses()) return;
  guess_draft(one, most);
  one.feeds_guesses = true;
  one.drafted = static_cast<std::size_t>(one.draft_length.choose(one.guessed.evidence, true));
}

void DecodeLoop::find_draft(ActiveAnswer& one, std::int64_t most) {
  TokenDraft draft;
  one.session->past_tokens().draft(most, draft);
  const auto unknown = [&](Token token) { return token >= model_.config.vocab_size; };
  const auto end = std::ranges::find_if(draft.tokens, unknown);
  one.found.tokens.assign(draft.tokens.begin(), end);
  for (std::int64_t i = 0; i < std::ssize(one.found.tokens); ++i)
    one.found.evidence.push_back(DraftLength::of_match(draft.matched + i));
}

void DecodeLoop::guess_draft(ActiveAnswer& one, std::int64_t most) {
  const std::shared_ptr<const DraftModel>& model = one.options.draft_model;
  Drafter& drafter = model ? static_cast<Drafter&>(reader_of<DraftReader>(*one.session, model))
                           : reader_of<DraftLayerReader>(*one.session, model_.draft_layer);
  const auto work = [&] {
    if (!one.guessing)
      one.guessing.emplace(model ? model->impl().network->forwards : model_.draft_layer->forwards);
    Forward& pass = **one.guessing;
    if (!drafter.read(one.session->past_tokens(), pass)) return;
    DraftTokens& draft = one.guessed;
    std::optional<Stopwatch> watch;  // from one guess to the next
    while (true) {
      const Drafter::Guess guess = drafter.guess(pass);
      if (watch) one.draft_length.time_guess(watch->seconds());
      if (guess.token >= model_.config.vocab_size) return;
      draft.tokens.push_back(guess.token);
      draft.evidence.push_back(DraftLength::of_probability(guess.probability));
      const std::vector<Token>& ends = model_.config.eos;
      if (std::ssize(draft.tokens) == most || !one.draft_length.guesses_on(draft.evidence) ||
          std::ranges::find(ends, guess.token) != ends.end())
        return;
      watch.emplace();
      drafter.read(guess.token, pass);
    }
  };
  or_drop_reading(*one.session, [&] { model_.blaming_weights(work); });
}

void DecodeLoop::keep_states(ActiveAnswer& one, std::span<const Token> tokens) {
  Session& session = *one.session;
  if (!has_layer(one) || one.options.draft == Draft::none || members_.size() > 1) return;
  // Once a session drafts, a step that may not have several tokens leaves no gap.
  const bool drafts = session.draft_reading() != nullptr || session.most_alike() > 1;
  if (!drafts && one.options.draft != Draft::lookup) return;
  or_drop_reading(session, [&] {
    reader_of<DraftLayerReader>(session, model_.draft_layer)
        .keep(session.own_tokens() - std::ssize(tokens), tokens, *pass_);
  });
}

void DecodeLoop::choose_after_draft(ActiveAnswer& one) {
  const std::int64_t count = 1 + static_cast<std::int64_t>(one.drafted);
  if (one.from_logits()) {
    pass_->logits(0, count, logits_.data());
    choose_from_draft(one);
  } else {
    best_.resize(static_cast<std::size_t>(count));
    pass_->best(0, best_);
    one.next = best_[0];
  }
}

void DecodeLoop::choose_from_draft(ActiveAnswer& one) {
  if (!one.from_logits()) {
    one.next = best_[one.accepted];
    return;
  }
  const auto vocabulary = static_cast<std::size_t>(model_.config.vocab_size);
  const std::span<const float> logits =
      std::span(logits_).subspan(one.accepted * vocabulary, vocabulary);
  if (first_not_finite(logits.data(), std::ssize(logits)) >= 0) fail_not_finite();
  one.choose(logits);
}

bool DecodeLoop::accept(ActiveAnswer& one) {
  if (one.accepted == one.drafted || one.fed().tokens[one.accepted] != one.next) return false;
  ++one.accepted;
  choose_from_draft(one);
  return true;
}

void DecodeLoop::end_draft(ActiveAnswer& one) {
  const auto drafted = static_cast<std::int64_t>(one.drafted);
  const auto accepted = static_cast<std::int64_t>(one.accepted);
  // Of a draft that was not fed, the first token is judged.
  const Token chosen = accepted > 0 ? one.fed().tokens[0] : one.next;
  for (const DraftTokens* const draft : {&one.found, &one.guessed}) {
    if (draft->tokens.empty() || (drafted > 0 && draft == &one.fed())) continue;
    one.draft_length.count(std::span(draft->evidence).first(1), draft->tokens[0] == chosen ? 1 : 0);
  }
  if (drafted == 0) return;
  one.draft_length.count(std::span(one.fed().evidence).first(one.drafted), accepted);
  one.drafted = one.accepted = 0;
  one.result.steps += accepted;
  one.result.drafted += drafted;
  one.result.accepted += accepted;
  if (one.feeds_guesses) {
    one.result.model_drafted += drafted;
    one.result.model_accepted += accepted;
  }
  Session& session = *one.session;
  const std::int64_t before = session.own_tokens() - drafted - 1;
  const auto kept = std::span<const Token>(tokens_).first(static_cast<std::size_t>(1 + accepted));
  const std::int64_t after = before + std::ssize(kept);
  if (session.reachable(after) == after) {
    session.truncate(after);
  } else {  // a recurrent state comes back to where it was before the step, and reads again
    session.truncate(before);
    const std::int64_t first = session.tokens();
    model_.blaming_weights(
        [&] { (**lease_).run(kept, first, first + std::ssize(kept), TextLayers::of(session)); });
  }
  session.past_tokens().set(before, kept);
}

}  // namespace topkv
