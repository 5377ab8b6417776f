// The rules that decide how many rows are enough (RetrievalOptions::mass, error).
//
// A step's queries attend some of the best rows first. The tail then estimates the share of the
// attention that these rows hold, and the error of the result. Queries that fall short attend more
// rows, round by round, and in the end all rows of the context. Each query goes its own way.
// Queries of a group that shares its rows, or for which a method chooses together, go together.
// Steps of many tokens then give the results of steps of one. Questions that a method chooses for
// as a whole (squeezed) go on as a whole.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "index/common/index_factory.h"
#include "src/device/tail_figures.h"
#include "src/session/own_rows_source.h"
#include "src/session/rounds_source.h"

namespace topkv {

/// Another source under a rule: the source runs with few rows, and again with more rows for the
/// queries that need them.
class RuledSource final : public AttentionSource {
 public:
  RuledSource(SessionCore& session, QueriesByHead& heads, OwnRowsSource& own, RoundsSource& source);

  void start(std::span<Step> steps) override { source_.start(steps); }
  std::int64_t tokens_at_once(const Step& step) const override {
    return source_.tokens_at_once(step);
  }
  void contribute(Step& step) override;

 private:
  void run_rounds(const StepBlock& round);
  bool judge(const StepBlock& round, bool below_k);
  void keep_unsatisfied(const StepBlock& round, bool own);
  void attend_all(const StepBlock& round);

  SessionCore& session_;
  QueriesByHead& heads_;
  OwnRowsSource& own_;
  RoundsSource& source_;
  ChoosesFor chooses_for_;            // queries that go on together
  PartialView exact_;                 // of a step: the partial over sinks and window
  std::vector<TailShare> shares_;     // [tokens x q_heads]
  std::vector<double> most_squared_;  // per token: the squared error that each query head may have
  Partial whole_;                     // merged partial of one query
};

}  // namespace topkv
