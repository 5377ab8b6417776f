#include "src/session/scan_source.h"

#include <algorithm>

#include "index/codes/codes_index.h"
#include "index/common/scratch.h"
#include "src/core/io/faults.h"
#include "src/core/threads/stopwatch.h"
#include "src/session/position_mass.h"
#include "src/session/recall.h"

namespace topkv {

/// Returns the scan of a job, whose first token has the number `token` in its step.
CodeScanner::Scan ScanSource::scan_of(const ListJob& job, std::int64_t token) {
  const std::int64_t kv_heads = session_.shape.kv_heads;
  allowed_.clear();
  allowed_own_.clear();
  for (std::int64_t i = 0; i < job.tokens; ++i) {
    const std::int64_t position = job.queries.first + i;
    const PositionRange range = session_.between(session_.segments[0], job.layer, position);
    for (std::int64_t head = 0; head < kv_heads; ++head)
      allowed_.push_back(lists_.wants_rows(job, head) ? range : PositionRange{});
    if (codes_.tokens() > 0)
      allowed_own_.insert(allowed_own_.end(), static_cast<std::size_t>(kv_heads),
                          own_.coded_rows(job.layer, position));
  }
  return {.scanner = session_.backend.scanner,
          .token = token,
          .allowed = allowed_,
          .own = allowed_own_,
          .rows = job.wanted,
          .tail = session_.spec.tail,
          .attend_found = job.device_attends,
          .passes = job.passes};
}

void ScanSource::start(std::span<Step> steps) {
  scan_seconds_ = 0;
  const auto mine =
      std::ranges::find_if(steps, [&](const Step& step) { return step.scan == this; });
  if (!mine->searched || mine->joined) return;
  const std::int64_t layer = mine->layer();
  const Scratch<std::vector<CodeScanner::Scan>> scans;
  scans->clear();
  for (Step& step : steps) {
    const SessionCore& of = *step.session;
    if (!step.searched || step.scan == nullptr || of.indices[0] != session_.indices[0]) continue;
    step.joined = true;
    const std::int64_t tokens = std::min(step.tensors.tokens, step.scan->tokens_at_once(step));
    ListJob& job = step.scan->job_;
    job = {.lists = &step.scan->lists_,
           .layer = layer,
           .queries = step.queries.part(0, tokens),
           .passes = step.passes,
           .tokens = tokens,
           .wanted = of.schedule.first(layer),
           .device_attends = step.device_attends};
    scans->push_back(step.scan->scan_of(job, 0));
  }
  const Stopwatch scanning;
  session_.backend.scanner->scan(layer, *scans);
  if (!session_.device.is_cuda()) scan_seconds_ = scanning.seconds();
}

void ScanSource::attend(std::span<Step> steps, const std::function<void()>& first) {
  reach_fault("session.attend");
  const Scratch<std::vector<ListJob*>> jobs;
  jobs->clear();
  for (Step& step : steps) {
    if (step.scan == nullptr || !step.searched) continue;
    ListJob& job = step.scan->job_;
    job.queries = step.queries.part(0, job.tokens);
    job.found = step.part(step.host.exact, 0, job.tokens);
    jobs->push_back(&job);
  }
  if (jobs->empty()) return first();
  ListAttention::attend(*jobs, jobs->front()->lists->helpers(), first);
  const auto sessions = static_cast<double>(steps.size());
  for (const Step& step : steps) {
    if (step.scan == nullptr || !step.searched) continue;
    step.scan->count_lists(sessions);
  }
}

/// Counts the rows of the job's lists, and its part of the times of a number of sessions.
void ScanSource::count_lists(double sessions) {
  session_.stats.rows_retrieved += lists_.rows_listed(job_) * session_.shape.group();
  session_.count_search(job_.layer, job_.listed_seconds / sessions);
  session_.times(job_.layer).attend += (job_.attended_seconds - job_.listed_seconds) / sessions;
  if (session_.mass != nullptr) note_listed();
}

/// Notes the rows of the job's lists, and rare rows, for RetrievalOptions::measure_attention. All
/// heads of a group attend them.
void ScanSource::note_listed() {
  const std::int64_t group = session_.shape.group();
  const std::size_t own = session_.segments.size() - 1;
  std::vector<std::int64_t> rows;
  for (std::int64_t token = 0; token < job_.tokens; ++token) {
    const std::int64_t position = job_.queries.first + token;
    for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head) {
      const auto note = [&](std::size_t segment, const SegmentIndex& index,
                            const PositionRange& range) {
        rows.clear();
        lists_.add_listed(token, head, segment == own, rows);
        const KeyIndex& codes = *index.layer(job_.layer).heads[static_cast<std::size_t>(head)];
        const auto rare = static_cast<const CodesIndex&>(codes).rare_in(range);
        rows.insert(rows.end(), rare.begin(), rare.end());
        for (std::int64_t g = 0; g < group; ++g)
          session_.mass->add(position, head * group + g, segment, rows);
      };
      note(0, *session_.indices[0], session_.between(session_.segments[0], job_.layer, position));
      if (codes_.tokens() > 0) note(own, codes_.index(), own_.coded_rows(job_.layer, position));
    }
  }
}

