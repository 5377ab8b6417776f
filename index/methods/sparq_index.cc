#include "index/methods/sparq_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "index/common/index_factory.h"
#include "index/common/scratch.h"
#include "index/common/spec.h"
#include "index/common/topk_stream.h"
#include "index/methods/sparq_tail.h"
#include "src/core/math/convert.h"
#include "src/core/math/vector_math.h"
#include "src/core/math/weighted_sum.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t block_keys = 512;
constexpr float largest_bf16 = 0x1.fep127F;    // infinity times a q of 0 would be no number
constexpr std::int64_t blocks_at_a_time = 16;  // that a thread makes or scores

std::string text_of(std::int64_t components, std::int64_t values) {
  return fmt::format("sparq:r={},v={}", components, values);
}

/// Of one token.
struct SparqWorkspace {
  SparqScores approximate;
  std::vector<float> weights;  // of keys, summed over the heads
  TopKStream keeper;
};

class SparqFactory final : public IndexFactory {
 public:
  /// With a tail it does not grow, because the tail is made of all values.
  SparqFactory(std::int64_t components, std::int64_t values)
      : IndexFactory({.grows = values == 0,
                      .ranks_keys = false,
                      .chooses_for = ChoosesFor::group,
                      .has_tail = values > 0}),
        components_(components),
        values_(values) {}
  std::string text() const override { return text_of(components_, values_); }
  std::unique_ptr<RowTail> transfer_tail(RowTail* tail, const KeyIndex& index, const RowsView& rows,
                                         Archive& archive) const override {
    if (!traits().has_tail) return nullptr;
    std::unique_ptr<SparqTail> read;
    if (archive.reading())
      read = std::make_unique<SparqTail>(dynamic_cast<const SparqIndex&>(index), rows);
    (read ? *read : dynamic_cast<SparqTail&>(*tail)).fields(archive);
    return read;
  }
  std::unique_ptr<HeadIndex> make() const override {
    return std::make_unique<SparqIndex>(components_, values_);
  }
  std::unique_ptr<RowTail> make_tail(const KeyIndex& index, const RowsView& rows,
                                     const Accelerator& /*accelerator*/,
                                     const std::stop_token& stop) const override {
    if (!traits().has_tail) return nullptr;
    return std::make_unique<SparqTail>(dynamic_cast<const SparqIndex&>(index), rows, stop);
  }

 private:
  std::int64_t components_;
  std::int64_t values_;
};

}  // namespace

std::string SparqIndex::spec() const { return text_of(components_, values_); }

std::int64_t SparqIndex::memory() const {
  return static_cast<std::int64_t>(sizeof *this + blocks_.capacity() * sizeof(blocks_[0]));
}

void SparqIndex::insert(std::int64_t first, const std::stop_token& stop) {
  const std::int64_t dim = keys().dim;
  const std::int64_t begin = first / block_keys;
  const std::int64_t end = (size() + block_keys - 1) / block_keys;
  blocks_.resize(static_cast<std::size_t>(end * dim * block_keys));
  parallel_for(end - begin, blocks_at_a_time, [&](std::int64_t from, std::int64_t to) {
    std::vector<float> key(static_cast<std::size_t>(dim));
    std::vector<std::uint16_t> stored(key.size());
    for (std::int64_t block = begin + from; block < begin + to; ++block) {
      check_stop(stop);
      std::uint16_t* out = &blocks_[static_cast<std::size_t>(block * dim * block_keys)];
      const std::int64_t last = std::min((block + 1) * block_keys, size());
      const std::int64_t start = std::max(block * block_keys, first);
      for (std::int64_t position = start; position < last; ++position) {
        widen_key(keys(), position, key.data());
        for (float& x : key) x = std::clamp(x, -largest_bf16, largest_bf16);
        from_float(key.data(), dim, DType::bf16, reinterpret_cast<std::byte*>(stored.data()));
        for (std::int64_t i = 0; i < dim; ++i) {
          out[i * block_keys + position % block_keys] = stored[static_cast<std::size_t>(i)];
        }
      }
      note_inserted(last - start);
    }
  });
}

