// The rows that a trained indexer chooses.
#pragma once

#include "src/session/attention_source.h"

namespace topkv {

/// The rows of the context and of the session that a trained indexer chooses. It is the only source
/// of a layer with an indexer.
class IndexerSource final : public AttentionSource {
 public:
  explicit IndexerSource(SessionCore& session) : session_(session) {}

  void contribute(Step& step) override;

 private:
  SessionCore& session_;
};

}  // namespace topkv
