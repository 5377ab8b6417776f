// Where a run of the network finds what the layers of its texts keep.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "topkv/context.h"
#include "topkv/session.h"

namespace topkv {

/// The layers of the texts that a run takes tokens of: one text, or one token of each of several.
/// Texts have numbers from 0 on.
struct TextLayers {
  /// Attends the tokens of all texts in one layer.
  std::function<void(const AttentionStep& step)> attend;
  /// Returns the recurrent state of a layer; no value: the text has no token yet.
  std::function<std::span<const float>(std::int64_t text, std::int64_t layer)> state;
  /// Gives a layer with a recurrent state its next tokens: the state after them.
  std::function<void(std::int64_t text, std::int64_t layer, std::int64_t tokens,
                     std::span<const float> state)>
      advance;

  /// The text that a builder or a session has; it outlives this.
  template <class Text>
  static TextLayers of(Text& text) {
    return {
        .attend = [&text](const AttentionStep& step) { text.attend(step); },
        .state = [&text](std::int64_t, std::int64_t layer) { return text.state(layer); },
        .advance = [&text](std::int64_t, std::int64_t layer, std::int64_t tokens,
                           std::span<const float> state) { text.advance(layer, tokens, state); }};
  }
  /// The texts of sessions that are stepped together; both outlive this.
  static TextLayers of(std::span<Session* const> sessions) {
    const auto one = [sessions](std::int64_t text) -> Session& {
      return *sessions[static_cast<std::size_t>(text)];
    };
    return {
        .attend =
            [sessions](const AttentionStep& step) {
              AttentionStep of_each = step;
              of_each.tokens = 1;
              Session::attend_together(sessions, of_each);
            },
        .state = [one](std::int64_t text, std::int64_t layer) { return one(text).state(layer); },
        .advance = [one](
                       std::int64_t text, std::int64_t layer, std::int64_t tokens,
                       std::span<const float> state) { one(text).advance(layer, tokens, state); }};
  }
};

}  // namespace topkv
