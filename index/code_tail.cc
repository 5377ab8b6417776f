#include "index/code_tail.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "index/scratch.h"
#include "src/core/above.h"
#include "src/core/dot.h"
#include "src/core/threads.h"
#include "src/core/vector_math.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t encode_values = 8192;  // that a thread encodes at a time
constexpr std::int64_t piece_keys = 65536;    // that a thread sums at a time
constexpr std::int64_t tile_keys = 512;
constexpr std::int64_t queries_at_a_time = 8;
constexpr float negligible = 30;        // a tile this far below adds less than 1e-10
constexpr float largest_variance = 60;  // of a score's error
constexpr float largest_score = 1e30F;  // of hostile keys: their differences stay finite

/// log of the normal distribution.
double log_normal(double z) {
  if (z > -5) return std::log(0.5 * std::erfc(-z / std::sqrt(2.0)));
  const double w = 1 / (z * z);
  return -z * z / 2 - std::log(-z) - 0.5 * std::log(2 * 3.14159265358979323846) +
         std::log1p(-w + 3 * w * w);
}

/// What is known of one query's scores, from code and ceiling.
class Estimate {
 public:
  /// deviation: s, the standard deviation of a code's error.
  void set(float ceiling, double deviation) {
    ceiling_ = ceiling;
    const double variance = deviation * deviation;
    reach_ = variance + 4 * deviation;  // F is 1 beyond
    first_ = -8 * deviation;
    step_ = (reach_ - first_) / (entries - 1);
    for (int i = 0; step_ > 0 && ceiling <= largest_score && i < entries; ++i) {
      const double t = (first_ + i * step_) / deviation;
      table_[i] = static_cast<float>(log_normal(t - deviation) - log_normal(t));
    }
  }

  /// Whether it does that of scores up to so much.
  bool changes(float high) const {
    return ceiling_ <= largest_score && high > ceiling_ - static_cast<float>(reach_);
  }

  /// log of the mean mass, less s² / 2, in place of each score.
  void correct(float* scores, std::int64_t count) const {
    std::int32_t near[tile_keys];
    const std::int64_t found =
        find_above(scores, count, ceiling_ - static_cast<float>(reach_), near);
    for (std::int64_t i = 0; i < found; ++i) {
      float& score = scores[near[i]];
      score = score + shift(static_cast<double>(ceiling_) - score);
    }
  }

 private:
  static constexpr int entries = 64;

  /// log(F((x - s²) / s) / F(x / s))
  float shift(double x) const {
    if (step_ == 0) return static_cast<float>(std::min(0.0, x));
    const double at = (x - first_) / step_;
    if (at <= 0) return table_[0] + static_cast<float>(x - first_);  // falls as x from here
    const int i = std::min(static_cast<int>(at), entries - 2);
    return table_[i] + static_cast<float>(at - i) * (table_[i + 1] - table_[i]);
  }

  float ceiling_ = 0;
  double reach_ = 0, first_ = 0, step_ = 0;
  float table_[entries];
};

/// x[at] = -inf for those of the positions, ascending, that lie in [first, first + count).
void leave_out(std::span<const std::int64_t> positions, std::int64_t first, std::int64_t count,
               float* x) {
  auto at = std::lower_bound(positions.begin(), positions.end(), first);
  for (; at != positions.end() && *at < first + count; ++at) x[*at - first] = empty_lse;
}

}  // namespace

/// What all pieces of a call share.
struct CodeTail::Pass {
  const QueryBlock& queries;
  std::span<const std::span<const std::int64_t>> taken;
  std::span<const SlotWeights> tables;  // per query, of scaled scores
  std::span<const Estimate> estimates;
  float scale;
  float softcap;
};

/// The rows of a piece, for one query.
struct CodeTail::Sums {
  float high = empty_lse;   // the largest score of a code
  float total = 0;          // of the weights exp(score - high)
  float squares = 0;        // of these
  std::vector<float> axes;  // the weights of the values that have the bit of each axis
  Partial rare;
  std::vector<std::int64_t> positions;  // of rare rows

  void reset(std::int64_t width, std::int64_t dim) {
    high = empty_lse;
    total = 0;
    squares = 0;
    axes.assign(static_cast<std::size_t>(width), 0.0F);
    rare.reset(1, dim);
  }

  /// Weights are relative to this score from now on, if it is larger.
  void raise(float score) {
    if (score <= high) return;
    const float shrink = std::exp(high - score);
    total *= shrink;
    squares *= shrink * shrink;
    scale_by(axes.data(), std::ssize(axes), shrink);
    high = score;
  }

  void add(Sums& other) {
    merge(rare.view(), other.rare.view());
    if (other.high == empty_lse) return;
    raise(other.high);
    other.raise(high);
    total += other.total;
    squares += other.squares;
    add_to(axes.data(), other.axes.data(), std::ssize(axes));
  }
};

