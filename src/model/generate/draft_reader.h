// How a draft model reads the end of a session's text.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/model/generate/drafter.h"
#include "src/model/model_impl.h"
#include "src/session/past_tokens.h"
#include "topkv/draft_model.h"

namespace topkv {

/// What is shared by all sessions that a draft model drafts for.
struct DraftModel::Impl {
  std::shared_ptr<const Model> model;
  const Model::Impl* network = nullptr;  // the model's
  const Model::Impl* of = nullptr;       // the model that verifies
  std::int64_t window = 0;
  std::int64_t session_bytes = 0;
  std::vector<Token> beginning;            // what begins a text, and so each text that is cut off
  std::shared_ptr<const Context> nothing;  // a context without tokens, for all sessions
  double cost = 0;  // of a token, in steps of the other model; on a CUDA device alone
};

/// The end of a session's text in a session of a draft model.
///
/// It compares the text with what it has read, each time it is to read on. Whatever was forgotten
/// of the text, by rejected drafts or by truncate(), is forgotten here too.
class DraftReader final : public Drafter {
 public:
  /// Throws as Session's constructor does.
  explicit DraftReader(const std::shared_ptr<const DraftModel>& model);

  /// Whether it is of this draft model.
  bool is_of(const std::shared_ptr<const DraftModel>& model) const {
    return model_.lock() == model;
  }

  /// False if the draft model does not have the last token.
  bool read(const PastTokens& text, Forward& pass) override;
  void read(Token token, Forward& pass) override;
  Guess guess(Forward& pass) override;

 private:
  void run(std::span<const Token> tokens, Forward& pass);
  /// Returns the number of the first token that is read of a text that is begun anew.
  std::int64_t first_of(const PastTokens& text) const;

  std::weak_ptr<const DraftModel> model_;
  const DraftModel::Impl& impl_;  // while the model lives
  Session session_;
  std::int64_t first_ = 0;   // number of the first token that was read, as of PastTokens
  std::int64_t added_ = 0;   // tokens in read_ before it, which begin a text
  std::vector<Token> read_;  // what the session has
  std::int64_t last_ = 0;    // number, in the last run, of the token that was read last
  std::vector<float> logits_;
};

}  // namespace topkv
