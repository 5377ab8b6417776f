#include "src/model/generate/decode_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "src/attention/block_budget.h"
#include "src/core/math/convert.h"
#include "src/core/memory/memory.h"
#include "src/core/text/printable.h"
#include "src/core/text/utf8.h"
#include "src/model/generate/draft_reader.h"
#include "src/model/generate/logprobs.h"
#include "src/store/row_store.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t most_logprobs = 20;
constexpr std::size_t prompt_end = 16;  // tokens

/// Throws InvalidArgument for a draft model that cannot draft here.
void check_draft_model(const Model::Impl& model, const Session& session,
                       const GenerateOptions& options) {
  if (!options.draft_model) return;
  if (options.draft_model->impl().of != &model) {
    throw InvalidArgument(
        "the draft model was opened for another model; open one with the model that generates");
  }
  if (options.draft == Draft::none) return;
  if (model.config.dual_chunk.chunk_size > 0) {
    throw InvalidArgument(
        "a draft model for a model with dual chunk attention, whose steps have one token; leave "
        "the draft model out");
  }
  if (options.draft != Draft::automatic || !session.device().is_cuda()) return;
  throw InvalidArgument(
      "a draft model on a CUDA device with the draft \"auto\", which drafts only where answers "
      "stay as they are, bit for bit; give the draft \"lookup\", or leave the draft model out");
}

/// Tokens of a turn that are read next, of `left` at position `first`. Pieces end at multiples of
/// query_block, so that it does not matter how a turn is cut, and the last one is a turn, too.
std::size_t turn_piece(std::int64_t first, std::size_t left) {
  if (left <= static_cast<std::size_t>(most_turn_piece)) return left;
  const std::int64_t end =
      (first + least_turn_tokens + query_block - 1) / query_block * query_block;
  return static_cast<std::size_t>(end - first);
}

}  // namespace

void check_generation(const Model::Impl& model, const Session& session,
                      std::span<const Token> prompt, const GenerateOptions& options) {
  if (prompt.empty())
    throw InvalidArgument("the prompt is empty; generation needs at least one token");
  if (options.max_tokens < 0) {
    throw InvalidArgument(
        fmt::format("{} tokens to generate; expected 0 or more", options.max_tokens));
  }
  model.check_tokens(prompt);
  model.check_session(session);
  const std::int64_t capacity = session.options().capacity;
  if (std::ssize(prompt) > capacity - session.own_tokens()) {
    throw InvalidArgument(
        fmt::format("a prompt of {} tokens for a session that holds {} of its own and has room for "
                    "{}; open it with a larger capacity",
                    prompt.size(), session.own_tokens(), capacity));
  }
  model.check_tokens(options.before);
  model.check_tokens(options.spelled);
  for (const TokenBias& one : options.sampling.logit_bias) {
    if (one.token >= 0 && one.token < model.config.vocab_size) continue;
    throw InvalidArgument(
        fmt::format("a logit bias for token {}; expected a token of the vocabulary of {}",
                    one.token, model.config.vocab_size));
  }
  for (const std::int64_t count : {options.logprobs, options.prompt_logprobs}) {
    if (count >= -1 && count <= most_logprobs) continue;
    throw InvalidArgument(
        fmt::format("log-probabilities of {} tokens; expected from 0 to {}, or -1 for none", count,
                    most_logprobs));
  }
  check_draft_model(model, session, options);
  if (options.grammar && options.grammar->impl().of != &model) {
    throw InvalidArgument(
        "the grammar was made for another model; make one for the model that generates");
  }
  for (const std::string& stop : options.stop) {
    if (!stop.empty() && valid_utf8_bytes(stop) == stop.size()) continue;
    throw InvalidArgument(
        fmt::format("the stop text {}; expected a text in UTF-8",
                    stop.empty() ? "is empty" : "\"" + printable_beginning(stop) + "\""));
  }
}

