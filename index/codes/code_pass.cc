#include "index/codes/code_pass.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "index/codes/code_sums.h"
#include "index/common/scratch.h"
#include "index/common/topk_stream.h"
#include "src/core/math/find_above_threshold.h"
#include "src/core/math/ranked_score.h"
#include "src/core/math/vector_math.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/threads.h"
#include "topkv/attention.h"

namespace topkv {
namespace {

constexpr std::int64_t piece_keys = sum_keys;  // that a thread takes at a time
constexpr std::int64_t queries_at_a_time = 8;  // whose scores of a tile stay near
// Blocks of codes in a sample: an eighth of all, within these bounds.
constexpr std::int64_t least_sampled = 64;
constexpr std::int64_t most_sampled = 512;
constexpr std::int64_t ahead = 4;        // blocks that memory brings meanwhile
constexpr float furthest = 32;           // above the sample's best, that a threshold is set
constexpr std::int64_t steady_rank = 8;  // of a sample's best, that a threshold is taken from

/// The block that is number i of a sample of `samples` blocks.
std::int64_t sampled_block(std::int64_t blocks, std::int64_t samples, std::int64_t i) {
  const std::int64_t begin = blocks * i / samples;
  const std::int64_t end = blocks * (i + 1) / samples;
  // Not every n-th: text that repeats may have the same period.
  const std::uint64_t hash = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15U >> 32;
  return begin + static_cast<std::int64_t>(hash % static_cast<std::uint64_t>(end - begin));
}

}  // namespace

/// Of a pass for some tokens.
struct CodePass::Work {
  /// Of a piece.
  struct Piece {
    std::vector<CodeSums> sums;                     // per query
    std::vector<Partial> rare;                      // per token
    std::vector<std::vector<std::int64_t>> listed;  // likewise
  };

  std::size_t queries = 0;
  std::vector<SlotWeights> all_weights;  // at least those
  std::vector<double> deviations;        // likewise
  std::vector<float> thresholds;         // likewise
  std::vector<float> expected;           // likewise (CodeSums::expected)
  std::vector<ScoreEstimate> estimates;  // likewise
  // Of a token's sample:
  std::vector<float> scores;  // [heads, keys]
  std::vector<float> highs;   // [heads, blocks]
  std::vector<float> room;    // of a head
  std::vector<std::int32_t> above;
  std::vector<Piece> pieces;

  std::span<SlotWeights> weights() { return std::span(all_weights).first(queries); }
};

void CodePass::run(std::span<const PassToken> tokens) const {
  const std::int64_t at_once = std::max<std::int64_t>(1, queries_at_a_time / group);
  const std::int64_t count = std::ssize(tokens);
  parallel_for((count + at_once - 1) / at_once, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin * at_once; t < std::min(count, end * at_once); t += at_once) {
      run_some(tokens.subspan(static_cast<std::size_t>(t),
                              static_cast<std::size_t>(std::min(at_once, count - t))));
    }
  });
}

void CodePass::run_some(std::span<const PassToken> tokens) const {
  const Scratch<Work> borrowed;
  Work& work = *borrowed;
  const std::size_t queries = tokens.size() * static_cast<std::size_t>(group);
  work.queries = queries;
  if (work.all_weights.size() < queries) work.all_weights.resize(queries);
  work.deviations.resize(queries);
  work.estimates.resize(queries);
  for (std::size_t q = 0; q < queries; ++q) {
    const auto in_group = static_cast<std::int64_t>(q) % group;
    const float* query =
        tokens[q / static_cast<std::size_t>(group)].queries + in_group * rows.dim();
    work.deviations[q] = weigh_scaled(index->coder(), query, scale, softcap, work.all_weights[q]);
  }
  work.thresholds.resize(queries);
  work.expected.resize(queries);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const auto heads = static_cast<std::size_t>(group);
    set_thresholds(tokens[t], work.weights().subspan(t * heads, heads), work,
                   std::span(work.thresholds).subspan(t * heads, heads),
                   std::span(work.expected).subspan(t * heads, heads));
  }
  // What is not listed is known to score no more than the threshold, if there is one, by its code.
  for (std::size_t q = 0; q < queries; ++q) {
    const float threshold = work.thresholds[q];
    work.estimates[q].set(threshold == no_threshold ? -no_threshold : threshold,
                          work.deviations[q]);
  }

  const std::int64_t pieces = (rows.count() + piece_keys - 1) / piece_keys;
  if (std::ssize(work.pieces) < pieces) work.pieces.resize(static_cast<std::size_t>(pieces));
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      check_stop();
      pass_piece(tokens, piece, work);
    }
  });
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const TailParts& parts = tokens[t].parts;
    const bool exact = parts.exact.out != nullptr;
    if (exact) {
      std::fill_n(parts.exact.out, parts.exact.heads * parts.exact.head_dim, 0.0F);
      std::fill_n(parts.exact.lse, parts.exact.heads, empty_lse);
    }
    tokens[t].listed->clear();
    for (std::int64_t p = 0; p < pieces; ++p) {
      Work::Piece& piece = work.pieces[static_cast<std::size_t>(p)];
      if (exact) merge(parts.exact, piece.rare[t].view());
      tokens[t].listed->insert(tokens[t].listed->end(), piece.listed[t].begin(),
                               piece.listed[t].end());
    }
    if (tail == nullptr) continue;
    const Scratch<std::vector<float>> shared;
    shared->resize(static_cast<std::size_t>(group));
    tail->shared_errors(tokens[t].queries, scale, *shared);
    for (std::int64_t g = 0; g < group; ++g) {
      const std::size_t q = t * static_cast<std::size_t>(group) + static_cast<std::size_t>(g);
      CodeSums& all = work.pieces[0].sums[q];
      for (std::int64_t p = 1; p < pieces; ++p)
        all.add(work.pieces[static_cast<std::size_t>(p)].sums[q]);
      all.give(tail->coder(), work.estimates[q].correction(), parts.estimate.part(g),
               parts.noise[g]);
      if (*parts.estimate.part(g).lse != empty_lse)
        parts.noise[g].values += (*shared)[static_cast<std::size_t>(g)];
    }
  }
}

