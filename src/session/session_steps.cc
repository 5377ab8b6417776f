// Steps of sessions: how the parts of a session take them, and what becomes of one that fails.
#include <algorithm>
#include <span>
#include <vector>

#include "src/session/session_state.h"
#include "topkv/session.h"

namespace topkv {

Step Session::State::new_step(const AttentionStep& tensors, std::int64_t session_index) {
  if (core.shape.has_indexer(tensors.layer)) {
    return {.session = &core,
            .beyond = {&indexer_alone, 1},
            .session_index = session_index,
            .tensors = tensors,
            .own_tokens_before = core.own->tokens(tensors.layer),
            .stats_before = core.stats,
            .times_before = core.times(tensors.layer)};
  }
  return {.session = &core,
          .window = &window,
          .beyond = beyond,
          .scan = scan.get(),
          .search = search.get(),
          .estimate = host_estimate,
          .session_index = session_index,
          .tensors = tensors,
          .own_tokens_before = core.own->tokens(tensors.layer),
          .stats_before = core.stats,
          .times_before = core.times(tensors.layer)};
}

void Session::State::roll_back(const Step& step) {
  core.stats = step.stats_before;
  core.times(step.layer()) = step.times_before;
  if (async_stepper) async_stepper->settle_without(step);
  try {
    roll_back(step.layer(), step.own_tokens_before);
  } catch (...) {  // which has marked it as failed
  }
}

void Session::State::code_own() {
  if (!own_codes.due()) return;
  settle();
  core.check_usable();
  own_codes.make();
}

void Session::State::settle() {
  if (async_stepper) async_stepper->settle();
}

bool Session::State::can_step_async(const AttentionStep& step) const {
  return async_stepper && async_stepper->can_step(step);
}

void Session::State::roll_back(std::int64_t layer, std::int64_t count) {
  core.own->roll_back(layer, count);
  if (!core.shape.is_attention(layer)) return;
  own_codes.forget(layer);
  try {
    core.load({layer, layer + 1});
  } catch (...) {  // a device that no longer works
    core.failed = true;
    throw;
  }
}

void Session::take_step(std::span<Session* const> sessions, const AttentionStep& step) {
  const auto reads_turn = [&](Session* session) { return session->state_->turns.takes(step); };
  if (std::ranges::any_of(sessions, reads_turn)) return take_turns(sessions, step);
  State& one = *sessions[0]->state_;
  const AttentionShape& shape = one.core.shape;
  const bool adds_tokens = step.kv_count() > 0 && step.layer == shape.first_attention();
  for (Session* session : sessions) {
    session->state_->turns.end();
    if (adds_tokens) session->state_->code_own();
  }
  const bool async = sessions.size() == 1 && one.can_step_async(step);
  for (Session* session : sessions) {
    if (async) break;
    session->state_->settle();
    session->state_->core.check_usable();
  }
  // With chunks sessions stand at different places of theirs: each goes its own way.
  bool chunks = false;
  for (Session* session : sessions) chunks = chunks || session->state_->core.meets_chunks(step);
  std::vector<Step>& steps = one.steps;
  steps.clear();
  for (Session* session : sessions)
    steps.push_back(session->state_->new_step(step, sessions.size() > 1 ? std::ssize(steps) : -1));
  for (Session* session : sessions) {
    if (session->state_->mass) session->state_->mass->begin_call();
  }
  try {
    // Reading tokens do not move the window, so it matters how they are cut: alike on all devices.
    for (std::int64_t t = 0; t < step.tokens; t += most_step_tokens) {
      std::int64_t index_keys = 0;  // of the sessions before
      for (std::int64_t i = 0; i < std::ssize(steps); ++i) {
        Step& part = steps[static_cast<std::size_t>(i)];
        const std::int64_t first = part.session->context->tokens() + part.own_tokens_before;
        const auto keys_of = [&](std::int64_t tokens) {
          return completed_index_keys(shape, step.layer, first, tokens);
        };
        part.tensors =
            step_part(shape, step, i * step.tokens + t, std::min(most_step_tokens, step.tokens - t),
                      index_keys + keys_of(t));
        index_keys += keys_of(step.tokens);
      }
      if (async) {
        one.async_stepper->step(steps[0]);
      } else if (chunks) {
        for (std::size_t i = 0; i < steps.size(); ++i) sessions[i]->state_->chunks.run(steps[i]);
      } else {
        run_step(steps);
      }
    }
  } catch (...) {
    for (std::size_t i = 0; i < steps.size(); ++i) sessions[i]->state_->roll_back(steps[i]);
    throw;
  }
  for (Session* session : sessions) {
    if (session->state_->mass) session->state_->mass->end_call();
  }
}

void Session::take_turns(std::span<Session* const> sessions, const AttentionStep& step) {
  // Sessions may read turns in different ways: each goes by itself.
  std::vector<Step> steps;
  for (Session* session : sessions)
    steps.push_back(session->state_->new_step(step, sessions.size() > 1 ? std::ssize(steps) : -1));
  std::int64_t index_keys = 0;  // of the sessions before
  try {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      State& one = *sessions[i]->state_;
      const AttentionStep part =
          step_part(one.core.shape, step, static_cast<std::int64_t>(i) * step.tokens, step.tokens,
                    index_keys);
      index_keys += completed_index_keys(one.core.shape, step.layer, one.core.position(step.layer),
                                         step.tokens);
      with_session_in_errors(steps[i].session_index, [&] {
        if (!one.turns.takes(part)) return take_step(sessions.subspan(i, 1), part);
        one.settle();
        one.core.check_usable();
        one.turns.read(part);
      });
    }
  } catch (...) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      State& one = *sessions[i]->state_;
      const bool turn = one.turns.reading();
      one.roll_back(steps[i]);
      if (turn) one.turns.take_back(step);
    }
    throw;
  }
}

}  // namespace topkv