ActiveAnswer::ActiveAnswer(GenerationBatch::Id number, Session& of, std::span<const Token> asked,
                           const GenerateOptions& with, TokenFn tell, TextFn say,
                           const Model::Impl& model)
    : id(number),
      session(&of),
      prompt(asked.begin(), asked.end()),
      length(of.tokens() + std::ssize(asked)),
      options(with),
      on_token(std::move(tell)),
      on_text(std::move(say)),
      sampler(with.sampling),
      grammar(with.grammar ? with.grammar->impl().json->begin() : nullptr),
      reading(options.progress, "prompt", std::ssize(asked)),
      undo(of),
      searched_before(of.stats().search_seconds),
      draft_length(!of.device().is_cuda(), !model.config.attention.state_size.empty(),
                   with.draft_model ? with.draft_model->impl().cost : 0,
                   model.further_token_share.load(std::memory_order_relaxed)) {
  if (on_text || !options.stop.empty())
    text.emplace(model.text_tokenizer(), options.stop, options.spelled);
  sampler.read(options.before, model.config.vocab_size);
  sampler.read(prompt, model.config.vocab_size);
}

void ActiveAnswer::choose(std::span<const float> logits) {
  next = sampler.sample(logits, grammar ? grammar->allowed() : std::span<const std::int32_t>());
  if (options.logprobs >= 0) next_logprobs = logprobs_of(logits, next, options.logprobs);
}

bool ActiveAnswer::tell(std::span<const Token> end_tokens) {
  if (!decoding) decoding.emplace();
  std::vector<Token>& answer = result.tokens;
  const bool full = std::ssize(answer) >= options.max_tokens;
  if (full || std::ranges::count(end_tokens, next) > 0) {
    if (!full && options.logprobs >= 0) result.end_logprobs = std::move(next_logprobs);
    end(full ? Finish::length : Finish::end_token);
    return false;
  }
  answer.push_back(next);
  sampler.answer(next);
  if (grammar) grammar->accept(next);
  stage = Stage::told;
  if (options.logprobs >= 0) {
    result.logprobs.push_back(std::move(next_logprobs));
    if (options.on_logprobs) options.on_logprobs(result.logprobs.back());
  }
  bool goes_on = !on_token || on_token(next);
  if (text) goes_on = say(text->push(next)) && goes_on;
  if (text && text->stopped()) {
    end(Finish::stop_text);
  } else if (!goes_on) {
    end(Finish::caller);
  } else if (std::ssize(answer) == options.max_tokens) {
    end(Finish::length);
  } else {
    return true;
  }
  return false;
}

bool ActiveAnswer::say(const std::string& piece) {
  if (piece.empty()) return true;
  result.text += piece;
  return !on_text || on_text(piece);
}

void ActiveAnswer::end(Finish why) {
  result.finish = why;
  if (text) say(text->finish());
}

GenerateResult ActiveAnswer::leave() {
  if (text) result.text += text->finish();
  undo.keep();
  if (decoding) result.decode_seconds = decoding->seconds();
  return std::move(result);
}

std::int64_t ActiveAnswer::bytes_to_come() const {
  const RetrievalOptions& of = session->options();
  if (of.memory_budget > 0) return 0;
  const Context& context = session->context();
  const std::int64_t asked = length - context.tokens() + std::min(options.max_tokens, of.capacity);
  return (std::min(asked, of.capacity) - session->own_tokens()) *
         RowStore::bytes_per_token(context.shape(), context.dtype());
}

void DecodeLoop::check_memory(const ActiveAnswer& more) const {
  if (members_.empty()) return;
  std::int64_t wanted = more.bytes_to_come();
  if (wanted == 0) return;
  for (const auto& one : members_) wanted += one->bytes_to_come();
  const std::int64_t available = available_host_memory();
  if (wanted <= available) return;
  throw OutOfMemory(fmt::format("host memory for the KV rows that {} sessions may take together",
                                members_.size() + 1),
                    wanted, available, "ask for fewer tokens, or for fewer answers at once");
}

GenerationBatch::Id DecodeLoop::add(Session& session, std::span<const Token> prompt,
                                    const GenerateOptions& options, TokenFn on_token,
                                    TextFn on_text) {
  check_generation(model_, session, prompt, options);
  auto one = std::make_unique<ActiveAnswer>(next_id_, session, prompt, options, std::move(on_token),
                                            std::move(on_text), model_);
  check_memory(*one);
  const std::size_t count = members_.size() + 1;
  members_.reserve(count);
  finished_.reserve(finished_.size() + count);
  stepped_.reserve(count);
  sessions_.reserve(count);
  tokens_.reserve(count);
  positions_.reserve(count);
  best_.reserve(std::max(count, static_cast<std::size_t>(few_step_tokens)));
  const bool scores = one->options.prompt_logprobs >= 0;
  const bool drafts = one->options.draft != Draft::none;
  if (scores || one->from_logits()) {
    const auto wanted =
        1 + std::ranges::count_if(members_, [](const auto& other) { return other->from_logits(); });
    const auto rows = static_cast<std::size_t>(
        scores || drafts ? logits_at_a_time : std::min(wanted, logits_at_a_time));
    const std::size_t size = rows * static_cast<std::size_t>(model_.config.vocab_size);
    if (logits_.size() < size) logits_.resize(size);
  }
  if (!lease_) {
    lease_.emplace(model_.forwards);
    before_ = (**lease_).times();
  }
  members_.push_back(std::move(one));
  return next_id_++;
}