void SparqIndex::score(const TokenHeads& token, PositionRange range, SparqScores& out) const {
  const std::int64_t dim = token.dim;
  const std::int64_t r = std::min(components_, dim);
  // Algorithm 1, line 1: the components with the largest |q|, summed over the heads of the group.
  std::vector<float> sizes(static_cast<std::size_t>(dim));
  for (std::int64_t h = 0; h < token.heads; ++h) {
    for (std::int64_t i = 0; i < dim; ++i)
      sizes[static_cast<std::size_t>(i)] += std::abs(token.query(h)[i]);
  }
  out.components.resize(static_cast<std::size_t>(dim));
  std::iota(out.components.begin(), out.components.end(), 0);
  std::stable_sort(out.components.begin(), out.components.end(), [&](auto a, auto b) {
    return sizes[static_cast<std::size_t>(a)] > sizes[static_cast<std::size_t>(b)];
  });
  out.components.resize(static_cast<std::size_t>(r));
  std::sort(out.components.begin(), out.components.end());

  // Line 2: scores of these components, at a temperature that makes up for those left out.
  std::vector<float> weights(static_cast<std::size_t>(token.heads * r));
  for (std::int64_t h = 0; h < token.heads; ++h) {
    const float* q = token.query(h);
    double all = 0;
    double read = 0;
    for (std::int64_t i = 0; i < dim; ++i) all += std::abs(q[i]);
    for (const std::int64_t i : out.components) read += std::abs(q[i]);
    const double factor = read > 0 ? token.scale / std::sqrt(read / all) : 0;
    for (std::int64_t i = 0; i < r; ++i) {
      weights[static_cast<std::size_t>(h * r + i)] =
          static_cast<float>(factor * q[out.components[static_cast<std::size_t>(i)]]);
    }
  }
  out.scores.resize(static_cast<std::size_t>(token.heads * range.size()));
  const std::int64_t begin = range.begin / block_keys;
  const std::int64_t end = (range.end + block_keys - 1) / block_keys;
  parallel_for(end - begin, blocks_at_a_time, [&](std::int64_t from, std::int64_t to) {
    std::vector<float> sums(static_cast<std::size_t>(token.heads * block_keys));
    for (std::int64_t block = begin + from; block < begin + to; ++block) {
      const auto* at = &blocks_[static_cast<std::size_t>(block * dim * block_keys)];
      const KeyView components{reinterpret_cast<const std::byte*>(at), DType::bf16, dim, block_keys,
                               2 * block_keys};
      std::fill(sums.begin(), sums.end(), 0.0F);
      add_weighted({components, out.components.data(), r, weights.data(), r, token.heads},
                   sums.data());
      const PositionRange here = range.within({block * block_keys, (block + 1) * block_keys});
      for (std::int64_t h = 0; h < token.heads; ++h) {
        const float* of = &sums[static_cast<std::size_t>(h * block_keys)];
        std::copy(
            of + here.begin % block_keys, of + here.begin % block_keys + here.size(),
            &out.scores[static_cast<std::size_t>(h * range.size() + here.begin - range.begin)]);
      }
    }
  });
}

KeySummaries SparqIndex::planned_key_summaries(std::int64_t dim, std::int64_t keys) const {
  return {.kind = KeySummaryKind::components,
          .count = keys,
          .dim = dim,
          .read = std::min(components_, dim),
          .block = block_keys};
}

KeySummaries SparqIndex::key_summaries() const {
  KeySummaries components = planned_key_summaries(keys().dim, size());
  components.data = reinterpret_cast<const std::byte*>(blocks_.data());
  return components;
}

void SparqIndex::choose(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                        std::span<std::vector<std::int64_t>> found) const {
  const Scratch<SparqWorkspace> workspace;
  auto& [approximate, weights, keeper] = *workspace;
  score(token, allowed, approximate);
  rank_not_numbers_last(approximate.scores);
  const std::int64_t count = allowed.size();
  const float* ranked = approximate.scores.data();
  if (token.heads > 1) {
    weights.assign(static_cast<std::size_t>(count), 0.0F);
    for (std::int64_t h = 0; h < token.heads; ++h) {
      float* scores = approximate.scores.data() + h * count;
      const float sum = exp_shifted(scores, count, max_of(scores, count));
      // A head whose scores are beyond float32 has no say.
      if (sum > 0 && sum < std::numeric_limits<float>::infinity())
        add_scaled(weights.data(), 1 / sum, scores, count);
    }
    ranked = weights.data();
  }
  keeper.reset(k);
  keeper.push(ranked, count, allowed.begin);
  for (const Scored& key : keeper.sorted()) {
    for (auto& list : found) list.push_back(key.position);
  }
}

bool SparqIndex::choose_given(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                              const CandidateEntries& given,
                              std::span<std::vector<std::int64_t>> found) const {
  for (std::int64_t h = 0; h < token.heads; ++h) {
    std::vector<std::int64_t>& list = found[static_cast<std::size_t>(h)];
    for (const std::int32_t entry : given.of(h)) {
      if (allowed.contains(given.first + entry)) list.push_back(given.first + entry);
    }
    if (std::ssize(list) < std::min(k, allowed.size())) return false;
  }
  return true;
}

std::shared_ptr<const IndexFactory> sparq_factory(std::string_view spec, std::string_view options) {
  std::int64_t components = 32;
  std::int64_t values = 0;
  parse_options(spec, options, {{"r", &components, 1, 1024}, {"v", &values, 0, 1}});
  return std::make_shared<SparqFactory>(components, values);
}

void SparqIndex::fields(Archive& archive) {
  archive.bf16_array(blocks_);
  const std::int64_t blocks = (size() + block_keys - 1) / block_keys;
  archive.check(std::ssize(blocks_) == blocks * keys().dim * block_keys,
                "it has not every component of each key");
}

}  // namespace topkv
