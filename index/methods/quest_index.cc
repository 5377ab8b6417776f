#include "index/methods/quest_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "index/common/index_factory.h"
#include "index/common/scratch.h"
#include "index/common/spec.h"
#include "index/common/topk_stream.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t pages_at_a_time = 512;  // that a thread makes or scores
constexpr std::uint16_t largest_bf16_bits = 0x7f7f;

/// The bf16 next to x that is not below it (up) or not above it; beyond the largest, that one, for
/// infinity times a q of 0 would be no number. REQUIRES: finite.
std::uint16_t rounded_out(float x, bool up) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  auto high = static_cast<std::uint16_t>(bits >> 16);  // towards 0
  const bool negative = (bits >> 31) != 0;
  if ((bits & 0xffff) != 0 && negative != up && (high & 0x7fff) != largest_bf16_bits)
    ++high;  // away from 0
  return high;
}

/// Of one token.
struct QuestWorkspace {
  std::vector<float> scores;  // [heads, pages]
  TopKStream keeper;
  std::vector<float> split;
  GivenScores given;
};

/// max(q min, q max) is q max for a positive q and q min for another: with the positive and the
/// negative part of q beside each other a page's score is one inner product.
void split_queries(const float* queries, std::int64_t heads, std::int64_t dim,
                   std::vector<float>& split) {
  split.resize(static_cast<std::size_t>(heads * 2 * dim));
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < dim; ++i) {
      const float q = queries[h * dim + i];
      split[static_cast<std::size_t>((2 * h) * dim + i)] = std::max(q, 0.0F);
      split[static_cast<std::size_t>((2 * h + 1) * dim + i)] = std::min(q, 0.0F);
    }
  }
}

class QuestFactory final : public IndexFactory {
 public:
  explicit QuestFactory(std::int64_t page)
      : IndexFactory({.grows = true, .ranks_keys = false}), page_(page) {}
  std::string text() const override { return fmt::format("quest:page={}", page_); }
  std::unique_ptr<HeadIndex> make() const override { return std::make_unique<QuestIndex>(page_); }

 private:
  std::int64_t page_;
};

}  // namespace

std::string QuestIndex::spec() const { return fmt::format("quest:page={}", page_); }

std::int64_t QuestIndex::memory() const {
  return static_cast<std::int64_t>(sizeof *this + bounds_.capacity() * sizeof(bounds_[0]));
}

/// The page that keys are appended to is made anew.
void QuestIndex::insert(std::int64_t first, const std::stop_token& stop) {
  const std::int64_t dim = keys().dim;
  bounds_.resize(static_cast<std::size_t>(pages() * 2 * dim));
  const std::int64_t begin = first / page_;
  parallel_for(pages() - begin, pages_at_a_time, [&](std::int64_t from, std::int64_t to) {
    std::vector<float> key(static_cast<std::size_t>(dim)), low(key), high(key);
    for (std::int64_t page = begin + from; page < begin + to; ++page) {
      check_stop(stop);
      const PositionRange of{page * page_, std::min((page + 1) * page_, size())};
      std::fill(low.begin(), low.end(), std::numeric_limits<float>::infinity());
      std::fill(high.begin(), high.end(), -std::numeric_limits<float>::infinity());
      for (std::int64_t position = of.begin; position < of.end; ++position) {
        widen_key(keys(), position, key.data());
        for (std::size_t i = 0; i < key.size(); ++i) {
          low[i] = std::min(low[i], key[i]);
          high[i] = std::max(high[i], key[i]);
        }
      }
      std::uint16_t* out = &bounds_[static_cast<std::size_t>(page * 2 * dim)];
      for (std::size_t i = 0; i < key.size(); ++i) {
        out[i] = rounded_out(high[i], true);
        out[key.size() + i] = rounded_out(low[i], false);
      }
      note_inserted(of.end - std::max(of.begin, first));
    }
  });
}

KeyView QuestIndex::bounds() const {
  const std::int64_t dim = keys().dim;
  return {reinterpret_cast<const std::byte*>(bounds_.data()), DType::bf16, pages(), 2 * dim,
          4 * dim};
}

KeySummaries QuestIndex::planned_key_summaries(std::int64_t dim, std::int64_t keys) const {
  return {.kind = KeySummaryKind::bounds,
          .count = (keys + page_ - 1) / page_,
          .dim = dim,
          .page = page_};
}

KeySummaries QuestIndex::key_summaries() const {
  KeySummaries bounds = planned_key_summaries(keys().dim, size());
  bounds.data = reinterpret_cast<const std::byte*>(bounds_.data());
  return bounds;
}

void QuestIndex::score_pages(const float* queries, std::int64_t heads, PositionRange pages,
                             float* out) const {
  const Scratch<std::vector<float>> split;
  split_queries(queries, heads, keys().dim, *split);
  score_all(split->data(), heads, bounds().part(pages), pages_at_a_time, out);
}

/// Up to k rows of pages, those of the best first.
void QuestIndex::take(std::span<const Scored> best, PositionRange allowed, std::int64_t k,
                      std::vector<std::int64_t>& found) const {
  for (const Scored& page : best) {
    const PositionRange rows = allowed.within({page.position * page_, (page.position + 1) * page_});
    const std::int64_t room = k - std::ssize(found);
    for (std::int64_t i = 0; i < std::min(rows.size(), room); ++i) found.push_back(rows.begin + i);
  }
}

void QuestIndex::choose(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                        std::span<std::vector<std::int64_t>> found) const {
  const auto [pages, count] = entry_choice(planned_key_summaries(token.dim, size()), allowed, k);
  const Scratch<QuestWorkspace> workspace;
  auto& [scores, keeper, split, given] = *workspace;
  scores.resize(static_cast<std::size_t>(token.heads * pages.size()));
  score_pages(token.queries, token.heads, pages, scores.data());
  rank_not_numbers_last(scores);
  for (std::int64_t h = 0; h < token.heads; ++h) {
    keeper.reset(count);
    keeper.push(scores.data() + h * pages.size(), pages.size(), pages.begin);
    take(keeper.sorted(), allowed, k, found[static_cast<std::size_t>(h)]);
  }
}

bool QuestIndex::choose_given(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                              const CandidateEntries& given,
                              std::span<std::vector<std::int64_t>> found) const {
  const Scratch<QuestWorkspace> workspace;
  split_queries(token.queries, token.heads, token.dim, workspace->split);
  for (std::int64_t h = 0; h < token.heads; ++h) {
    const float* query = &workspace->split[static_cast<std::size_t>(h * 2 * token.dim)];
    const std::span<Scored> pages = score_given(query, bounds(), given, h, workspace->given);
    std::sort(pages.begin(), pages.end(), ranks_before);
    std::vector<std::int64_t>& list = found[static_cast<std::size_t>(h)];
    take(pages, allowed, k, list);
    if (std::ssize(list) < std::min(k, allowed.size())) return false;
  }
  return true;
}

std::shared_ptr<const IndexFactory> quest_factory(std::string_view spec, std::string_view options) {
  std::int64_t page = 16;
  parse_options(spec, options, {{"page", &page, 1, 4096}});
  return std::make_shared<QuestFactory>(page);
}

void QuestIndex::fields(Archive& archive) {
  archive.bf16_array(bounds_);
  archive.check(std::ssize(bounds_) == pages() * 2 * keys().dim,
                "it has not one pair of bounds for each page");
}

}  // namespace topkv
