#include "index/codes/code_tail.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "index/codes/code_sums.h"
#include "index/common/scratch.h"
#include "src/core/math/vector_math.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t encode_values = 8192;        // that a thread encodes at a time
constexpr std::int64_t tail_piece_keys = sum_keys;  // that a thread sums at a time
constexpr std::int64_t tail_queries_at_a_time = 8;

}  // namespace

/// What all pieces of a call share.
struct CodeTail::Pass {
  const QueryBlock& queries;
  std::span<const std::span<const std::int64_t>> taken;
  std::span<const SlotWeights> tables;  // per query, of scaled scores
  std::span<const ScoreEstimate> estimates;
  float scale;
  float softcap;
};

/// Rare rows of a piece, for one query.
struct CodeTail::Rare {
  Partial attended;
  std::vector<std::int64_t> positions;
};

void CodeTail::fields(std::int64_t bits, Archive& archive) {
  if (rows_.count() == 0) return;
  coder_.fields(rows_.dim(), bits, archive);
  archive.array(codes_);
  archive.check(std::ssize(codes_) == coder_.bytes_for(rows_.count()),
                "it has not one code for each value");
  shared_.fields(rows_.dim(), archive);
}

CodeTail::CodeTail(const CodesIndex& index, const RowsView& rows, std::int64_t bits,
                   const std::stop_token& stop, CodeEncoder* encoder)
    : index_(index), rows_(rows) {
  if (rows.count() == 0) return;
  const auto check_stop = [&] {
    if (stop.stop_requested()) {
      throw Stopped(bits == 0 ? "mean: stopped while adding up values"
                              : fmt::format("{}: stopped while coding values", index_.spec()));
    }
  };
  const KeyView values = rows.values;
  check_stop();
  coder_ = ValueCoder(values, bits);
  shared_ = SharedError(index, coder_, rows, check_stop);
  if (coder_.lanes() == 0) return;  // there is nothing but the mean
  codes_.resize(static_cast<std::size_t>(coder_.bytes_for(rows.count())));
  if (encoder != nullptr) {
    check_stop();
    encoder->encode(coder_, values, codes_.data());
    return;
  }
  const std::int64_t blocks = (rows.count() + encode_values - 1) / encode_values;
  parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      check_stop();
      const std::int64_t first = block * encode_values;
      coder_.encode(values, first, std::min(encode_values, rows.count() - first), codes_.data());
    }
  });
}

std::int64_t CodeTail::memory() const {
  return static_cast<std::int64_t>(sizeof *this + codes_.capacity()) + coder_.memory() +
         shared_.memory();
}

double CodeTail::shared_unit() const {
  return 1 / (static_cast<double>(index_.coder().axes().scale()) * coder_.axes().scale());
}

void CodeTail::shared_errors(const float* queries, float scale, std::span<float> squares) const {
  shared_.squared(queries, scale * shared_unit(), squares);
}

/// sums: per query.
void CodeTail::sum_codes(const Pass& pass, PositionRange piece, std::span<CodeSums> sums) const {
  float scores[tail_queries_at_a_time * code_tile] = {};
  float highs[tail_queries_at_a_time * tile_blocks] = {};
  TileScores tile[tail_queries_at_a_time];
  const KeyCoder& keys = index_.coder();
  for (std::int64_t at = piece.begin; at < piece.end; at += code_tile) {
    const std::int64_t count = std::min(code_tile, piece.end - at);
    score_codes(index_.codes(), keys.bytes(), pass.tables, at, count, scores, code_tile, highs,
                code_tile);
    for (std::size_t q = 0; q < sums.size(); ++q) {
      tile[q] = {scores + q * code_tile, highs + q * tile_blocks, at, count};
      if (pass.softcap > 0) tile[q].cap(pass.softcap);
      tile[q].leave_outside(pass.queries.allowed[q]);
      tile[q].leave_out(pass.taken[q]);
      tile[q].leave_out(index_.rare());
    }
    add_tile(coder_, codes_.data(), pass.estimates, std::span(tile).first(sums.size()), sums);
  }
}

