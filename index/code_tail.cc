#include "index/code_tail.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "index/scratch.h"
#include "src/core/threads.h"
#include "src/core/vector_math.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t encode_values = 8192;  // that a thread encodes at a time
constexpr std::int64_t piece_keys = 65536;    // that a thread sums at a time
constexpr std::int64_t tile_keys = value_tile;
constexpr float largest_score = 1e30F;  // of hostile keys: their differences stay finite

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
  std::span<const CodeTables> tables;  // per query, of scaled scores
  float scale;
  float softcap;
};

/// The rows of a piece, for one query.
struct CodeTail::Sums {
  float high = empty_lse;   // the largest score of a code
  float total = 0;          // of the weights exp(score - high)
  std::vector<float> axes;  // the weights of the values that have the bit of each axis
  Partial rare;
  std::vector<std::int64_t> positions;  // of rare rows

  void reset(std::int64_t width, std::int64_t dim) {
    high = empty_lse;
    total = 0;
    axes.assign(static_cast<std::size_t>(width), 0.0F);
    rare.reset(1, dim);
  }

  /// Weights are relative to this score from now on, if it is larger.
  void raise(float score) {
    if (score <= high) return;
    const float shrink = std::exp(high - score);
    total *= shrink;
    scale_by(axes.data(), std::ssize(axes), shrink);
    high = score;
  }

  void add(Sums& other) {
    merge(rare.view(), other.rare.view());
    if (other.high == empty_lse) return;
    raise(other.high);
    other.raise(high);
    total += other.total;
    add_to(axes.data(), other.axes.data(), std::ssize(axes));
  }
};

CodeTail::CodeTail(const CodesIndex& index, const RowsView& rows, std::int64_t bits,
                   const std::stop_token& stop)
    : index_(index), rows_(rows) {
  if (rows.count == 0) return;
  const KeyView values = rows.values();
  coder_ = ValueCoder(values, bits);
  codes_.resize(static_cast<std::size_t>(coder_.bytes_for(rows.count)));
  const std::int64_t blocks = (rows.count + encode_values - 1) / encode_values;
  parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      if (stop.stop_requested()) {
        throw Stopped(fmt::format("{}: stopped while coding values", index_.spec()));
      }
      const std::int64_t first = block * encode_values;
      coder_.encode(values, first, std::min(encode_values, rows.count - first), codes_.data());
    }
  });
}

std::int64_t CodeTail::memory() const {
  return static_cast<std::int64_t>(sizeof *this + codes_.capacity()) + coder_.memory();
}

void CodeTail::sum_codes(const Pass& pass, PositionRange range, std::int64_t query,
                         Sums& sums) const {
  const auto q = static_cast<std::size_t>(query);
  float scores[tile_keys];
  for (std::int64_t at = range.begin / tile_keys * tile_keys; at < range.end; at += tile_keys) {
    const std::int64_t count = std::min(tile_keys, range.end - at);
    score_codes(index_.codes(), index_.coder().bytes(), pass.tables[q], at, count, scores);
    for (std::int64_t i = 0; i < count; ++i) {
      scores[i] = std::clamp(scores[i], -largest_score, largest_score);
    }
    if (pass.softcap > 0) soft_cap(scores, count, pass.softcap);
    const std::int64_t padded = (count + value_block - 1) / value_block * value_block;
    std::fill(scores, scores + std::clamp<std::int64_t>(range.begin - at, 0, count), empty_lse);
    std::fill(scores + count, scores + padded, empty_lse);
    leave_out(pass.taken[q], at, count, scores);
    leave_out(index_.rare(), at, count, scores);
    const float high = max_of(scores, padded);
    if (high == empty_lse) continue;
    sums.raise(high);
    const float factor = std::exp(high - sums.high);
    sums.total += factor * exp_shifted(scores, padded, high);
    sum_values(codes_.data() + at / 4 * coder_.lanes(), coder_.lanes(), scores, padded, factor,
               sums.axes.data());
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
                      std::span<const std::span<const std::int64_t>> taken, float scale,
                      float softcap, PartialView out) const {
  std::fill_n(out.out, out.heads * out.head_dim, 0.0F);
  std::fill_n(out.lse, out.heads, empty_lse);
  const std::int64_t pieces = (rows_.count + piece_keys - 1) / piece_keys;
  if (pieces == 0) return;

  struct Workspace {
    std::vector<CodeTables> tables;
    std::vector<Sums> sums;  // [queries, pieces]
  };
  const Scratch<Workspace> workspace;
  auto& [tables, sums] = *workspace;
  const auto grow = [](auto& list, std::int64_t size) {
    if (std::ssize(list) < size) list.resize(static_cast<std::size_t>(size));
  };
  grow(tables, queries.count);
  grow(sums, queries.count * pieces);
  for (std::int64_t q = 0; q < queries.count; ++q) {
    CodeTables& of = tables[static_cast<std::size_t>(q)];
    index_.coder().make_tables(queries.query(q), of);
    of.step *= scale;
    of.offset *= scale;
  }
  const Pass pass{queries, taken, tables, scale, softcap};
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      for (std::int64_t q = 0; q < queries.count; ++q) {
        Sums& own = sums[static_cast<std::size_t>(q * pieces + piece)];
        own.reset(2 * coder_.lanes(), rows_.dim);
        const PositionRange allowed = queries.allowed[static_cast<std::size_t>(q)];
        const PositionRange range{std::max(allowed.begin, piece * piece_keys),
                                  std::min({allowed.end, (piece + 1) * piece_keys, rows_.count})};
        if (range.size() == 0) continue;
        sum_codes(pass, range, q, own);
        attend_rare(pass, range, q, own);
      }
    }
  });
  for (std::int64_t q = 0; q < queries.count; ++q) {
    Sums& all = sums[static_cast<std::size_t>(q * pieces)];
    for (std::int64_t piece = 1; piece < pieces; ++piece) {
      all.add(sums[static_cast<std::size_t>(q * pieces + piece)]);
    }
    const PartialView part{out.out + q * out.head_dim, out.lse + q, 1, out.head_dim};
    if (all.high != empty_lse) {
      float correction = 0;
      if (softcap == 0) {
        correction = scale * scale * index_.coder().error_variance(queries.query(q)) / 2;
      }
      coder_.mean_of(all.axes.data(), all.total, part.out);
      *part.lse = all.high + std::log(all.total) + std::min(correction, largest_score);
    }
    merge(part, all.rare.view());
  }
}

}  // namespace topkv