/// Makes a further scan of a step, for some of its tokens. like: the job's other members.
void ScanSource::scan_and_attend(const StepBlock& block, std::int64_t rows, const ListJob& like) {
  job_ = like;
  job_.lists = &lists_;
  job_.layer = block.layer();
  job_.queries = block.queries;
  job_.found = block.host.exact;
  job_.tokens = block.queries.tokens;
  job_.wanted = rows;
  {
    const auto lock = session_.device.compute()->lock();
    const CodeScanner::Scan scan = scan_of(job_, block.token);
    const Stopwatch scanning;  // a CUDA device only begins here
    session_.backend.scanner->scan(job_.layer, {&scan, 1});
    session_.count_search(job_.layer, scanning.seconds());
  }
  reach_fault("session.attend");
  ListJob* const job = &job_;
  ListAttention::attend({&job, 1}, lists_.helpers(), [] {});
  count_lists(1);
}

void ScanSource::contribute(Step& step) {
  each_block(step, [&](const StepBlock& block) {
    find(block);
    if (session_.options.measure_recall) measure_recall(block);
  });
}

/// The first scan of a step is one of all sessions.
void ScanSource::find(const StepBlock& block) {
  if (block.token > 0) scan_and_attend(block, session_.schedule.first(block.layer()), {});
}

void ScanSource::attend_first(const StepBlock& round) {
  const std::int64_t group = session_.shape.group();
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head) {
    heads_.copy_queries(round, head);
    Selector& selector = heads_[head].selector;
    selector.reset(group);
    selector.find_nothing(group);
  }
  own_.attend(round);
  merge_scanned(round);
}

void ScanSource::attend_more(const StepBlock& round, std::int64_t rows) {
  scan_and_attend(round, rows, {.is_extra_round = true, .token_in_scan = round.in_block()});
  merge_scanned(round);
}

/// Takes the partials that the last scan has beside its lists, for the queries of one of its
/// tokens.
void ScanSource::merge_scanned(const StepBlock& round) {
  const std::int64_t first = round.token * session_.shape.q_heads;
  const TailParts scanned = [&] {
    const Stopwatch waiting;
    const auto lock = session_.device.compute()->lock();
    const TailParts given = session_.backend.scanner->scanned();
    session_.count_search(round.layer(), waiting.seconds());
    return given;
  }();
  const TailParts& out = round.host;
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head) {
    if (heads_[head].count() == 0) continue;
    for (std::int64_t at = head * session_.shape.group(); at < (head + 1) * session_.shape.group();
         ++at) {
      const PartialView estimate = scanned.estimate.part(first + at);
      merge(out.exact.part(at), scanned.exact.part(first + at));
      std::copy_n(estimate.out, session_.shape.head_dim, out.estimate.part(at).out);
      *out.estimate.part(at).lse = *estimate.lse;
      out.noise[at] = scanned.noise[first + at];
    }
  }
}

void ScanSource::discount(const StepBlock& round, std::int64_t rows) {
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head) {
    const std::int64_t queries = heads_[head].count();
    session_.stats.rows_retrieved -= queries * lists_.rows_listed(round.in_block(), head);
    if (queries > 0) lists_.rows_wanted(round.in_block(), head) = rows;
  }
}

void ScanSource::measure_recall(const StepBlock& block) {
  const Stopwatch measuring;
  const std::int64_t layer = block.layer();
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head) {
    heads_.copy_queries(block, head);  // all queries of the block
    const auto token_of = [&](std::int64_t q) { return q / session_.shape.group(); };
    const auto rows_of = [&](std::int64_t q) {
      const std::int64_t wanted = lists_.rows_wanted(token_of(q), head);
      return wanted > 0 ? wanted : session_.schedule.k(layer);
    };
    const auto rare =
        session_.indices[0]->layer(layer).heads[static_cast<std::size_t>(head)]->rare();
    count_recall(
        session_, heads_, layer, head, rows_of,
        [&](std::int64_t q, std::span<const std::int64_t> best, std::vector<std::int64_t>& have) {
          if (lists_.rows_wanted(token_of(q), head) == 0) {  // all rows are attended
            have.assign(best.begin(), best.end());
            return;
          }
          // Rare rows are attended beside the rows that are listed.
          have.assign(rare.begin(), rare.end());
          lists_.add_listed(token_of(q), head, false, have);
        });
  }
  session_.measuring_seconds += measuring.seconds();
}

}  // namespace topkv