CodeTail::CodeTail(const CodesIndex& index, const RowsView& rows, std::int64_t bits,
                   const std::stop_token& stop)
    : index_(index), rows_(rows) {
  if (rows.count == 0) return;
  const auto check_stop = [&] {
    if (stop.stop_requested()) {
      throw Stopped(bits == 0 ? "mean: stopped while adding up values"
                              : fmt::format("{}: stopped while coding values", index_.spec()));
    }
  };
  const KeyView values = rows.values();
  check_stop();
  coder_ = ValueCoder(values, bits);
  if (coder_.lanes() == 0) return;  // there is nothing but the mean
  codes_.resize(static_cast<std::size_t>(coder_.bytes_for(rows.count)));
  const std::int64_t blocks = (rows.count + encode_values - 1) / encode_values;
  parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      check_stop();
      const std::int64_t first = block * encode_values;
      coder_.encode(values, first, std::min(encode_values, rows.count - first), codes_.data());
    }
  });
}

std::int64_t CodeTail::memory() const {
  return static_cast<std::int64_t>(sizeof *this + codes_.capacity()) + coder_.memory();
}

/// sums: per query.
void CodeTail::sum_codes(const Pass& pass, PositionRange piece, std::span<Sums> sums) const {
  float scores[queries_at_a_time * tile_keys];
  std::uint8_t weights[queries_at_a_time * tile_keys];
  WeightedTile weighted[queries_at_a_time];
  const auto rare = index_.rare();
  for (std::int64_t at = piece.begin; at < piece.end; at += tile_keys) {
    const std::int64_t count = std::min(tile_keys, piece.end - at);
    const std::int64_t padded = (count + value_block - 1) / value_block * value_block;
    score_codes(index_.codes(), index_.coder().bytes(), pass.tables, at, count, scores, tile_keys);
    const auto first_rare = std::lower_bound(rare.begin(), rare.end(), at);
    const std::span of_tile(first_rare, std::lower_bound(first_rare, rare.end(), at + count));
    // Memory brings the next tile's codes while this one's scores are weighed.
    const std::int64_t bytes = tile_keys * index_.coder().bytes();
    const std::uint8_t* next = index_.codes() + at * index_.coder().bytes() + bytes;
    std::int64_t asked = 0;
    std::size_t some = 0;
    for (std::size_t q = 0; q < sums.size(); ++q) {
      for (; asked * std::ssize(sums) < bytes * static_cast<std::int64_t>(q + 1); asked += 64)
        __builtin_prefetch(next + asked);
      float* of = scores + static_cast<std::int64_t>(q) * tile_keys;
      const PositionRange allowed = pass.queries.allowed[q];
      if (pass.softcap > 0) soft_cap(of, count, pass.softcap);
      std::fill(of, of + std::clamp<std::int64_t>(allowed.begin - at, 0, count), empty_lse);
      std::fill(of + std::clamp<std::int64_t>(allowed.end - at, 0, count), of + padded, empty_lse);
      leave_out(pass.taken[q], at, count, of);
      leave_out(of_tile, at, count, of);
      float high = max_of(of, padded);
      if (pass.estimates[q].changes(high)) {
        pass.estimates[q].correct(of, count);
        high = max_of(of, padded);
      }
      Sums& to = sums[q];
      if (high < to.high - negligible || high == empty_lse) continue;
      to.raise(high);
      std::uint8_t* of_weights = weights + some * tile_keys;
      const WeightSums tile = weigh_scores(of, padded, high, of_weights);
      const float factor = std::exp(high - to.high);
      to.total += factor * tile.total;
      to.squares += factor * factor * tile.squares;
      weighted[some++] = {of_weights, factor, to.axes.data()};
    }
    if (coder_.lanes() == 0) continue;
    sum_values(codes_.data() + at / 4 * coder_.lanes(), coder_.lanes(), {weighted, some}, padded);
  }
}

void CodeTail::attend_rare(const Pass& pass, PositionRange range, std::int64_t query,
                           Sums& sums) const {
  const auto rare = index_.rare();
  const auto taken = pass.taken[static_cast<std::size_t>(query)];
  const auto begin = std::lower_bound(rare.begin(), rare.end(), range.begin);
  const auto end = std::lower_bound(begin, rare.end(), range.end);
  sums.positions.clear();
  std::set_difference(begin, end, taken.begin(), taken.end(), std::back_inserter(sums.positions));
  attend_rows(pass.queries.query(query), rows_, sums.positions, pass.scale, sums.rare.view(),
              pass.softcap);
}

