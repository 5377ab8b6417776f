#include "index/codes_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "index/code_tail.h"
#include "index/index_kind.h"
#include "index/scratch.h"
#include "index/spec.h"
#include "src/core/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t encode_keys = 8192;  // that a thread encodes at a time
constexpr std::int64_t tile_keys = 512;     // scored at a time
constexpr std::int64_t queries_at_a_time = 8;
constexpr std::int64_t blocks_per_sample = 32;  // of which one is scored for a threshold
constexpr std::int64_t piece_keys = 65536;      // that a thread scores at a time
/// Of so many keys one is scored exactly: that with the largest residual. Rare keys (a needle's in
/// a text that repeats) lie outside the axes of the rest, and codes would lose them.
constexpr std::int64_t keys_per_rare = 256;
constexpr std::int64_t most_dims = 1024;  // the work on axes grows with its third power

/// Of 128 dims, that bytes of codes are given for.
std::int64_t units_of(std::int64_t dim) { return (dim + 127) / 128; }

class CodesKind : public IndexSpec::Kind {
 public:
  explicit CodesKind(const CodesParams& params) : params_(params) {}
  std::string text() const override { return params_.text(); }
  std::unique_ptr<KeyIndex> make() const override { return std::make_unique<CodesIndex>(params_); }
  void check(std::int64_t dim, std::int64_t /*keys*/) const override {
    if (dim <= most_dims) return;
    throw InvalidArgument(fmt::format(
        "index {}: keys of {} elements; principal axes are found of up to {}: use another index",
        text(), dim, most_dims));
  }
  bool has_tail() const override { return params_.value_bytes > 0; }
  std::unique_ptr<RowTail> make_tail(const KeyIndex& index, const RowsView& rows,
                                     const std::stop_token& stop) const override {
    if (!has_tail()) return nullptr;
    const std::int64_t bits = 8 * params_.value_bytes * units_of(rows.dim);
    return std::make_unique<CodeTail>(dynamic_cast<const CodesIndex&>(index), rows, bits, stop);
  }

 private:
  CodesParams params_;
};

class MeanKind final : public CodesKind {
 public:
  MeanKind() : CodesKind(CodesParams{}) {}
  std::string text() const override { return "mean"; }
  void check_index() const override {
    throw InvalidArgument(
        "index \"mean\": is a tail, which stands for rows that were not found, and finds none; "
        "expected an index such as exact or codes, beside which mean may be the tail");
  }
  bool is_served_by(const KeyIndex& index) const override {
    const auto* codes = dynamic_cast<const CodesIndex*>(&index);
    return codes != nullptr && codes->params().key_bytes == CodesParams{}.key_bytes;
  }
  std::unique_ptr<RowTail> make_tail(const KeyIndex& index, const RowsView& rows,
                                     const std::stop_token& stop) const override {
    return std::make_unique<CodeTail>(dynamic_cast<const CodesIndex&>(index), rows, 0, stop);
  }
};

}  // namespace

std::string CodesParams::text() const {
  return fmt::format("codes:k={},v={}", key_bytes, value_bytes);
}

std::int64_t CodesIndex::memory() const {
  return static_cast<std::int64_t>(sizeof *this + codes_.capacity() * sizeof(codes_[0]) +
                                   rare_.capacity() * sizeof(rare_[0])) +
         coder_.memory();
}

void CodesIndex::insert(std::int64_t first, const std::stop_token& stop) {
  const std::int64_t bytes = params_.key_bytes * units_of(keys().dim);
  if (first == 0) {
    CodesKind(params_).check(keys().dim, 0);
    coder_ = KeyCoder(keys(), bytes);
    rare_.reserve(static_cast<std::size_t>(keys().count / keys_per_rare + 1));
  }
  const std::int64_t count = keys().count - first;
  codes_.resize(static_cast<std::size_t>(coder_.bytes_for(keys().count)));
  std::vector<float> residuals(static_cast<std::size_t>(count));
  // Blocks of codes are whole, so that threads do not share them.
  const std::int64_t begin = first / encode_keys;
  const std::int64_t end = (keys().count + encode_keys - 1) / encode_keys;
  parallel_for(end - begin, 1, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t block = begin + from; block < begin + to; ++block) {
      check_stop(stop);
      const std::int64_t at = std::max(first, block * encode_keys);
      const std::int64_t size = std::min((block + 1) * encode_keys, keys().count) - at;
      coder_.encode(keys(), at, size, codes_.data(), residuals.data() + (at - first));
      note_inserted(size);
    }
  });
  keep_rare(first, residuals);
}

