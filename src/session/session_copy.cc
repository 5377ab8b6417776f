// Sessions out of sessions: forks, and own rows that go to a file and come back.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "src/context/shape_difference.h"
#include "src/session/session_state.h"
#include "topkv/error.h"

namespace topkv {
Session Session::fork() const {
  state_->settle();
  state_->core.check_usable();
  auto state =
      std::make_unique<State>(state_->core.context, state_->core.options, state_->core.device);
  state->core.own->copy_from(*state_->core.own);
  state->core.indexer.copy_choices(state_->core.indexer);
  state->own_codes.start();
  const std::int64_t code_bytes = state->core.stats.device_index_bytes;
  const std::int64_t row_bytes = state->core.stats.device_row_bytes;
  state->core.stats = stats();
  state->core.stats.coded_tokens = 0;
  state->core.stats.coded_bytes = 0;
  state->core.stats.draft_bytes = 0;
  state->core.stats.device_index_bytes = code_bytes;
  state->core.stats.device_row_bytes = row_bytes;
  state->core.step_times = state_->core.step_times;
  state->figures_before = tail_figures();
  state->turns.start_with(turn_shares());
  state->past = state_->past;
  if (state->mass) state->mass->set_sums(state_->mass->sums(tokens()));
  state->core.load({0, state->core.shape.layers});
  return Session(std::move(state));
}

std::shared_ptr<const Context> Session::own_rows() const {
  State& s = *state_;
  s.settle();
  s.core.check_usable();
  s.check_between_steps("own_rows");
  const auto own = std::make_shared<LayerStates>(s.core.shape, s.core.context->dtype(),
                                                 s.core.own->tokens(0), 0, "session's rows");
  own->rows().index_keys().begin_at(s.core.context->tokens());
  own->copy_from(*s.core.own);
  own->freeze();
  return Context(s.core.shape, {.states = own, .tokens_before = s.core.context->tokens()})
      .with_index("exact");
}

void Session::resume(const Context& own_rows) {
  State& s = *state_;
  s.settle();
  s.core.check_usable();
  if (s.core.own->tokens(0) > 0) {
    throw InvalidArgument(
        fmt::format("resume: the session has {} tokens of its own; give the rows to a new one",
                    s.core.own->tokens(0)));
  }
  const LayerStates& states = *own_rows.segment_->states;
  const RowStore& rows = states.rows();
  if (const std::string other = shape_difference(own_rows.shape(), s.core.shape); !other.empty())
    throw InvalidArgument("resume: the rows' attention shape differs from the session's: " + other);
  const RowStore& own = s.core.own->rows();
  if (rows.dtype() != own.dtype()) {
    throw InvalidArgument(fmt::format("resume: rows in {}; the session's are in {}",
                                      rows.dtype().name(), own.dtype().name()));
  }
  const std::int64_t before = own_rows.segment_->tokens_before;
  if (before >= 0 && before != s.core.context->tokens()) {
    throw InvalidArgument(fmt::format(
        "resume: the rows came after {} tokens of a context; the session's context has {}", before,
        s.core.context->tokens()));
  }
  if (!rows.has_channels_of(own)) {
    throw InvalidArgument(
        "resume: the keys of these rows have other scales or another bias than the context's keys; "
        "give rows of a session over this context");
  }
  if (rows.index_keys().first_position() != own.index_keys().first_position()) {
    throw InvalidArgument(
        fmt::format("resume: the index keys of these rows begin at position {}; the session's "
                    "begin at {}",
                    rows.index_keys().first_position(), own.index_keys().first_position()));
  }
  if (own_rows.tokens() > own.capacity()) {
    throw InvalidArgument(fmt::format("resume: {} tokens in a session with capacity for {}",
                                      own_rows.tokens(), own.capacity()));
  }
  s.turns.end();
  try {
    s.core.own->copy_from(states);
    s.own_codes.start();
    s.core.load({0, s.core.shape.layers});
  } catch (...) {
    for (std::int64_t layer = 0; layer < s.core.shape.layers; ++layer) {
      try {
        s.roll_back(layer, 0);
      } catch (...) {  // which has marked it as failed
      }
    }
    throw;
  }
}

}  // namespace topkv
