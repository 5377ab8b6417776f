#include "index/trained/choose_keys.h"

#include <algorithm>
#include <numeric>

#include "index/common/scratch.h"
#include "index/common/topk_stream.h"
#include "src/core/io/faults.h"
#include "src/core/math/index_scores.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t index_keys_of_a_task = 16 * index_key_tile;
constexpr std::int64_t tokens_of_a_tile = 64;  // that meet a tile of keys together
constexpr std::int64_t most_score_bytes = std::int64_t{64} << 20;  // bytes of scores at a time

std::int64_t index_blocks(const IndexerShape& shape, std::int64_t keys) {
  return (keys + shape.block - 1) / shape.block;
}

/// Working memory of a choice.
struct ChoiceMemory {
  std::vector<float> scores;        // [tokens, choices, blocks]
  std::vector<std::int64_t> sizes;  // per token: the blocks of each choice
};

/// A choice among the keys for consecutive tokens, few enough for their scores.
class Choosing {
 public:
  Choosing(const IndexerShape& shape, const IndexQueries& queries, const IndexKeySpan& keys,
           ChoiceMemory& memory)
      : shape_(shape),
        queries_(queries),
        keys_(keys),
        memory_(memory),
        seen_(shape.keys(queries.first + queries.tokens)),
        blocks_(index_blocks(shape, seen_)) {
    memory_.sizes.clear();
    for (std::int64_t t = 0; t < queries.tokens; ++t)
      memory_.sizes.push_back(std::min(shape.top, index_blocks(shape, keys_seen(t))));
  }

  std::span<const std::int64_t> sizes() const { return memory_.sizes; }

  void run(KeyChoice& out) {
    if (chooses(queries_.tokens - 1)) score();
    const std::int64_t choices = shape_.choices;
    parallel_for(queries_.tokens * choices, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        choose(i / choices, i % choices, out.slots(queries_.first + i / choices, i % choices));
    });
  }

 private:
  std::int64_t keys_seen(std::int64_t token) const {
    return shape_.keys(queries_.first + token + 1);
  }
  /// Returns whether a token sees more blocks than it takes. All later tokens do then.
  bool chooses(std::int64_t token) const {
    return index_blocks(shape_, keys_seen(token)) > shape_.top;
  }
  float* scores(std::int64_t token, std::int64_t choice) const {
    return memory_.scores.data() + (token * shape_.choices + choice) * blocks_;
  }

  void score() {
    const auto size = static_cast<std::size_t>(queries_.tokens * shape_.choices * blocks_);
    if (memory_.scores.size() < size) memory_.scores.resize(size);
    const std::int64_t per_task = std::max<std::int64_t>(1, index_keys_of_a_task / shape_.block);
    const std::int64_t tasks = (blocks_ + per_task - 1) / per_task;
    parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t last = std::min(end * per_task * shape_.block, seen_);
      for (std::int64_t key = begin * per_task * shape_.block; key < last; key += index_key_tile) {
        check_stop();
        score({key, std::min(key + index_key_tile, last)});
      }
    });
  }

  /// Scores the keys of a tile. The tiles of a block come one after the other.
  void score(PositionRange range) const {
    thread_local std::vector<float> tile;
    tile.resize(static_cast<std::size_t>(shape_.dim * index_key_tile));
    const std::int64_t border = keys_.keys.count;
    const PositionRange before = range.within({0, border});
    const PositionRange behind = range.within({border, range.end});
    if (before.size() > 0) put_in_tile(keys_.keys.part(before), 0, tile.data());
    if (behind.size() > 0) {
      put_in_tile(keys_.more.part({behind.begin - border, behind.end - border}),
                  behind.begin - range.begin, tile.data());
    }
    const std::int64_t heads = shape_.heads / shape_.choices;
    float of_keys[index_key_tile];
    for (std::int64_t t = 0; t < queries_.tokens; ++t) {
      const std::int64_t seen = std::min(range.end, keys_seen(t));
      if (!chooses(t) || seen <= range.begin) continue;
      for (std::int64_t choice = 0; choice < shape_.choices; ++choice) {
        const std::int64_t query = t * shape_.heads + choice * heads;
        score_tile(queries_.data + query * shape_.dim,
                   queries_.weights == nullptr ? nullptr : queries_.weights + query, heads,
                   shape_.dim, shape_.score, tile.data(), of_keys);
        take({range.begin, seen}, of_keys, scores(t, choice));
      }
    }
  }

  /// Takes the scores of some keys as those of their blocks.
  void take(PositionRange range, const float* of_keys, float* of_blocks) const {
    if (shape_.block == 1) {
      std::copy_n(of_keys, range.size(), of_blocks + range.begin);
      return;
    }
    for (std::int64_t key = range.begin; key < range.end;) {
      const std::int64_t block = key / shape_.block;
      const std::int64_t end = std::min((block + 1) * shape_.block, range.end);
      const float* const from = of_keys + (key - range.begin);
      const float best = *std::max_element(from, from + (end - key));
      of_blocks[block] = key % shape_.block == 0 ? best : std::max(of_blocks[block], best);
      key = end;
    }
  }

  void choose(std::int64_t token, std::int64_t choice, std::span<std::int32_t> out) const {
    const std::int64_t blocks = index_blocks(shape_, keys_seen(token));
    if (!chooses(token)) {
      std::iota(out.begin(), out.end(), 0);
      return;
    }
    thread_local TopKStream best;
    const std::int64_t local = shape_.local_blocks;
    const std::int64_t wanted = shape_.top - local;
    auto to = out.begin();
    if (wanted > 0) {
      best.reset(wanted);
      best.push(scores(token, choice), blocks - local, 0);
      for (const Scored& block : best.best()) *to++ = static_cast<std::int32_t>(block.position);
      std::sort(out.begin(), to);
    }
    std::iota(to, out.end(), static_cast<std::int32_t>(blocks - local));
  }

  const IndexerShape& shape_;
  const IndexQueries& queries_;
  const IndexKeySpan& keys_;
  ChoiceMemory& memory_;
  std::int64_t seen_;    // keys that the last token sees
  std::int64_t blocks_;  // of these keys
};

}  // namespace

