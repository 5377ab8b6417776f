#include "src/session/search_source.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "index/common/index_factory.h"
#include "index/common/scratch.h"
#include "src/core/io/faults.h"
#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"
#include "src/session/position_mass.h"
#include "src/session/recall.h"

namespace topkv {
namespace {

// Memory of the searches of a step: the bytes of one row that was found, in all places until it is
// attended, and the most bytes at a time.
constexpr std::int64_t search_bytes = 64;
constexpr std::int64_t search_memory = std::int64_t{256} << 20;

}  // namespace

/// With a large k, a search returns much.
std::int64_t SearchSource::tokens_at_once(const Step& step) const {
  const std::int64_t rows =
      std::min(session_.schedule.most(step.layer()), step.queries.first + step.queries.tokens);
  return std::max<std::int64_t>(1, search_memory / (session_.shape.q_heads * search_bytes * rows));
}

/// A device chooses for one token of one session: for several an index reads its key summaries
/// once.
void SearchSource::start(std::span<Step> steps) {
  chosen_ = false;
  if (session_.backend.chooser == nullptr || steps.size() != 1) return;
  const Step& step = steps[0];
  if (!step.searched || step.tensors.tokens != 1 || step.session_index >= 0) return;
  const std::int64_t layer = step.layer();
  const std::int64_t rows = session_.schedule.k(layer);
  const PositionRange allowed = session_.between(session_.segments[0], layer, step.queries.first);
  const HeadIndex& index = *session_.indices[0]->layer(layer).heads[0];
  if (allowed.size() == 0 || index.takes_all(allowed.size(), rows)) return;
  session_.backend.chooser->choose(layer, allowed, rows);
  chosen_ = true;
}

void SearchSource::search_together(std::span<Step> steps) {
  const Scratch<std::vector<StepBlock>> blocks;
  for (const Step& first : steps) {
    if (first.search == nullptr) continue;
    const SessionCore& one = *first.session;
    const std::int64_t layer = first.layer();
    const std::int64_t room = first.search->tokens_at_once(first);
    std::int64_t tokens = 0;
    blocks->clear();
    for (Step& step : steps) {
      const SessionCore& of = *step.session;
      if (!step.searched || step.search == nullptr || step.joined ||
          of.indices[0] != one.indices[0] || of.schedule.k(layer) != one.schedule.k(layer) ||
          tokens + step.tensors.tokens > std::min(room, step.search->tokens_at_once(step))) {
        continue;
      }
      tokens += step.tensors.tokens;
      step.joined = true;
      blocks->push_back(block_of(step, 0, step.queries.tokens));
    }
    if (!blocks->empty()) search_all(*blocks);
  }
}

/// Selects the rows that each query of some sessions' blocks attends.
void SearchSource::search_all(std::span<const StepBlock> blocks) {
  const Stopwatch searching;
  const SearchSource& one = *blocks[0].step.search;
  const SessionCore& core = one.session_;
  const std::int64_t layer = blocks[0].layer();
  const bool chosen = one.chosen_;  // then there is one session
  const CandidateEntries all = chosen ? core.backend.chooser->chosen() : CandidateEntries{};
  parallel_for(core.shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      for (const StepBlock& block : blocks) block.step.search->heads_.copy_queries(block, head);
      const CandidateEntries given =
          chosen ? all.part(head, core.shape.kv_heads) : CandidateEntries{};
      search(blocks, head, core.schedule.k(layer), chosen ? &given : nullptr);
      for (const StepBlock& block : blocks)
        block.step.search->select(block, head, block.step.session->schedule.first(layer));
    }
  });
  const double seconds = searching.seconds() / static_cast<double>(blocks.size());
  for (const StepBlock& block : blocks) block.step.session->count_search(layer, seconds);
}

/// Searches for `rows` rows for each query of a KV head. Queries of several sessions, with the same
/// index and an equal number of tokens, look at the keys of their context together. given: the
/// entries that a device chose in the context for the one session; null: nothing.
void SearchSource::search(std::span<const StepBlock> blocks, std::int64_t head, std::int64_t rows,
                          const CandidateEntries* given) {
  const SessionCore& one = *blocks[0].step.session;
  const std::int64_t layer = blocks[0].layer();
  // Of all sessions together.
  const Scratch<std::vector<float>> shared_queries;
  const Scratch<std::vector<PositionRange>> shared_allowed;
  const Scratch<SearchResult> shared_found;
  if (blocks.size() > 1) {
    shared_queries->clear();
    shared_allowed->clear();
    for (const StepBlock& block : blocks) {
      const HeadQueries& of_head = block.step.search->heads_[head];
      shared_queries->insert(shared_queries->end(), of_head.queries.begin(), of_head.queries.end());
      shared_allowed->insert(shared_allowed->end(), of_head.allowed[0].begin(),
                             of_head.allowed[0].end());
    }
    one.segments[0].search(one.indices[0], layer, head,
                           {.data = shared_queries->data(),
                            .count = std::ssize(*shared_allowed),
                            .dim = one.shape.head_dim,
                            .allowed = *shared_allowed,
                            .group = one.shape.group(),
                            .scale = one.shape.softmax_scale(),
                            .tokens = blocks[0].queries.tokens},
                           rows, nullptr, *shared_found);
  }
  std::int64_t first = 0;
  for (const StepBlock& block : blocks) {
    reach_fault("session.search");
    const SessionCore& session = *block.step.session;
    QueriesByHead& heads = block.step.search->heads_;
    HeadQueries& of_head = heads[head];
    for (std::size_t s = 0; s < session.segments.size(); ++s) {
      SearchResult& found = of_head.selector.found(s);
      if (s == 0 && blocks.size() > 1) {
        found.copy(*shared_found, first, of_head.count());
        continue;
      }
      session.segments[s].search(session.indices[s], layer, head,
                                 heads.block(head, of_head.allowed[s]), rows,
                                 s == 0 ? given : nullptr, found);
    }
    first += of_head.count();
  }
}