void CodesIndex::clear() {
  coder_ = {};
  codes_ = {};
  rare_ = {};
}

/// Of some queries.
struct CodesIndex::Scan {
  std::span<const PositionRange> allowed;
  std::int64_t best = 0;  // of each query's codes are wanted
  std::vector<SlotWeights> weights;
  std::vector<float> thresholds;  // that a little more are above
  std::vector<ScanKeeper> keepers, sampled;
  std::vector<Scored> held;  // of one query
  std::vector<std::int64_t> positions;

  std::int64_t count() const { return std::ssize(allowed); }
};

/// Guesses from a sample of the codes what the best are above, so that others need not be kept. Too
/// high a guess costs another pass.
void CodesIndex::set_thresholds(Scan& scan) const {
  scan.thresholds.assign(static_cast<std::size_t>(scan.count()), no_threshold);
  PositionRange all{keys().count, 0};
  for (const PositionRange& range : scan.allowed) {
    if (range.size() == 0) continue;
    all = {std::min(all.begin, range.begin), std::max(all.end, range.end)};
  }
  const std::int64_t first = all.begin / code_block;
  const std::int64_t samples = (all.end / code_block - first) / blocks_per_sample;
  const std::int64_t rank = 3 * scan.best / 2 / blocks_per_sample + 12;
  if (samples * code_block < 4 * rank) return;
  const auto count = static_cast<std::size_t>(scan.count());
  if (scan.sampled.size() < count) scan.sampled.resize(count);
  for (std::size_t q = 0; q < count; ++q) scan.sampled[q].reset(rank);
  float scores[queries_at_a_time * code_block];
  for (std::int64_t i = 0; i < samples; ++i) {
    // Not every n-th: text that repeats may have the same period.
    const std::uint64_t hash = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15U >> 32;
    const std::int64_t block =
        first + i * blocks_per_sample + static_cast<std::int64_t>(hash % blocks_per_sample);
    score_codes(codes_.data(), coder_.bytes(), scan.weights, block * code_block, code_block, scores,
                code_block);
    for (std::size_t q = 0; q < count; ++q) {
      const PositionRange range = scan.allowed[q];
      if (block * code_block < range.begin || (block + 1) * code_block > range.end) continue;
      scan.sampled[q].push(scores + static_cast<std::int64_t>(q) * code_block, code_block,
                           i * code_block);
    }
  }
  for (std::size_t q = 0; q < count; ++q) {
    const auto best = scan.sampled[q].sorted();
    // Just below it, so that scores equal to it are kept: there may be many of them.
    if (std::ssize(best) == rank)
      scan.thresholds[q] = std::nextafter(best.back().score, no_threshold);
  }
}

void CodesIndex::scan_piece(const Scan& scan, PositionRange piece,
                            std::span<ScanKeeper> keepers) const {
  float scores[queries_at_a_time * tile_keys];
  for (std::int64_t at = piece.begin; at < piece.end; at += tile_keys) {
    const std::int64_t count = std::min(tile_keys, piece.end - at);
    score_codes(codes_.data(), coder_.bytes(), scan.weights, at, count, scores, tile_keys);
    for (std::int64_t q = 0; q < scan.count(); ++q) {
      const PositionRange range = scan.allowed[static_cast<std::size_t>(q)];
      const std::int64_t from = std::max(at, range.begin);
      const std::int64_t to = std::min(at + count, range.end);
      if (from >= to) continue;
      keepers[static_cast<std::size_t>(q)].push(scores + q * tile_keys + (from - at), to - from,
                                                from);
    }
  }
}

void CodesIndex::candidates(const float* query, PositionRange allowed, std::int64_t want,
                            std::vector<std::int64_t>& found) const {
  scan_some({query, 1, keys().dim, {&allowed, 1}}, want, {&found, 1});
}

void CodesIndex::all_candidates(const QueryBlock& queries, std::int64_t want,
                                std::span<std::vector<std::int64_t>> found) const {
  for (std::int64_t q = 0; q < queries.count; q += queries_at_a_time) {
    const std::int64_t count = std::min(queries_at_a_time, queries.count - q);
    const auto first = static_cast<std::size_t>(q);
    const auto size = static_cast<std::size_t>(count);
    scan_some({queries.query(q), count, queries.dim, queries.allowed.subspan(first, size)}, want,
              found.subspan(first, size));
  }
}

