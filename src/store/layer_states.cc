#include "src/store/layer_states.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/math/convert.h"
#include "topkv/error.h"

namespace topkv {

void RecurrentState::advance(std::int64_t tokens, std::span<const float> values) {
  const std::int64_t now = this->tokens() + tokens;
  // The memory of the step before the last one serves again.
  Point next;
  if (points_.size() >= 2 && !points_[points_.size() - 2].kept) {
    next = std::move(points_[points_.size() - 2]);
    points_.erase(points_.end() - 2);
  }
  next.tokens = now;
  next.values.assign(values.begin(), values.end());
  points_.push_back(std::move(next));
}

void RecurrentState::snapshot() {
  if (!points_.empty()) points_.back().kept = true;
}

std::int64_t RecurrentState::reachable(std::int64_t tokens) const {
  std::int64_t most = 0;
  for (const Point& point : points_)
    if (point.tokens <= tokens) most = point.tokens;
  return most;
}

void RecurrentState::truncate(std::int64_t tokens) {
  std::erase_if(points_, [tokens](const Point& point) { return point.tokens > tokens; });
}

void RecurrentState::forget_step() {
  const std::int64_t last = tokens();
  std::erase_if(points_, [last](const Point& point) { return !point.kept && point.tokens < last; });
}

std::int64_t RecurrentState::bytes() const {
  return std::ssize(points_) * size_ * static_cast<std::int64_t>(sizeof(float));
}

void RecurrentState::fields(std::int64_t tokens, Archive& archive) {
  if (!archive.reading()) forget_step();
  std::vector<std::int64_t> all;
  for (const Point& point : points_) all.push_back(point.tokens);
  archive.array(all);
  if (const std::int64_t last = all.empty() ? 0 : all.back(); last != tokens)
    archive.check(false,
                  fmt::format("its last state stands for {} tokens; expected {}", last, tokens));
  if (archive.reading()) {
    points_.clear();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::int64_t before = i == 0 ? 0 : all[i - 1];
      if (all[i] <= before)
        archive.check(false, fmt::format("state {} stands for {} tokens; expected more than {}", i,
                                         all[i], before));
      points_.push_back({all[i], true});
    }
  }
  for (Point& point : points_) archive.elements(point.values, size_);
}

std::span<const float> LayerStates::values(std::int64_t layer) const {
  if (layer >= 0 && layer < std::ssize(states_) && state(layer).size() > 0)
    return state(layer).values();
  throw InvalidArgument(fmt::format(
      "layer {} has no recurrent state; expected a layer that has a state_size", layer));
}

void LayerStates::advance(std::int64_t layer, std::int64_t tokens, std::span<const float> values) {
  this->values(layer);  // checks the layer
  const std::int64_t size = state(layer).size();
  if (std::ssize(values) != size || tokens < 1) {
    throw InvalidArgument(
        fmt::format("advance: layer {} is given {} tokens and a state of {} values; expected 1 "
                    "token or more, and {} values",
                    layer, tokens, values.size(), size));
  }
  if (const std::int64_t bad = first_not_finite(values.data(), size); bad >= 0) {
    throw InvalidArgument(
        fmt::format("advance: value {} of the state of layer {} is {}; values must be finite", bad,
                    layer, values[static_cast<std::size_t>(bad)]));
  }
  if (tokens > rows_.capacity() - this->tokens(layer)) {
    throw InvalidArgument(
        fmt::format("advance: layer {} holds {} tokens and gets {} more, with room for {}: give a "
                    "larger capacity",
                    layer, this->tokens(layer), tokens, rows_.capacity()));
  }
  states_[static_cast<std::size_t>(layer)].advance(tokens, values);
}

void LayerStates::follow(std::int64_t row_layer) {
  for (std::int64_t layer = row_layer + 1; layer < std::ssize(states_); ++layer) {
    if (rows_.row_layer(layer) == row_layer)
      rows_.extend(layer, rows_.size(row_layer) - rows_.size(layer));
  }
}

void LayerStates::snapshot() {
  for (RecurrentState& state : states_) state.snapshot();
}

std::int64_t LayerStates::reachable(std::int64_t tokens) const {
  // A layer may not have a token that another layer has, so it takes several rounds.
  for (std::int64_t before = -1; before != tokens;) {
    before = tokens;
    for (std::int64_t layer = 0; layer < std::ssize(states_); ++layer) {
      if (state(layer).size() > 0)
        tokens = state(layer).reachable(tokens);
      else if (!rows_.can_go_back(layer, tokens))
        tokens = 0;  // it has no row of an earlier window either
    }
  }
  return tokens;
}

void LayerStates::check_reachable(std::int64_t tokens) const {
  const std::int64_t most = reachable(tokens);
  if (most == tokens) return;
  throw InvalidArgument(fmt::format(
      "truncate to {} tokens: a layer no longer has what it kept there, a snapshot of its "
      "recurrent state or the rows of its sliding window; truncate to {}, and give the "
      "tokens after that again",
      tokens, most));
}

void LayerStates::roll_back(std::int64_t layer, std::int64_t tokens) {
  if (state(layer).size() > 0) return states_[static_cast<std::size_t>(layer)].truncate(tokens);
  rows_.shrink(layer, tokens);
}

void LayerStates::copy_from(const LayerStates& other) {
  std::vector<RecurrentState> states = other.states_;
  rows_.copy_from(other.rows_);
  states_ = std::move(states);
}

void LayerStates::freeze() {
  rows_.freeze();
  for (RecurrentState& state : states_) state.forget_step();
}

std::int64_t LayerStates::state_bytes() const {
  std::int64_t bytes = 0;
  for (const RecurrentState& state : states_) bytes += state.bytes();
  return bytes;
}

}  // namespace topkv