void CodeTail::attend(const QueryBlock& queries,
                      std::span<const std::span<const std::int64_t>> taken,
                      std::span<const float> ceilings, float scale, float softcap,
                      const TailParts& out) const {
  for (std::int64_t first = 0; first < queries.count; first += queries_at_a_time) {
    const std::int64_t count = std::min(queries_at_a_time, queries.count - first);
    const auto at = static_cast<std::size_t>(first);
    const auto n = static_cast<std::size_t>(count);
    attend_some({queries.query(first), count, queries.dim, queries.allowed.subspan(at, n)},
                taken.subspan(at, n), ceilings.subspan(at, n), scale, softcap,
                {out.estimate.part(first, count), out.exact.part(first, count), out.noise + first});
  }
}

void CodeTail::attend_some(const QueryBlock& queries,
                           std::span<const std::span<const std::int64_t>> taken,
                           std::span<const float> ceilings, float scale, float softcap,
                           const TailParts& out) const {
  for (const PartialView& empty : {out.estimate, out.exact}) {
    std::fill_n(empty.out, empty.heads * empty.head_dim, 0.0F);
    std::fill_n(empty.lse, empty.heads, empty_lse);
  }
  std::fill_n(out.noise, queries.count, TailNoise{});
  const std::int64_t pieces = (rows_.count + piece_keys - 1) / piece_keys;
  if (pieces == 0) return;

  struct Workspace {
    std::vector<SlotWeights> tables;
    std::vector<Estimate> estimates;
    std::vector<float> corrections;  // s² / 2
    std::vector<Sums> sums;          // [pieces, queries]
  };
  const Scratch<Workspace> workspace;
  auto& [tables, estimates, corrections, sums] = *workspace;
  const auto grow = [](auto& list, std::int64_t size) {
    if (std::ssize(list) < size) list.resize(static_cast<std::size_t>(size));
  };
  grow(tables, queries.count);
  grow(estimates, queries.count);
  grow(corrections, queries.count);
  grow(sums, queries.count * pieces);
  for (std::int64_t q = 0; q < queries.count; ++q) {
    const auto at = static_cast<std::size_t>(q);
    SlotWeights& of = tables[at];
    index_.coder().weigh_slots(queries.query(q), of);
    of.step = std::min(of.step * scale, largest_score / 262144);  // sums are below
    of.offset = std::clamp(of.offset * scale, -largest_score, largest_score);
    const double deviation =
        softcap > 0 ? 0.0 : scale * std::sqrt(index_.coder().error_variance(queries.query(q)));
    estimates[at].set(ceilings[at], std::min(deviation, 1e6));
    corrections[at] = static_cast<float>(std::min(deviation, 1e6) * std::min(deviation, 1e6) / 2);
  }
  const auto count = static_cast<std::size_t>(queries.count);
  const Pass pass{
      queries, taken,  std::span(tables).first(count), std::span(estimates).first(count),
      scale,   softcap};
  const auto sums_of = [&](std::int64_t piece) {
    return std::span(sums).subspan(static_cast<std::size_t>(piece) * count, count);
  };
  const auto within = [&](PositionRange range, std::int64_t piece) {
    return PositionRange{std::max(range.begin, piece * piece_keys),
                         std::min({range.end, (piece + 1) * piece_keys, rows_.count})};
  };
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::span own = sums_of(piece);
      PositionRange all{rows_.count, 0};  // of the piece
      for (std::size_t q = 0; q < own.size(); ++q) {
        own[q].reset(2 * coder_.lanes(), rows_.dim);
        const PositionRange range = within(queries.allowed[q], piece);
        if (range.size() == 0) continue;
        all = {std::min(all.begin, range.begin), std::max(all.end, range.end)};
        attend_rare(pass, range, static_cast<std::int64_t>(q), own[q]);
      }
      all.begin = all.begin / value_block * value_block;
      if (all.size() > 0) sum_codes(pass, all, own);
    }
  });
  for (std::int64_t q = 0; q < queries.count; ++q) {
    Sums& all = sums_of(0)[static_cast<std::size_t>(q)];
    for (std::int64_t piece = 1; piece < pieces; ++piece)
      all.add(sums_of(piece)[static_cast<std::size_t>(q)]);
    if (all.high != empty_lse) {
      const float correction = corrections[static_cast<std::size_t>(q)];
      coder_.mean_of(all.axes.data(), all.total, out.estimate.out + q * rows_.dim);
      out.estimate.lse[q] = all.high + std::log(all.total) + correction;
      const float square = all.squares / (all.total * all.total);
      const float variance = std::expm1(std::min(2 * correction, largest_tail_variance));
      out.noise[q] = {square * variance, square * coder_.error_variance(), coder_.variance()};
    }
    merge(out.exact.part(q), all.rare.view());
  }
}

}  // namespace topkv
