// The rule of RetrievalOptions::guarantee: a random sample of the rows that no search found.
#pragma once

#include <cstdint>
#include <vector>

#include "src/session/own_rows_source.h"
#include "src/session/row_sample.h"
#include "src/session/search_source.h"

namespace topkv {

/// A search, all of the session's own rows, and a sample of the context's other rows that is as
/// large as the guarantee needs. Each query head of each token decides for itself. The window's
/// partial counts among the known rows, so the source takes it from the host's backend.
class GuaranteedSource final : public AttentionSource {
 public:
  GuaranteedSource(SessionCore& session, QueriesByHead& heads, OwnRowsSource& own,
                   SearchSource& search)
      : session_(session), heads_(heads), own_(own), search_(search) {}

  void start(std::span<Step> steps) override { search_.start(steps); }
  std::int64_t tokens_at_once(const Step& step) const override {
    return search_.tokens_at_once(step);
  }
  void contribute(Step& step) override;

 private:
  void sample(const StepBlock& block, PartialView window);

  SessionCore& session_;
  QueriesByHead& heads_;
  OwnRowsSource& own_;
  SearchSource& search_;
  std::vector<SampledRows> sampled_;  // per query of a block
};

}  // namespace topkv
