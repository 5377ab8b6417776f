// Where a run of the network finds what the layers of its texts keep.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "src/store/state_memory.h"
#include "topkv/context.h"
#include "topkv/session.h"

namespace topkv {

/// The layers of the texts that a run takes tokens of: one text, or one token of each of several.
/// Texts have numbers from 0 on.
struct TextLayers {
  /// Attends the tokens of all texts in one layer.
  std::function<void(const AttentionStep& step)> attend;
  /// Returns the recurrent state of a layer. Null: the text has no token yet.
  std::function<std::shared_ptr<const StateMemory>(std::int64_t text, std::int64_t layer)> state;
  /// Returns memory that may have the layer's next state. Null: it is to be made.
  std::function<std::shared_ptr<StateMemory>(std::int64_t text, std::int64_t layer)> spare;
  /// Gives a layer with a recurrent state its next tokens: the state after them.
  std::function<void(std::int64_t text, std::int64_t layer, std::int64_t tokens,
                     std::shared_ptr<StateMemory> state)>
      advance;

  /// The text of a builder or a session, which outlives this.
  template <class Text>
  static TextLayers of(Text& text) {
    return of([&text](const AttentionStep& step) { text.attend(step); },
              [&text](std::int64_t) -> Text& { return text; });
  }
  /// The texts of sessions that are stepped together. Both outlive this.
  static TextLayers of(std::span<Session* const> sessions) {
    return of(
        [sessions](const AttentionStep& step) {
          AttentionStep of_each = step;
          of_each.tokens = 1;
          Session::attend_together(sessions, of_each);
        },
        [sessions](std::int64_t text) -> Session& {
          return *sessions[static_cast<std::size_t>(text)];
        });
  }

 private:
  template <class Attend, class Text>
  static TextLayers of(const Attend& attend, const Text& text) {
    return {.attend = attend,
            .state = [text](std::int64_t number,
                            std::int64_t layer) { return text(number).state_memory(layer); },
            .spare = [text](std::int64_t number,
                            std::int64_t layer) { return text(number).spare_state(layer); },
            .advance =
                [text](std::int64_t number, std::int64_t layer, std::int64_t tokens,
                       std::shared_ptr<StateMemory> state) {
                  text(number).advance(layer, tokens, std::move(state));
                }};
  }
};

}  // namespace topkv
