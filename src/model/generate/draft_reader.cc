#include "src/model/generate/draft_reader.h"

#include <algorithm>

#include "src/core/math/convert.h"
#include "src/core/math/vector_math.h"
#include "src/device/compute_device.h"
#include "src/model/draft_sizes.h"

namespace topkv {

Drafter::Guess likeliest_after(std::int64_t at, Forward& pass, std::vector<float>& logits) {
  const std::int64_t count = std::ssize(logits);
  pass.logits(at, 1, logits.data());
  if (first_not_finite(logits.data(), count) >= 0) fail_not_finite();
  const float most = max_of(logits.data(), count);
  const auto best = std::ranges::find(logits, most) - logits.begin();
  return {static_cast<Token>(best), 1.0 / double{exp_shifted(logits.data(), count, most)}};
}

DraftReader::DraftReader(const std::shared_ptr<const DraftModel>& model)
    : model_(model),
      impl_(model->impl()),
      session_(impl_.nothing, draft_retrieval(impl_.window), impl_.network->device) {}

std::int64_t DraftReader::first_of(const PastTokens& text) const {
  const std::int64_t end = text.own();
  const bool fits = end - text.begin() <= impl_.window;
  std::int64_t first = fits ? text.begin() : end - impl_.window / 2;
  // Unknown tokens, and ids that the draft model does not have, cannot be read.
  for (std::int64_t at = end - 1; at >= first; --at) {
    const Token token = text.token(at);
    if (token < 0 || token >= impl_.network->config.vocab_size) first = at + 1;
  }
  return first;
}

bool DraftReader::read(const PastTokens& text, Forward& pass) {
  const std::int64_t end = text.own();
  std::int64_t same = added_;
  while (same < std::ssize(read_) && first_ + same - added_ < end &&
         text.token(first_ + same - added_) == read_[static_cast<std::size_t>(same)])
    ++same;
  // The last token is read again if need be: what follows it is asked for.
  same = std::min(same, added_ + end - 1 - first_);
  std::int64_t first = first_ + same - added_;  // of those to read
  bool anew = same <= added_ || added_ + end - first_ > impl_.window;
  for (std::int64_t at = first; at < end && !anew; ++at) {
    const Token token = text.token(at);
    anew = token < 0 || token >= impl_.network->config.vocab_size;
  }
  if (anew) {
    session_.truncate(0);
    read_.clear();
    added_ = 0;
    first = first_ = first_of(text);
    if (first_ == end) return false;
    if (first_ > text.begin()) read_ = impl_.beginning;
    added_ = std::ssize(read_);
  } else {
    const std::int64_t kept = session_.reachable(same);
    session_.truncate(kept);
    read_.resize(static_cast<std::size_t>(std::max(kept, added_)));
    first = first_ + std::ssize(read_) - added_;
  }
  for (; first < end; ++first) read_.push_back(text.token(first));
  const std::span<const Token> all = read_;
  const std::int64_t chunk = std::min(pass.chunk(), session_chunk);
  while (session_.own_tokens() < std::ssize(all)) {
    const std::int64_t at = session_.own_tokens();
    run(all.subspan(static_cast<std::size_t>(at),
                    static_cast<std::size_t>(std::min(chunk, std::ssize(all) - at))),
        pass);
  }
  session_.snapshot();  // where a recurrent state comes back to, if the draft is rejected
  return true;
}

void DraftReader::read(Token token, Forward& pass) {
  read_.push_back(token);
  run({&token, 1}, pass);
}

void DraftReader::run(std::span<const Token> tokens, Forward& pass) {
  const std::int64_t first = session_.tokens();
  impl_.network->check_reach(first + std::ssize(tokens));
  impl_.network->blaming_weights(
      [&] { pass.run(tokens, first, first + std::ssize(tokens), TextLayers::of(session_)); });
  last_ = std::ssize(tokens) - 1;
}

DraftReader::Guess DraftReader::guess(Forward& pass) {
  logits_.resize(static_cast<std::size_t>(impl_.network->config.vocab_size));
  Guess guess;
  impl_.network->blaming_weights([&] { guess = likeliest_after(last_, pass, logits_); });
  return guess;
}

}  // namespace topkv