/// For at most queries_at_a_time.
void CodesIndex::scan_some(const QueryBlock& queries, std::int64_t want,
                           std::span<std::vector<std::int64_t>> found) const {
  const Scratch<Scan> borrowed;
  Scan& scan = *borrowed;
  const auto count = static_cast<std::size_t>(queries.count);
  scan.allowed = queries.allowed;
  // Codes misorder keys whose scores are close: twice as many leave few behind.
  scan.best = 2 * want;
  scan.weights.resize(count);
  PositionRange all{keys().count, 0};
  for (std::size_t q = 0; q < count; ++q) {
    coder_.weigh_slots(queries.query(static_cast<std::int64_t>(q)), scan.weights[q]);
    const PositionRange range = queries.allowed[q];
    if (range.size() > 0) all = {std::min(all.begin, range.begin), std::max(all.end, range.end)};
  }
  set_thresholds(scan);
  const std::int64_t first = all.begin / piece_keys;
  const std::int64_t pieces = std::max<std::int64_t>(0, (all.end - 1) / piece_keys + 1 - first);
  const auto keepers_of = [&](std::int64_t piece) {
    return std::span(scan.keepers).subspan(static_cast<std::size_t>(piece) * count, count);
  };
  if (std::ssize(scan.keepers) < pieces * queries.count)
    scan.keepers.resize(static_cast<std::size_t>(pieces) * count);
  for (;;) {
    parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        for (std::size_t q = 0; q < count; ++q)
          keepers_of(piece)[q].reset(scan.best, scan.thresholds[q]);
        const std::int64_t at = (first + piece) * piece_keys;
        scan_piece(
            scan,
            {std::max(all.begin / code_block * code_block, at), std::min(all.end, at + piece_keys)},
            keepers_of(piece));
      }
    });
    bool again = false;
    for (std::size_t q = 0; q < count; ++q) {
      std::int64_t held = 0;
      for (std::int64_t piece = 0; piece < pieces; ++piece)
        held += std::ssize(keepers_of(piece)[q].held());
      if (held >= std::min(scan.best, queries.allowed[q].size())) continue;
      again = again || scan.thresholds[q] != no_threshold;
      scan.thresholds[q] = no_threshold;
    }
    if (!again) break;
  }
  std::vector<Scored>& held = scan.held;
  for (std::size_t q = 0; q < count; ++q) {
    held.clear();
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      const auto of_piece = keepers_of(piece)[q].held();
      held.insert(held.end(), of_piece.begin(), of_piece.end());
    }
    if (std::ssize(held) > scan.best) {
      const auto last = held.begin() + static_cast<std::ptrdiff_t>(scan.best);
      std::nth_element(held.begin(), last, held.end(), ranks_before);
      held.erase(last, held.end());
    }
    scan.positions.clear();
    for (const Scored& scored : held) scan.positions.push_back(scored.position);
    std::sort(scan.positions.begin(), scan.positions.end());
    const PositionRange range = queries.allowed[q];
    found[q].clear();
    std::set_union(scan.positions.begin(), scan.positions.end(),
                   std::lower_bound(rare_.begin(), rare_.end(), range.begin),
                   std::lower_bound(rare_.begin(), rare_.end(), range.end),
                   std::back_inserter(found[q]));
  }
}

/// residuals: of keys first and on.
void CodesIndex::keep_rare(std::int64_t first, const std::vector<float>& residuals) {
  if (first == 0) {
    std::vector<float> sorted = residuals;
    const std::size_t rare = sorted.size() / keys_per_rare;
    const auto at = sorted.end() - static_cast<std::ptrdiff_t>(rare) - 1;
    std::nth_element(sorted.begin(), at, sorted.end());
    rare_above_ = *at;
  }
  for (std::size_t i = 0; i < residuals.size(); ++i) {
    if (residuals[i] > rare_above_) rare_.push_back(first + static_cast<std::int64_t>(i));
  }
}

std::shared_ptr<const IndexSpec::Kind> codes_kind(std::string_view spec, std::string_view options) {
  CodesParams params;
  parse_options(spec, options,
                {{"k", &params.key_bytes, 1, 64}, {"v", &params.value_bytes, 0, 16}});
  return std::make_shared<CodesKind>(params);
}

std::shared_ptr<const IndexSpec::Kind> mean_kind() { return std::make_shared<MeanKind>(); }

}  // namespace topkv