bool PromptTurn::before(const PromptTurn& other) const {
  const bool overdue = passed >= most_passed;
  if (overdue != (other.passed >= most_passed)) return overdue;
  if (overdue && passed != other.passed) return passed > other.passed;
  return left < other.left;
}

void DecodeLoop::read_in_order() {
  const auto found = std::ranges::find_if(
      members_, [](const auto& one) { return one->stage == ActiveAnswer::Stage::prompt; });
  if (found != members_.end()) read_chunk(**found);
}

ActiveAnswer* DecodeLoop::next_to_read() const {
  ActiveAnswer* next = nullptr;
  for (const auto& one : members_) {
    if (one->stage != ActiveAnswer::Stage::prompt) continue;
    if (next == nullptr || one->turn().before(next->turn())) next = one.get();
  }
  return next;
}

void DecodeLoop::read_by_turns(bool reads) {
  ActiveAnswer* const next = reads ? next_to_read() : nullptr;
  for (const auto& one : members_) {
    if (one->stage != ActiveAnswer::Stage::prompt) continue;
    one->passed = one.get() == next ? 0 : one->passed + 1;
  }
  if (next != nullptr) read_chunk(*next);
}

/// Tokens of a prompt that are read next. The end of a prompt is read by itself in two cases:
///
/// - A recurrent state can then come back to its beginning: templates put there what the next turn
///   leaves out.
/// - Tokens of a turn attend what a few of them choose. The last ones, which the answer follows,
///   find rows for themselves.
std::size_t DecodeLoop::piece_of(const ActiveAnswer& one) const {
  const std::size_t left = one.prompt.size() - one.read;
  const std::size_t until_end = left > prompt_end ? left - prompt_end : left;
  if (one.session->options().turns) {
    constexpr auto least = static_cast<std::size_t>(least_turn_tokens);
    if (until_end >= least) return turn_piece(one.session->tokens(), until_end);
    if (left >= least) return until_end;  // as one step it would be a turn
  }
  const std::size_t most = std::min(left, static_cast<std::size_t>(session_chunk));
  return most < left || model_.config.attention.state_size.empty() ? most : until_end;
}

Forward& DecodeLoop::pass_of(const ActiveAnswer& one, std::size_t piece) {
  if (piece <= static_cast<std::size_t>(session_chunk)) return **lease_;
  if (turn_pass_ && turn_pass_->chunk() >= static_cast<std::int64_t>(piece)) return *turn_pass_;
  end_turn();
  const auto left = static_cast<std::int64_t>(one.prompt.size() - one.read);
  try {
    turn_pass_ = std::make_unique<Forward>(model_.config, model_.weights, model_.device.compute(),
                                           std::min(left, most_turn_piece));
  } catch (const OutOfMemory&) {  // of the device: shorter pieces go through what there is
    return **lease_;
  }
  return *turn_pass_;
}

void DecodeLoop::end_turn() {
  if (!turn_pass_) return;
  spent_ += turn_pass_->times();
  turn_pass_.reset();
}

void DecodeLoop::read_chunk(ActiveAnswer& member) {
  ActiveAnswer* const one = &member;
  watching({&one, 1}, [&] {
    if (one->read == 0) model_.check_reach(one->length);
    const Stopwatch reading;
    const std::span<const Token> left = std::span<const Token>(one->prompt).subspan(one->read);
    auto piece = left.first(piece_of(*one));
    pass_ = &pass_of(*one, piece.size());
    piece = piece.first(std::min(piece.size(), static_cast<std::size_t>(pass_->chunk())));
    one->reading.chunk(std::ssize(piece), [&] {
      model_.blaming_weights([&] {
        pass_->run(piece, one->session->tokens(), one->length, TextLayers::of(*one->session));
        if (one->options.prompt_logprobs >= 0) score_prompt(*one, piece.size());
        if (piece.size() == left.size()) choose(std::ssize(piece) - 1, {&one, 1});
      });
    });
    one->session->past_tokens().set(one->session->own_tokens() - std::ssize(piece), piece);
    keep_states(*one, piece);
    one->tell_prompt_logprobs(one->read);
    one->read += piece.size();
    if (left.size() - piece.size() <= prompt_end) one->session->snapshot();
    one->result.prompt_seconds += reading.seconds();
    if (piece.size() < left.size()) return;
    one->stage = ActiveAnswer::Stage::chosen;
    end_turn();
  });
}