/// Selects `rows` of the rows that were found.
void SearchSource::select(const StepBlock& block, std::int64_t head, std::int64_t rows) {
  HeadQueries& of_head = heads_[head];
  if (session_.options.select_by == SelectBy::group) {
    of_head.selector.choose_shared(rows, block.layer(), head,
                                   heads_.block(head, of_head.allowed[0]), session_.shape.softcap);
  } else {
    of_head.selector.choose(rows);
  }
  if (own_ != nullptr) own_->select_between(block, head);
}

void SearchSource::contribute(Step& step) {
  each_block(step, [&](const StepBlock& block) {
    find(block);
    heads_.attend_selected(block);
    if (step.estimate != nullptr) attend_tail(block);
    if (session_.options.measure_recall) measure_recall(block);
  });
}

void SearchSource::find(const StepBlock& block) {
  if (!block.step.joined) search_all({&block, 1});
}

void SearchSource::attend_first(const StepBlock& round) {
  own_->attend(round);
  heads_.attend_selected(round);
  attend_tail(round);
}

void SearchSource::attend_more(const StepBlock& round, std::int64_t rows) {
  const Stopwatch searching;
  const std::int64_t layer = round.layer();
  parallel_for(session_.shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      if (heads_[head].count() == 0) continue;
      if (rows > session_.schedule.k(layer)) search({&round, 1}, head, rows, nullptr);
      select(round, head, rows);
    }
  });
  session_.count_search(layer, searching.seconds());
  heads_.attend_selected(round);
  attend_tail(round);
}

/// Estimates the context's rows that were not selected, into the block's estimate. Rows that the
/// tail attends as they are, are merged into its exact partial.
void SearchSource::attend_tail(const StepBlock& block) {
  const std::int64_t layer = block.layer();
  const TailParts& out = block.host;
  reach_fault("session.tail");
  const Stopwatch attending;
  const std::int64_t d = session_.shape.head_dim;
  const float scale = session_.shape.softmax_scale();
  const float softcap = session_.shape.softcap;
  const bool ranked = session_.indices[0]->spec.factory().traits().ranks_keys;
  constexpr float no_ceiling = std::numeric_limits<float>::infinity();
  parallel_for(session_.shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      HeadQueries& of_head = heads_[head];
      const std::int64_t count = of_head.count();
      if (count == 0) continue;
      of_head.taken.clear();
      of_head.ceilings.clear();
      for (std::int64_t i = 0; i < count; ++i) {
        of_head.taken.push_back(of_head.selector.of(0, i));
        const float ceiling = ranked ? scale * of_head.selector.ceiling(i) : no_ceiling;
        of_head.ceilings.push_back(softcap > 0 ? softcap * std::tanh(ceiling / softcap) : ceiling);
      }
      of_head.estimate.reset(count, d);
      of_head.rare.reset(count, d);
      const TailParts parts = of_head.estimate.with(of_head.rare.view());
      session_.tail->layer(layer).tails[static_cast<std::size_t>(head)]->attend(
          heads_.block(head, of_head.allowed[0]), of_head.taken, of_head.ceilings, scale, softcap,
          parts);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t at = heads_.place(head, i);
        merge(out.exact.part(at), parts.exact.part(i));
        std::copy_n(parts.estimate.out + i * d, d, out.estimate.out + at * d);
        out.estimate.lse[at] = parts.estimate.lse[i];
        out.noise[at] = parts.noise[i];
      }
    }
  });
  session_.times(layer).tail += attending.seconds();
  if (session_.mass != nullptr) note_rare(block);
}

/// Notes the rows that the tail attended as they are, for RetrievalOptions::measure_attention.
void SearchSource::note_rare(const StepBlock& block) {
  const auto& tails = session_.tail->layer(block.layer()).tails;
  std::vector<std::int64_t> rows;
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head) {
    const HeadQueries& of_head = heads_[head];
    for (std::int64_t i = 0; i < of_head.count(); ++i) {
      const auto rare = tails[static_cast<std::size_t>(head)]->rare_in(
          of_head.allowed[0][static_cast<std::size_t>(i)]);
      rows.clear();
      std::ranges::set_difference(rare, of_head.selector.of(0, i), std::back_inserter(rows));
      const std::int64_t at = heads_.place(head, i);
      session_.mass->add(block.queries.first + at / session_.shape.q_heads,
                         at % session_.shape.q_heads, 0, rows);
    }
  }
}

void SearchSource::measure_recall(const StepBlock& block) {
  const Stopwatch measuring;
  const std::int64_t layer = block.layer();
  const std::int64_t k = session_.schedule.k(layer);
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head) {
    heads_.copy_queries(block, head);  // all queries: rounds of a rule drop some
    const CandidateEntries given =
        chosen_ ? session_.backend.chooser->chosen().part(head, session_.shape.kv_heads)
                : CandidateEntries{};
    SearchResult found;
    session_.segments[0].search(session_.indices[0], layer, head,
                                heads_.block(head, heads_[head].allowed[0]), k,
                                chosen_ ? &given : nullptr, found);
    count_recall(
        session_, heads_, layer, head, [k](std::int64_t) { return k; },
        [&found](std::int64_t q, std::span<const std::int64_t>, std::vector<std::int64_t>& have) {
          have.assign(found.positions(q).begin(), found.positions(q).end());
        });
  }
  session_.measuring_seconds += measuring.seconds();
}

}  // namespace topkv
