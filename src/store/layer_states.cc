#include "src/store/layer_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "src/core/math/convert.h"
#include "topkv/error.h"

namespace topkv {

void HostState::read(std::span<float> values) const {
  std::copy(values_.begin(), values_.end(), values.begin());
}

RecurrentState::RecurrentState(const RecurrentState& other)
    : size_(other.size_), points_(other.points_), tokens_(other.tokens()) {}

RecurrentState& RecurrentState::operator=(const RecurrentState& other) {
  size_ = other.size_;
  points_ = other.points_;
  spare_.reset();
  count_tokens();
  return *this;
}

HostState& RecurrentState::on_host(Point& point) const {
  if (!point.memory->on_host()) {
    auto host = std::make_shared<HostState>(size_);
    point.memory->read(host->values());
    point.memory = std::move(host);
  }
  return static_cast<HostState&>(*point.memory);
}

std::span<const float> RecurrentState::values() const {
  if (points_.empty()) return {};
  return on_host(points_.back()).values();
}

void RecurrentState::advance(std::int64_t tokens, std::shared_ptr<StateMemory> memory) {
  points_.reserve(points_.size() + 1);
  if (points_.size() >= 2) {
    const auto before = points_.end() - 2;
    if (!before->kept) {
      if (before->memory.use_count() == 1) spare_ = std::move(before->memory);
      points_.erase(before);
    }
  }
  points_.push_back({this->tokens() + tokens, false, std::move(memory)});
  count_tokens();
}

void RecurrentState::snapshot() {
  if (points_.empty()) return;
  for (Point& point : points_) on_host(point);
  spare_.reset();
  points_.back().kept = true;
  if (std::ranges::count_if(points_, &Point::kept) <= most_snapshots) return;
  const double now = static_cast<double>(tokens());
  std::size_t least = 0;
  double least_share = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i + 2 < points_.size(); ++i) {
    const auto before = static_cast<double>(i == 0 ? 0 : points_[i - 1].tokens);
    const double share = (static_cast<double>(points_[i + 1].tokens) - before) / (now - before);
    if (share < least_share) {
      least_share = share;
      least = i;
    }
  }
  points_.erase(points_.begin() + static_cast<std::ptrdiff_t>(least));
}

std::int64_t RecurrentState::reachable(std::int64_t tokens) const {
  std::int64_t most = 0;
  for (const Point& point : points_)
    if (point.tokens <= tokens) most = point.tokens;
  return most;
}

void RecurrentState::truncate(std::int64_t tokens) {
  std::erase_if(points_, [tokens](const Point& point) { return point.tokens > tokens; });
  count_tokens();
}

void RecurrentState::forget_step() {
  const std::int64_t last = tokens();
  std::erase_if(points_, [last](const Point& point) { return !point.kept && point.tokens < last; });
  spare_.reset();
  for (Point& point : points_) on_host(point);
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
      points_.push_back({all[i], true, std::make_shared<HostState>(0)});
    }
    count_tokens();
  }
  for (Point& point : points_) archive.elements(on_host(point).values(), size_);
}

std::span<const float> LayerStates::values(std::int64_t layer) const {
  check_recurrent(layer);
  return state(layer).values();
}

void LayerStates::check_recurrent(std::int64_t layer) const {
  if (layer >= 0 && layer < std::ssize(states_) && state(layer).size() > 0) return;
  throw InvalidArgument(fmt::format(
      "layer {} has no recurrent state; expected a layer that has a state_size", layer));
}

void LayerStates::advance(std::int64_t layer, std::int64_t tokens, std::span<const float> values) {
  check_recurrent(layer);
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
  RecurrentState& own = states_[static_cast<std::size_t>(layer)];
  check_room(layer, tokens);
  std::shared_ptr<StateMemory> memory = own.take_spare();
  if (memory == nullptr || !memory->on_host()) memory = std::make_shared<HostState>(size);
  std::copy(values.begin(), values.end(), memory->data());
  own.advance(tokens, std::move(memory));
}

void LayerStates::advance(std::int64_t layer, std::int64_t tokens,
                          std::shared_ptr<StateMemory> memory) {
  check_room(layer, tokens);
  states_[static_cast<std::size_t>(layer)].advance(tokens, std::move(memory));
}

void LayerStates::check_room(std::int64_t layer, std::int64_t tokens) const {
  if (tokens <= rows_.capacity() - this->tokens(layer)) return;
  throw InvalidArgument(
      fmt::format("advance: layer {} holds {} tokens and gets {} more, with room for {}: give a "
                  "larger capacity",
                  layer, this->tokens(layer), tokens, rows_.capacity()));
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