void DecodeLoop::feed() {
  stepped_.clear();
  for (std::size_t i = members_.size(); i-- > 0;) {  // from the end on, for some may leave
    ActiveAnswer* const one = members_[i].get();
    if (one->stage != ActiveAnswer::Stage::told) continue;
    bool can = false;
    watching({&one, 1}, [&] {
      check_step(*one);
      can = true;
    });
    if (can) stepped_.push_back(one);
  }
  std::ranges::reverse(stepped_);
  std::stable_partition(stepped_.begin(), stepped_.end(), std::mem_fn(&ActiveAnswer::from_logits));
  bool one_by_one = model_.config.dual_chunk.chunk_size > 0;  // positions are those of one text
  if (!one_by_one && !stepped_.empty()) {
    watching(stepped_, [&] { one_by_one = !step_with_room(); });
  }
  if (!one_by_one) return;
  for (ActiveAnswer* const one : stepped_) watching({&one, 1}, [&] { step({&one, 1}, false); });
}

/// False, and nothing has changed: there is no room for the rows of all and of a draft, or for what
/// the step works on. One by one, and without drafts, only those fail that find none.
bool DecodeLoop::step_with_room() {
  try {
    // Of several that step one by one, the next would take the memory of what a draft's step gave.
    step(stepped_, stepped_.size() == 1);
    return true;
  } catch (const OutOfMemory&) {
    if (stepped_.size() == 1 && stepped_[0]->drafted == 0) throw;
  }
  for (std::size_t i = 0; i < sessions_.size(); ++i)
    sessions_[i]->truncate(positions_[i] - sessions_[i]->context().tokens());
  return false;
}

void DecodeLoop::check_step(const ActiveAnswer& one) const {
  model_.check_reach(one.session->tokens() + 1);
  const std::int64_t capacity = one.session->options().capacity;
  if (one.session->own_tokens() < capacity) return;
  throw InvalidArgument(
      fmt::format("the session holds {} tokens of its own, all that it has room for; open it with "
                  "a larger capacity or generate fewer",
                  capacity));
}

void DecodeLoop::step(std::span<ActiveAnswer* const> those, bool drafts) {
  sessions_.clear();
  tokens_.clear();
  positions_.clear();
  for (ActiveAnswer* const one : those) {
    const Token last = one->result.tokens.back();
    sessions_.push_back(one->session);
    tokens_.push_back(last);
    positions_.push_back(one->session->tokens());
    one->session->past_tokens().set(one->session->own_tokens(), {&last, 1});
    one->found.clear();
    one->guessed.clear();
    one->feeds_guesses = false;
    one->drafted = one->accepted = 0;
  }
  ActiveAnswer& first = *those[0];
  if (drafts) draft(first);
  const std::size_t drafted = first.drafted;
  const std::vector<Token>& draft_tokens = first.fed().tokens;
  tokens_.insert(tokens_.end(), draft_tokens.begin(),
                 draft_tokens.begin() + static_cast<std::ptrdiff_t>(drafted));
  const Stopwatch stepping;
  Forward& forward = **lease_;
  pass_ = &forward;
  model_.blaming_weights([&] {
    const TextLayers texts = TextLayers::of(std::span<Session* const>(sessions_));
    if (model_.config.dual_chunk.chunk_size > 0 || drafted > 0) {
      forward.run(tokens_, positions_[0], positions_[0] + std::ssize(tokens_),
                  drafted > 0 ? TextLayers::of(*first.session) : texts);
    } else {
      forward.run_each(tokens_, positions_, texts);
    }
    if (drafted > 0) {
      choose_after_draft(first);
    } else {
      choose(0, those);
    }
  });
  keep_states(first, tokens_);
  if (those.size() == 1) first.draft_length.time(std::ssize(tokens_), stepping.seconds());
  for (ActiveAnswer* const one : those) {
    ++one->result.steps;
    one->stage = ActiveAnswer::Stage::chosen;
  }
}

