#include "src/model/generate/draft_layer_reader.h"

#include <algorithm>

#include "src/model/draft_sizes.h"

namespace topkv {

DraftLayerReader::DraftLayerReader(const std::shared_ptr<const DraftLayer>& layer)
    : owner_(layer),
      layer_(*layer),
      session_(layer->nothing, draft_retrieval(layer->window), layer->device),
      own_(static_cast<std::size_t>(layer->config.hidden_size)),
      logits_(static_cast<std::size_t>(layer->config.vocab_size)) {}

void DraftLayerReader::keep_first(std::int64_t count) {
  sure_ = std::min(sure_, count);
  tokens_.resize(static_cast<std::size_t>(count));
  states_.resize(static_cast<std::size_t>(count) * own_.size());
}

void DraftLayerReader::begin_at(std::int64_t first) {
  const auto dropped = std::clamp<std::int64_t>(first - first_, 0, std::ssize(tokens_));
  tokens_.erase(tokens_.begin(), tokens_.begin() + dropped);
  states_.erase(states_.begin(), states_.begin() + dropped * std::ssize(own_));
  first_ = first;
  read_.clear();
  sure_ = 0;
  session_.truncate(0);
}

void DraftLayerReader::keep(std::int64_t first, std::span<const Token> tokens, Forward& model) {
  keep_first(std::clamp<std::int64_t>(first - first_, 0, std::ssize(tokens_)));
  if (first != first_ + std::ssize(tokens_)) {  // a gap
    keep_first(0);
    begin_at(first);
  }
  const std::int64_t end = first + std::ssize(tokens);
  // When the window is full, the last half of it stays.
  if (end - first_ > layer_.window) begin_at(end - layer_.window / 2);
  const std::int64_t left_out = std::max<std::int64_t>(0, first_ - first);
  const auto kept = tokens.subspan(static_cast<std::size_t>(left_out));
  const std::size_t before = states_.size();
  states_.resize(before + kept.size() * own_.size());
  model.states(left_out, std::ssize(kept), std::span(states_).subspan(before));
  tokens_.insert(tokens_.end(), kept.begin(), kept.end());
}

bool DraftLayerReader::read(const PastTokens& text, Forward& pass) {
  // The last token of the text has no state yet: it is to be fed.
  const std::int64_t with_states = text.own() - 1 - first_;
  std::int64_t same = 0;
  while (same < std::min(std::ssize(tokens_), with_states) &&
         text.token(first_ + same) == tokens_[static_cast<std::size_t>(same)])
    ++same;
  keep_first(same);
  if (same == 0 || same < with_states) return false;
  std::int64_t known = 0;
  // The last token is read again if need be: what follows it is asked for.
  while (known < std::min(sure_, same - 1) &&
         text.token(first_ + known + 1) == read_[static_cast<std::size_t>(known)])
    ++known;
  session_.truncate(known);
  read_.resize(static_cast<std::size_t>(known));
  for (std::int64_t at = known; at < same; ++at) read_.push_back(text.token(first_ + at + 1));
  sure_ = same;
  while (session_.own_tokens() < same) {
    const auto at = static_cast<std::size_t>(session_.own_tokens());
    const std::size_t count = std::min(read_.size() - at, static_cast<std::size_t>(pass.chunk()));
    run(std::span(read_).subspan(at, count),
        std::span(states_).subspan(at * own_.size(), count * own_.size()), pass);
  }
  return true;
}

void DraftLayerReader::read(Token token, Forward& pass) {
  read_.push_back(token);
  pass.states(last_, 1, own_);
  run({&token, 1}, own_, pass);
}

void DraftLayerReader::run(std::span<const Token> tokens, std::span<const float> states,
                           Forward& pass) {
  pass.run_draft(tokens, states, session_.tokens(), TextLayers::of(session_));
  last_ = std::ssize(tokens) - 1;
}

Drafter::Guess DraftLayerReader::guess(Forward& pass) {
  return likeliest_after(last_, pass, logits_);
}

}  // namespace topkv
