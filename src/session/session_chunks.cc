// A session's step by chunks: dual chunk attention (chunk_passes.h), whose queries each meet a
// range of the positions. Each is a step of its own over its range: what meets earlier chunks only
// reads, before the step's rows join the session's, and what all of them give is merged.
#include <algorithm>

#include "src/attention/chunk_passes.h"
#include "src/session/session_state.h"

namespace topkv {
namespace {

/// Where partials of passes are kept, [heads] each: of earlier chunks, of one pass, and the lse of
/// the last where the caller wants none.
struct Joined {
  PartialView earlier, pass;
  float* lse;

  static std::int64_t bytes(std::int64_t heads, std::int64_t head_dim) {
    return (2 * heads * (head_dim + 1) + heads) * bytes_of(DType::f32);
  }
  Joined(float* memory, std::int64_t heads, std::int64_t head_dim)
      : earlier{memory, memory + 2 * heads * head_dim, heads, head_dim},
        pass{memory + heads * head_dim, earlier.lse + heads, heads, head_dim},
        lse(pass.lse + heads) {}
};

}  // namespace

std::int64_t joined_bytes(const SessionShape& shape) {
  const AttentionShape& a = shape.attention;
  return a.chunk_len > 0 ? Joined::bytes(shape.max_tokens * a.q_heads, a.head_dim) : 0;
}

/// Whether the step's tokens have more than one query to use.
bool Session::State::meets_chunks(const AttentionStep& step) const {
  return shape.chunk_len > 0 && position(step.layer) + step.tokens > shape.chunk_len;
}

/// A step of at most SessionShape::max_tokens, some tokens of one chunk at a time.
void Session::State::step_by_chunks(const SessionStep& part) {
  const AttentionStep& step = part.step;
  const std::int64_t steps = stats.steps;
  const bool reads = step.kv_count() == 0;
  each_chunk(shape, step, position(step.layer),
             [&](std::int64_t begin, std::int64_t count, const ChunkPasses& passes) {
               SessionStep some = part;
               some.step = step_part(shape, step, begin, count);
               if (reads) some.skipped = begin;
               step_in_passes(some, passes);
             });
  stats.steps = steps + step.tokens;
  sees = all_positions;  // a later step may be of tokens that meet no earlier chunk
}

void Session::State::step_in_passes(SessionStep part, const ChunkPasses& passes) {
  const AttentionStep step = part.step;
  const bool reads = step.kv_count() == 0;
  ComputeDevice& compute = *device.compute();
  const std::int64_t heads = step.tokens * shape.q_heads;
  if (const std::int64_t bytes = Joined::bytes(heads, shape.head_dim); joined.bytes() < bytes) {
    joined = {};
    joined = compute.allocate(bytes, "session");
  }
  const Joined room(joined.floats(), heads, shape.head_dim);
  const std::int64_t end = position(step.layer);
  const auto merge = [&](PartialView into, PartialView other) {
    const auto lock = compute.lock();
    compute.merge(into, other, step.stream);
  };
  for (std::int64_t i = 1; i < passes.size(); ++i) {
    const PartialView out = i == 1 ? room.earlier : room.pass;
    part.step.q = passes[i].queries(step);
    part.step.out = out.out;
    part.step.lse = out.lse;
    part.step.k = part.step.v = nullptr;
    part.step.kv_tokens = 0;
    sees = passes[i].sees.within({0, end});
    Session::State::step({&part, 1});
    if (i > 1) merge(room.earlier, room.pass);
  }
  part.step = step;
  if (step.lse == nullptr && passes.size() > 1) part.step.lse = room.lse;
  sees = passes[0].sees;
  if (reads) sees = sees.within({0, end});
  Session::State::step({&part, 1});
  if (passes.size() > 1) merge({part.step.out, part.step.lse, heads, shape.head_dim}, room.earlier);
}

}  // namespace topkv