/// Of the scores of a sample of what a token may attend; where that is all there is, so that
/// `wanted` scores reach it. thresholds: [group]. expected: [group], CodeSums::expected.
void CodePass::set_thresholds(const PassToken& token, std::span<const SlotWeights> weights,
                              Work& work, std::span<float> thresholds,
                              std::span<float> expected) const {
  std::ranges::fill(thresholds, no_threshold);
  std::ranges::fill(expected, empty_lse);
  const PositionRange allowed{token.allowed.begin, std::min(token.allowed.end, rows.count())};
  const std::int64_t keys = allowed.size() - std::ssize(index->rare_in(allowed));
  if (wanted >= keys) return;  // all are listed
  const std::int64_t first_block = allowed.begin / code_block;
  const std::int64_t blocks = (allowed.end - 1) / code_block + 1 - first_block;
  const std::int64_t samples =
      std::min(blocks, std::clamp(blocks / 8, least_sampled, most_sampled));
  const bool all_sampled = samples == blocks;
  const auto part_of = [&](std::int64_t sampled) {  // of the wanted, that a sample has
    return static_cast<double>(wanted) * static_cast<double>(sampled) / static_cast<double>(keys);
  };
  const auto rank_of = [&](std::int64_t sampled) {
    return all_sampled ? wanted
                       : std::max(steady_rank, static_cast<std::int64_t>(part_of(sampled)));
  };
  const std::size_t heads = thresholds.size();
  const std::int64_t most = samples * code_block;
  work.scores.resize(heads * static_cast<std::size_t>(most));
  work.highs.resize(heads * static_cast<std::size_t>(samples));
  const auto block_at = [&](std::int64_t i) {
    return (first_block + sampled_block(blocks, samples, i)) * code_block;
  };
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t first = block_at(i);
    const std::int64_t count = std::min(code_block, rows.count() - first);
    if (i + ahead < samples)
      prefetch(index->coder().of_keys(index->codes(), block_at(i + ahead), 1));
    float* of_block = work.scores.data() + i * code_block;
    float* high_of_block = work.highs.data() + i;
    score_codes(index->codes(), index->coder().bytes(), weights, first, count, of_block, most,
                high_of_block);
    for (std::int64_t g = 0; g < std::ssize(thresholds); ++g) {
      TileScores block{of_block + g * most, high_of_block + g * samples, first, count};
      if (softcap > 0) block.cap(softcap);
      block.leave_outside(allowed);
      block.leave_out(index->rare());
    }
  }
  for (std::size_t g = 0; g < heads; ++g) {
    float* of = work.scores.data() + static_cast<std::int64_t>(g) * most;
    const std::int64_t sampled = count_from(of, most, std::numeric_limits<float>::lowest());
    const double part = part_of(sampled);
    const std::int64_t rank = std::min(sampled, rank_of(sampled));
    if (rank == 0) continue;
    float threshold = ranked_score(of, most, rank, work.room);
    if (!all_sampled && rank > 1 && part < static_cast<double>(rank)) {
      // Further out than the sample tells: weights fall off as a power there, so that scores fall
      // off exponentially (Weissman 1978; the mean excess is Hill's estimator).
      work.above.resize(static_cast<std::size_t>(most));
      const std::int64_t found = find_above(of, most, threshold, work.above.data());
      double excess = 0;
      for (std::int64_t i = 0; i < found; ++i)
        excess += of[work.above[static_cast<std::size_t>(i)]] - threshold;
      threshold += static_cast<float>(excess / static_cast<double>(rank - 1) *
                                      std::log(static_cast<double>(rank) / part));
      threshold = std::min(threshold, max_of(of, most) + (softcap > 0 ? 0.0F : furthest));
    }
    // Just below it, so that scores equal to it are listed: there may be many of them.
    thresholds[g] = std::nextafter(threshold, no_threshold);
    if (tail == nullptr || rows.count() <= all_read) continue;  // expected: of no use
    // Of keys that will not be listed.
    work.above.resize(static_cast<std::size_t>(most));
    const std::int64_t found = find_above(of, most, thresholds[g], work.above.data());
    for (std::int64_t i = 0; i < found; ++i)
      of[work.above[static_cast<std::size_t>(i)]] = empty_lse;
    const float high = max_of(of, most);
    if (high == empty_lse) continue;
    double sum = 0;
    float weights[code_block];
    for (std::int64_t i = 0; i < samples; ++i) {
      WeightSums of_block;
      weigh_scores(of + i * code_block, code_block, high, weights, &of_block);
      sum += of_block.total;
    }
    constexpr double keys_a_part = sum_keys;
    expected[g] =
        high + static_cast<float>(std::log(sum * keys_a_part / static_cast<double>(sampled)));
  }
}