void DecodeLoop::choose(std::int64_t at, std::span<ActiveAnswer* const> those) {
  Forward& forward = *pass_;
  const auto vocabulary = static_cast<std::size_t>(model_.config.vocab_size);
  const auto sampled = static_cast<std::int64_t>(
      std::ranges::partition_point(those, &ActiveAnswer::from_logits) - those.begin());
  for (std::int64_t first = 0; first < sampled; first += logits_at_a_time) {
    const std::int64_t count = std::min(logits_at_a_time, sampled - first);
    forward.logits(at + first, count, logits_.data());
    if (first_not_finite(logits_.data(), count * model_.config.vocab_size) >= 0) fail_not_finite();
    for (std::int64_t i = 0; i < count; ++i) {
      those[static_cast<std::size_t>(first + i)]->choose(
          std::span(logits_).subspan(static_cast<std::size_t>(i) * vocabulary, vocabulary));
    }
  }
  const auto greedy = those.subspan(static_cast<std::size_t>(sampled));
  if (greedy.empty()) return;
  best_.resize(greedy.size());
  forward.best(at + sampled, best_);
  for (std::size_t i = 0; i < greedy.size(); ++i) greedy[i]->next = best_[i];
}

void DecodeLoop::tell() {
  for (std::size_t i = 0; i < members_.size();) {
    ActiveAnswer* const one = members_[i].get();
    const std::size_t before = members_.size();
    if (one->stage == ActiveAnswer::Stage::chosen) {
      watching({&one, 1}, [&] {
        bool goes_on = one->tell(model_.config.eos);
        while (goes_on && accept(*one)) goes_on = one->tell(model_.config.eos);
        end_draft(*one);
        if (goes_on) return;
        finished_.push_back({.id = one->id, .result = one->leave()});
        erase(i);
      });
    }
    if (members_.size() == before) ++i;
  }
}

template <class Work>
void DecodeLoop::watching(std::span<ActiveAnswer* const> those, const Work& work) {
  try {
    work();
  } catch (...) {
    for (ActiveAnswer* const one : those) fail(*one, std::current_exception());
  }
}

void DecodeLoop::fail(const ActiveAnswer& one, const std::exception_ptr& error) {
  const auto at = std::ranges::find_if(members_, [&](const auto& m) { return m.get() == &one; });
  finished_.push_back({.id = one.id, .error = error});
  erase(static_cast<std::size_t>(at - members_.begin()));
}

void DecodeLoop::finished(std::vector<GenerationBatch::Finished>& into) {
  if (finished_.empty()) return;
  std::swap(into, finished_);
  std::ranges::sort(into, {}, &GenerationBatch::Finished::id);
}

GenerateResult DecodeLoop::remove(GenerationBatch::Id id) {
  const auto at = std::ranges::find_if(members_, [&](const auto& one) { return one->id == id; });
  if (at == members_.end()) {
    throw InvalidArgument(
        fmt::format("the batch has no session of id {}; it may have finished", id));
  }
  GenerateResult result = (*at)->leave();
  erase(static_cast<std::size_t>(at - members_.begin()));
  return result;
}

void DecodeLoop::erase(std::size_t member) {
  const auto at = members_.begin() + static_cast<std::ptrdiff_t>(member);
  if (const double share = (*at)->draft_length.share(); share > 0)
    model_.further_token_share.store(share, std::memory_order_relaxed);
  try {
    searched_ += (*at)->session->stats().search_seconds - (*at)->searched_before;
    if (members_.size() == 1) {
      end_turn();
      spent_ += (**lease_).times() - before_;
    }
  } catch (const std::exception&) {
    // Only a device that no longer works: the session then refuses all calls itself.
  }
  members_.erase(at);
  if (!members_.empty()) return;
  turn_pass_.reset();
  lease_.reset();
}

std::int64_t DecodeLoop::reading() const {
  return std::ranges::count_if(
      members_, [](const auto& one) { return one->stage == ActiveAnswer::Stage::prompt; });
}

ForwardTimes DecodeLoop::times() const {
  ForwardTimes times = spent_;
  if (lease_) times += (**lease_).times() - before_;
  if (turn_pass_) times += turn_pass_->times();
  times.search = searched_;
  for (const auto& one : members_)
    times.search += one->session->stats().search_seconds - one->searched_before;
  times.attention -= times.search;
  return times;
}

}  // namespace topkv
