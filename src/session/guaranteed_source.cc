#include "src/session/guaranteed_source.h"

#include "index/common/scratch.h"
#include "src/core/io/faults.h"
#include "src/core/math/random_draws.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

/// The partials of one query head.
struct HeadPartials {
  Partial known, sampled;
};

std::uint64_t seed_of(std::int64_t position, std::int64_t layer, std::int64_t head) {
  std::uint64_t seed = 0;
  for (const std::int64_t number : {position, layer, head})
    seed = RandomDraws(seed ^ static_cast<std::uint64_t>(number)).next();
  return seed;
}

}  // namespace

void GuaranteedSource::contribute(Step& step) {
  const PartialView window = [&] {
    const auto lock = session_.device.compute()->lock();
    return session_.backend.window->partial();
  }();
  each_block(step, [&](const StepBlock& block) {
    search_.find(block);
    own_.attend(block);
    heads_.attend_selected(block);
    sample(block, step.part(window, block.token, block.queries.tokens));
    if (session_.options.measure_recall) search_.measure_recall(block);
  });
}

/// window: the partial over sinks and window of the block's tokens.
void GuaranteedSource::sample(const StepBlock& block, PartialView window) {
  reach_fault("session.sample");
  const Stopwatch attending;
  const AttentionShape& shape = session_.shape;
  const std::int64_t per_head = block.queries.tokens * shape.group();
  sampled_.assign(static_cast<std::size_t>(shape.kv_heads * per_head), {});
  parallel_for(shape.kv_heads * per_head, 1, [&](std::int64_t begin, std::int64_t end) {
    const Scratch<HeadPartials> partials;
    for (std::int64_t task = begin; task < end; ++task) {
      check_stop();
      const std::int64_t head = task / per_head;
      const std::int64_t i = task % per_head;
      const HeadQueries& of_head = heads_[head];
      const std::int64_t at = heads_.place(head, i);
      const PartialView found = block.host.exact.part(at);
      partials->known.reset(1, shape.head_dim);
      partials->sampled.reset(1, shape.head_dim);
      const PartialView known = partials->known.view();
      merge(known, window.part(at));
      merge(known, found);
      const SampledQuery query{
          .query = &of_head.queries[static_cast<std::size_t>(i * shape.head_dim)],
          .rows = session_.segments[0].rows(block.layer(), head),
          .range = of_head.allowed[0][static_cast<std::size_t>(i)],
          .taken = of_head.selector.of(0, i),
          .seed =
              seed_of(block.queries.first + at / shape.q_heads, block.layer(), at % shape.q_heads),
          .scale = shape.softmax_scale(),
          .softcap = shape.softcap};
      sampled_[static_cast<std::size_t>(task)] =
          attend_sample(query, *session_.options.guarantee, known, partials->sampled.view());
      merge(found, partials->sampled.view());
    }
  });
  SessionStats& stats = session_.stats;
  for (const SampledRows& of : sampled_) {
    stats.rows_retrieved += of.count;
    stats.rows_sampled += of.count;
    stats.went_dense += of.all ? 1 : 0;
  }
  session_.times(block.layer()).attend += attending.seconds();
}

}  // namespace topkv
