#include "src/device/host/indexer_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "index/common/scratch.h"
#include "src/core/io/faults.h"
#include "src/core/math/convert.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t heads_per_task = 16;

/// Working memory of one token's heads.
struct HeadsMemory {
  std::vector<std::int64_t> chosen;  // positions
  std::vector<std::int64_t> behind;  // those among them in the store, counted from its first row
  Partial of_before, of_store;
};

}  // namespace

void check_index_queries(const AttentionShape& shape, const AttentionStep& step,
                         std::int64_t first) {
  const IndexerShape& of = *shape.indexer;
  const auto check = [&](const float* values, const char* name, std::int64_t width) {
    const std::int64_t bad =
        values == nullptr ? -1 : first_not_finite(values, step.tokens * of.heads * width);
    if (bad < 0) return;
    throw InvalidArgument(fmt::format("{} of layer {}, head {}, position {} is not finite", name,
                                      step.layer, bad / width % of.heads,
                                      first + bad / width / of.heads));
  };
  check(step.index_q, "index_q", of.dim);
  check(step.index_weights, "index_weights", 1);
}

bool IndexerAttention::is_shared(std::int64_t layer) const {
  for (std::int64_t later = layer + 1; later < shape_.layers; ++later)
    if (shape_.indexer_layer_of(later) == layer) return true;
  return false;
}

void IndexerAttention::forget(std::int64_t layer, std::int64_t first, const Rows& rows) {
  std::int64_t had = rows.store.size(layer);
  for (std::int64_t later = layer + 1; later < shape_.layers; ++later)
    if (shape_.indexer_layer_of(later) == layer) had = std::min(had, rows.store.size(later));
  const std::int64_t before = rows.before == nullptr ? 0 : rows.before->size(layer);
  KeyChoice& choice = choices_[static_cast<std::size_t>(layer)];
  choice.keep({before + had, first});
  if (choice.tokens().end != first) choice.clear();
}

IndexerAttention::Work IndexerAttention::attend(const AttentionStep& step,
                                                const TokenQueries& queries, const Rows& rows,
                                                PartialView out) {
  const std::int64_t layer = step.layer;
  const std::int64_t chooser = shape_.indexer_layer_of(layer);
  KeyChoice& choice = choices_[static_cast<std::size_t>(chooser)];
  Work work;
  if (chooser != layer) {
    work.rows = attend_choice(layer, queries, rows, choice, out);
    return work;
  }
  const IndexerShape& of = *shape_.indexer;
  const bool shared = is_shared(layer);
  if (shared) forget(layer, queries.first, rows);
  const IndexKeySpan keys = rows.before == nullptr ? IndexKeySpan{rows.store.index_keys(layer)}
                                                   : IndexKeySpan{rows.before->index_keys(layer),
                                                                  rows.store.index_keys(layer)};
  const std::int64_t some = tokens_that_choose(of, of.keys(queries.first + queries.tokens));
  for (std::int64_t t = 0, count = 0; t < queries.tokens; t += count) {
    count = std::min(some, queries.tokens - t);
    if (!shared) choice.clear();
    const Stopwatch choosing;
    choose_keys(of,
                {step.index_q + t * of.heads * of.dim,
                 step.index_weights == nullptr ? nullptr : step.index_weights + t * of.heads, count,
                 queries.first + t},
                keys, choice);
    work.choosing_seconds += choosing.seconds();
    work.rows += attend_choice(layer, queries.part(t, count), rows, choice,
                               out.part(t * queries.heads, count * queries.heads));
  }
  return work;
}

std::int64_t IndexerAttention::attend_choice(std::int64_t layer, const TokenQueries& queries,
                                             const Rows& rows, const KeyChoice& choice,
                                             PartialView out) const {
  reach_fault("indexer.attend");
  const IndexerShape& of = *shape_.indexer;
  const std::int64_t kv_heads = shape_.kv_heads;
  const std::int64_t group = shape_.group();
  const std::int64_t parts = (group + heads_per_task - 1) / heads_per_task;
  const std::int64_t border = rows.before == nullptr ? 0 : rows.before->size(layer);
  const float scale = shape_.softmax_scale();
  std::atomic<std::int64_t> attended = 0;
  parallel_for(queries.tokens * kv_heads * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    const Scratch<HeadsMemory> memory;
    std::vector<std::int64_t>& chosen = memory->chosen;
    std::vector<std::int64_t>& behind = memory->behind;
    for (std::int64_t task = begin; task < end; ++task) {
      check_stop();
      const std::int64_t token = task / (kv_heads * parts);
      const std::int64_t kv_head = task / parts % kv_heads;
      const std::int64_t first_head = task % parts * heads_per_task;
      const std::int64_t heads = std::min(heads_per_task, group - first_head);
      const std::int64_t head = kv_head * group + first_head;
      const std::int64_t position = queries.first + token;
      chosen_positions(of, position, choice.blocks(position, of.choices == 1 ? 0 : kv_head),
                       chosen);
      attended += std::ssize(chosen) * heads;
      const auto first_behind = std::lower_bound(chosen.begin(), chosen.end(), border);
      behind.assign(first_behind, chosen.end());
      for (std::int64_t& x : behind) x -= border;
      chosen.erase(first_behind, chosen.end());
      const float* const q = queries.query(token, head);
      const auto attend = [&](const RowStore& store, const std::vector<std::int64_t>& at,
                              Partial& to) {
        to.reset(heads, queries.head_dim);
        attend_rows(q, store.rows(layer, kv_head), at, scale, to.view(), shape_.softcap);
      };
      // The queries are read to the end before their outputs are written: these may be one memory.
      Partial& partial = chosen.empty() ? memory->of_store : memory->of_before;
      if (!chosen.empty()) attend(*rows.before, chosen, memory->of_before);
      if (!behind.empty()) attend(rows.store, behind, memory->of_store);
      if (!chosen.empty() && !behind.empty())
        merge(memory->of_before.view(), memory->of_store.view());
      const PartialView target = out.part(token * queries.heads + head, heads);
      std::ranges::copy(partial.out(), target.out);
      std::ranges::copy(partial.lse(), target.lse);
    }
  });
  return attended;
}

}  // namespace topkv