void CodePass::pass_piece(std::span<const PassToken> tokens, std::int64_t piece, Work& work) const {
  const std::size_t queries = work.queries;
  const std::int64_t capacity = 4 * group * std::min(wanted, rows.count()) + 256;
  Work::Piece& own = work.pieces[static_cast<std::size_t>(piece)];
  own.sums.resize(std::max(own.sums.size(), queries));
  own.rare.resize(std::max(own.rare.size(), tokens.size()));
  own.listed.resize(std::max(own.listed.size(), tokens.size()));
  for (std::size_t q = 0; q < queries; ++q)
    own.sums[q].reset(tail != nullptr ? tail->coder().lanes() : 0, rows.count(), work.expected[q]);
  PositionRange all{rows.count(), 0};
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const bool exact = tokens[t].parts.exact.out != nullptr;
    own.listed[t].clear();
    if (exact) own.rare[t].reset(group, rows.dim());
    const PositionRange range{
        std::max(tokens[t].allowed.begin, piece * piece_keys),
        std::min({tokens[t].allowed.end, (piece + 1) * piece_keys, rows.count()})};
    if (range.size() == 0) continue;
    all = {std::min(all.begin, range.begin), std::max(all.end, range.end)};
    if (!exact) continue;
    attend_rows(tokens[t].queries, rows, index->rare_in(range), scale, own.rare[t].view(), softcap);
  }
  if (all.size() == 0) return;
  all.begin = all.begin / code_tile * code_tile;  // so that others' tiles are this token's
  struct Workspace {
    std::vector<float> scores;     // [queries, code_tile]
    std::vector<float> highs;      // [queries, tile_blocks]
    std::vector<TileScores> tile;  // per query
  };
  const Scratch<Workspace> borrowed;
  auto& [scores, highs, tile] = *borrowed;
  scores.resize(queries * code_tile);
  highs.resize(queries * tile_blocks);
  tile.resize(queries);
  const KeyCoder& keys = index->coder();
  auto rare = index->rare_in(all);
  static_assert(code_block == 64);  // bits of `found`
  const auto heads = static_cast<std::size_t>(group);
  for (std::int64_t at = all.begin; at < all.end; at += code_tile) {
    const std::int64_t count = std::min(code_tile, all.end - at);
    score_codes(index->codes(), keys.bytes(), work.weights(), at, count, scores.data(), code_tile,
                highs.data(), code_tile);
    // A few, of those that follow.
    const auto end =
        std::find_if(rare.begin(), rare.end(), [&](std::int64_t row) { return row >= at + count; });
    const auto rare_here = rare.first(static_cast<std::size_t>(end - rare.begin()));
    rare = rare.subspan(rare_here.size());
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      std::uint64_t found[tile_blocks] = {};  // a bit for each key
      for (std::size_t q = t * heads; q < (t + 1) * heads; ++q) {
        TileScores& of = tile[q];
        of = {scores.data() + q * code_tile, highs.data() + q * tile_blocks, at, count};
        if (softcap > 0) of.cap(softcap);
        of.leave_outside(tokens[t].allowed);
        of.leave_out(rare_here);
        for (std::int64_t b = 0; b < of.blocks(); ++b) {
          if (!(of.highs[b] > work.thresholds[q])) continue;
          std::int32_t above[code_block];
          const std::int64_t n =
              find_above(of.scores + b * code_block, code_block, work.thresholds[q], above);
          for (std::int64_t i = 0; i < n; ++i) found[b] |= std::uint64_t{1} << above[i];
        }
      }
      for (std::int64_t b = 0; b < tile_blocks; ++b) {
        for (std::uint64_t bits = found[b]; bits != 0; bits &= bits - 1) {
          if (std::ssize(own.listed[t]) == capacity) break;
          const std::int64_t i = b * code_block + std::countr_zero(bits);
          own.listed[t].push_back(at + i);
          for (std::size_t q = t * heads; q < (t + 1) * heads; ++q) tile[q].leave_out(i);
        }
      }
    }
    if (tail == nullptr) continue;
    add_tile(tail->coder(), tail->codes(), work.estimates, tile,
             std::span(own.sums).first(queries));
  }
}

}  // namespace topkv
