// The part of a host's step with a tail: the estimate over the rows of the context that were not
// found.
#include <algorithm>
#include <cmath>
#include <limits>

#include "index/common/index_factory.h"
#include "src/core/io/faults.h"
#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"
#include "src/session/session_state.h"

namespace topkv {

/// What stands for the context's rows that were not found goes to out.estimate; those of them that
/// the tail attends as they are, are merged into out.exact.
void Session::State::attend_rest(std::int64_t layer, const TailParts& out) {
  reach_fault("session.tail");
  const Stopwatch attending;
  const std::int64_t d = shape.head_dim;
  const float scale = shape.softmax_scale();
  const bool ranked = indices[0]->spec.factory().ranks_keys();
  constexpr float no_ceiling = std::numeric_limits<float>::infinity();
  parallel_for(shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      HeadStep& step = heads[static_cast<std::size_t>(head)];
      const std::int64_t count = step.count();
      if (count == 0) continue;
      step.taken.clear();
      step.ceilings.clear();
      for (std::int64_t i = 0; i < count; ++i) {
        step.taken.push_back(step.selector.of(0, i));
        const float ceiling = ranked ? scale * step.selector.ceiling(i) : no_ceiling;
        step.ceilings.push_back(
            shape.softcap > 0 ? shape.softcap * std::tanh(ceiling / shape.softcap) : ceiling);
      }
      step.estimate.reset(count, d);
      step.rare.reset(count, d);
      step.noise.resize(static_cast<std::size_t>(count));
      const PartialView estimate = step.estimate.view();
      const PartialView rare = step.rare.view();
      tail->layer(layer).tails[static_cast<std::size_t>(head)]->attend(
          block(step, step.allowed[0]), step.taken, step.ceilings, scale, shape.softcap,
          {estimate, rare, step.noise.data()});
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t at = place(head, i);
        merge(out.exact.part(at), rare.part(i));
        std::copy_n(estimate.out + i * d, d, out.estimate.out + at * d);
        out.estimate.lse[at] = estimate.lse[i];
        out.noise[at] = step.noise[static_cast<std::size_t>(i)];
      }
    }
  });
  times(layer).tail += attending.seconds();
}

}  // namespace topkv
