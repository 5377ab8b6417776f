// How a model's own draft layer reads the end of a session's text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/model/draft_layer.h"
#include "src/model/generate/drafter.h"
#include "topkv/session.h"

namespace topkv {

/// The hidden states of a session's last tokens, and their rows in a session of the draft layer.
///
/// States are kept from the steps that the session makes; the layer runs over them once it is to
/// draft. It reads tokens for which it has states, without a gap, up to the text's end: tokens that
/// others fed, and tokens of the context, have none. It compares the text with what it has, each
/// time it is to read on. Whatever was forgotten of the text is forgotten here too.
class DraftLayerReader final : public Drafter {
 public:
  /// Throws as Session's constructor does.
  explicit DraftLayerReader(const std::shared_ptr<const DraftLayer>& layer);

  /// Whether it is of this draft layer.
  bool is_of(const std::shared_ptr<const DraftLayer>& layer) const {
    return owner_.lock() == layer;
  }

  /// Keeps the states of the session's own tokens from number `first` on: those that the model's
  /// pass ran last. tokens: all of this run.
  void keep(std::int64_t first, std::span<const Token> tokens, Forward& model);

  /// False if there is no state of the token before the last one.
  bool read(const PastTokens& text, Forward& pass) override;
  void read(Token token, Forward& pass) override;
  Guess guess(Forward& pass) override;

 private:
  /// Forgets tokens from the number `count` of those here on.
  void keep_first(std::int64_t count);
  /// Forgets tokens before the session's own number `first`, and what the layer has read.
  void begin_at(std::int64_t first);
  /// Gives the layer tokens, each with the state of the token before it.
  void run(std::span<const Token> tokens, std::span<const float> states, Forward& pass);

  std::weak_ptr<const DraftLayer> owner_;
  const DraftLayer& layer_;  // while the model lives
  Session session_;
  std::int64_t first_ = 0;     // number of the first of the session's own tokens that is here
  std::vector<Token> tokens_;  // with states
  std::vector<float> states_;  // [tokens_, hidden_size]
  std::vector<Token> read_;    // what session_ has: number i was read with the state of number i
  std::int64_t sure_ = 0;      // of read_, those before guesses, whose states are the layer's own
  std::int64_t last_ = 0;      // number, in the last run, of the token that was read last
  std::vector<float> own_;     // the layer's state behind that token
  std::vector<float> logits_;
};

}  // namespace topkv
