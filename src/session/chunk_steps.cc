#include "src/session/chunk_steps.h"

#include <algorithm>

#include "src/attention/chunk_passes.h"
#include "src/session/session_sizes.h"

namespace topkv {
namespace {

/// Returns the bytes of the partials of passes, of [heads] each: of earlier chunks, of one pass,
/// and the lse of the last pass.
std::int64_t bytes_of_passes(std::int64_t heads, std::int64_t head_dim) {
  return (2 * heads * (head_dim + 1) + heads) * bytes_of(DType::f32);
}

}  // namespace

std::int64_t joined_bytes(const SessionShape& shape) {
  const AttentionShape& a = shape.attention;
  return a.chunk_len > 0 ? bytes_of_passes(shape.max_tokens * a.q_heads, a.head_dim) : 0;
}

void ChunkSteps::run(const Step& step) {
  const std::int64_t steps = session_.stats.steps;
  const std::int64_t retrieving_steps = session_.stats.retrieving_steps;
  const bool reads = step.tensors.kv_count() == 0;
  each_chunk(session_.shape, step.tensors, session_.position(step.layer()),
             [&](std::int64_t begin, std::int64_t count, const ChunkPasses& passes) {
               Step some = step;
               some.tensors = step_part(session_.shape, step.tensors, begin, count);
               if (reads) some.skipped = begin;
               run_passes(some, passes);
             });
  // A token that makes several passes is one step.
  session_.stats.steps = steps;
  session_.stats.retrieving_steps = retrieving_steps;
  session_.count_steps(step.layer(), step.tensors.tokens);
  session_.sees = all_positions;  // a later step may be of tokens that meet no earlier chunk
}

void ChunkSteps::run_passes(Step step, const ChunkPasses& passes) {
  const AttentionStep whole = step.tensors;
  const bool reads = whole.kv_count() == 0;
  const std::int64_t d = session_.shape.head_dim;
  ComputeDevice& compute = *session_.device.compute();
  const std::int64_t heads = whole.tokens * session_.shape.q_heads;
  if (const std::int64_t bytes = bytes_of_passes(heads, d); joined_.bytes() < bytes) {
    joined_ = {};
    joined_ = compute.allocate(bytes, "session");
  }
  float* const memory = joined_.floats();
  const PartialView earlier{memory, memory + 2 * heads * d, heads, d};
  const PartialView pass{memory + heads * d, earlier.lse + heads, heads, d};
  const std::int64_t end = session_.position(whole.layer);
  const auto merge = [&](PartialView into, PartialView other) {
    const auto lock = compute.lock();
    compute.merge(into, other, whole.stream);
  };
  for (std::int64_t i = 1; i < passes.size(); ++i) {
    const PartialView out = i == 1 ? earlier : pass;
    step.tensors.q = passes[i].queries(whole);
    step.tensors.out = out.out;
    step.tensors.lse = out.lse;
    step.tensors.k = step.tensors.v = nullptr;
    step.tensors.kv_tokens = 0;
    session_.sees = passes[i].sees.within({0, end});
    run_step({&step, 1});
    if (i > 1) merge(earlier, pass);
  }
  step.tensors = whole;
  if (whole.lse == nullptr && passes.size() > 1) step.tensors.lse = pass.lse + heads;
  session_.sees = passes[0].sees;
  if (reads) session_.sees = session_.sees.within({0, end});
  run_step({&step, 1});
  if (passes.size() > 1) merge({step.tensors.out, step.tensors.lse, heads, d}, earlier);
}

}  // namespace topkv