void CodeTail::attend_rare(const Pass& pass, PositionRange range, std::int64_t query,
                           Rare& rare) const {
  const auto taken = pass.taken[static_cast<std::size_t>(query)];
  rare.positions.clear();
  std::ranges::set_difference(index_.rare_in(range), taken, std::back_inserter(rare.positions));
  attend_rows(pass.queries.query(query), rows_, rare.positions, pass.scale, rare.attended.view(),
              pass.softcap);
}

void CodeTail::attend(const QueryBlock& queries,
                      std::span<const std::span<const std::int64_t>> taken,
                      std::span<const float> ceilings, float scale, float softcap,
                      const TailParts& out) const {
  for (std::int64_t first = 0; first < queries.count; first += tail_queries_at_a_time) {
    const std::int64_t count = std::min(tail_queries_at_a_time, queries.count - first);
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
  make_empty(out);
  const std::int64_t pieces = (rows_.count() + tail_piece_keys - 1) / tail_piece_keys;
  if (pieces == 0) return;

  struct Workspace {
    std::vector<SlotWeights> tables;
    std::vector<ScoreEstimate> estimates;
    std::vector<CodeSums> sums;  // [pieces, queries]
    std::vector<Rare> rare;      // likewise
  };
  const Scratch<Workspace> workspace;
  auto& tables = workspace->tables;
  auto& estimates = workspace->estimates;
  auto& sums = workspace->sums;
  auto& rare = workspace->rare;
  const auto grow = [](auto& list, std::int64_t size) {
    if (std::ssize(list) < size) list.resize(static_cast<std::size_t>(size));
  };
  grow(tables, queries.count);
  grow(estimates, queries.count);
  grow(sums, queries.count * pieces);
  grow(rare, queries.count * pieces);
  const auto count = static_cast<std::size_t>(queries.count);
  for (std::size_t q = 0; q < count; ++q) {
    const float* query = queries.query(static_cast<std::int64_t>(q));
    estimates[q].set(ceilings[q], weigh_scaled(index_.coder(), query, scale, softcap, tables[q]));
  }
  const Pass pass{
      queries, taken,  std::span(tables).first(count), std::span(estimates).first(count),
      scale,   softcap};
  const auto of_piece = [&](auto& list, std::int64_t piece) {
    return std::span(list).subspan(static_cast<std::size_t>(piece) * count, count);
  };
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      PositionRange all{rows_.count(), 0};
      for (std::size_t q = 0; q < count; ++q) {
        of_piece(sums, piece)[q].reset(coder_.lanes(), rows_.count());
        Rare& own = of_piece(rare, piece)[q];
        own.attended.reset(1, rows_.dim());
        const PositionRange allowed = queries.allowed[q];
        const PositionRange range{
            std::max(allowed.begin, piece * tail_piece_keys),
            std::min({allowed.end, (piece + 1) * tail_piece_keys, rows_.count()})};
        if (range.size() == 0) continue;
        all = {std::min(all.begin, range.begin), std::max(all.end, range.end)};
        attend_rare(pass, range, static_cast<std::int64_t>(q), own);
      }
      all.begin = all.begin / code_tile * code_tile;  // for each query alone, too
      if (all.size() > 0) sum_codes(pass, all, of_piece(sums, piece));
    }
  });
  const Scratch<std::vector<float>> shared;
  shared->resize(count);
  shared_errors(queries.data, scale, *shared);
  for (std::size_t q = 0; q < count; ++q) {
    const auto at = static_cast<std::int64_t>(q);
    CodeSums& all = sums[q];
    for (std::int64_t piece = 1; piece < pieces; ++piece) all.add(of_piece(sums, piece)[q]);
    all.give(coder_, estimates[q].correction(), out.estimate.part(at), out.noise[q]);
    if (*out.estimate.part(at).lse != empty_lse) out.noise[q].values += (*shared)[q];
    for (std::int64_t piece = 0; piece < pieces; ++piece)
      merge(out.exact.part(at), of_piece(rare, piece)[q].attended.view());
  }
}

}  // namespace topkv