void KeyChoice::clear() {
  count_ = 0;
  begins_.resize(1);
  blocks_.clear();
}

std::span<const std::int32_t> KeyChoice::blocks(std::int64_t position, std::int64_t choice) const {
  const auto token = static_cast<std::size_t>(position - first_);
  const std::size_t size =
      (begins_[token + 1] - begins_[token]) / static_cast<std::size_t>(choices_);
  return {blocks_.data() + begins_[token] + static_cast<std::size_t>(choice) * size, size};
}

std::span<std::int32_t> KeyChoice::slots(std::int64_t position, std::int64_t choice) {
  const std::span<const std::int32_t> at = blocks(position, choice);
  return {const_cast<std::int32_t*>(at.data()), at.size()};
}

void KeyChoice::add(std::int64_t first, std::span<const std::int64_t> sizes, std::int64_t choices) {
  std::size_t more = 0;
  for (const std::int64_t size : sizes) more += static_cast<std::size_t>(size * choices);
  begins_.reserve(begins_.size() + sizes.size());
  blocks_.resize(blocks_.size() + more);
  if (count_ == 0) first_ = first;
  choices_ = choices;
  for (const std::int64_t size : sizes)
    begins_.push_back(begins_.back() + static_cast<std::size_t>(size * choices));
  count_ += std::ssize(sizes);
}

void KeyChoice::keep(PositionRange positions) {
  const PositionRange kept = tokens().within(positions);
  if (kept.size() <= 0) return clear();
  const auto from = static_cast<std::ptrdiff_t>(kept.begin - first_);
  const auto to = static_cast<std::ptrdiff_t>(kept.end - first_);
  const std::size_t begin = begins_[static_cast<std::size_t>(from)];
  blocks_.resize(begins_[static_cast<std::size_t>(to)]);
  blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(begin));
  begins_.resize(static_cast<std::size_t>(to) + 1);
  begins_.erase(begins_.begin(), begins_.begin() + from);
  for (std::size_t& at : begins_) at -= begin;
  first_ = kept.begin;
  count_ = kept.size();
}

std::int64_t tokens_that_choose(const IndexerShape& shape, std::int64_t keys) {
  const std::int64_t bytes = shape.choices * std::max<std::int64_t>(index_blocks(shape, keys), 1) *
                             static_cast<std::int64_t>(sizeof(float));
  return std::clamp<std::int64_t>(most_score_bytes / bytes, 1, tokens_of_a_tile);
}

void choose_keys(const IndexerShape& shape, const IndexQueries& queries, const IndexKeySpan& keys,
                 KeyChoice& out) {
  reach_fault("indexer.choose");
  const Scratch<ChoiceMemory> memory;
  Choosing choosing(shape, queries, keys, *memory);
  out.add(queries.first, choosing.sizes(), shape.choices);
  choosing.run(out);
}

void chosen_positions(const IndexerShape& shape, std::int64_t position,
                      std::span<const std::int32_t> blocks, std::vector<std::int64_t>& out) {
  out.clear();
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) out.push_back(x);
  };
  const std::int64_t keys = shape.keys(position + 1);
  for (const std::int32_t block : blocks) {
    const std::int64_t first = std::int64_t{block} * shape.block;
    add(first * shape.tokens_per_key, std::min(first + shape.block, keys) * shape.tokens_per_key);
  }
  add(keys * shape.tokens_per_key, position + 1);
}

}  // namespace topkv
