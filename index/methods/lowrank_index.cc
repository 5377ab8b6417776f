#include "index/methods/lowrank_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "index/common/index_factory.h"
#include "index/common/scratch.h"
#include "index/common/spec.h"
#include "index/common/topk_stream.h"
#include "src/core/math/convert.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t tiles_at_a_time = 8;      // that a thread projects
constexpr std::int64_t scored_at_a_time = 8192;  // that a thread scores

/// Of one token.
struct LowrankWorkspace {
  std::vector<float> projected;  // [heads, r]
  std::vector<float> scores;     // [heads, range]
  TopKStream keeper;
};

class LowrankFactory final : public IndexFactory {
 public:
  explicit LowrankFactory(std::int64_t rank) : IndexFactory({.ranks_keys = false}), rank_(rank) {}
  std::string text() const override { return fmt::format("lowrank:r={}", rank_); }
  void check(std::int64_t dim, std::int64_t /*keys*/) const override {
    CodeAxes::check(text(), dim);
  }
  std::unique_ptr<HeadIndex> make() const override { return std::make_unique<LowrankIndex>(rank_); }

 private:
  std::int64_t rank_;
};

}  // namespace

std::string LowrankIndex::spec() const { return fmt::format("lowrank:r={}", rank_); }

std::int64_t LowrankIndex::memory() const {
  return static_cast<std::int64_t>(sizeof *this + partial_.capacity() * sizeof(partial_[0])) +
         axes_.memory();
}

void LowrankIndex::clear() {
  axes_ = {};
  partial_ = {};
}

void LowrankIndex::insert(std::int64_t first, const std::stop_token& stop) {
  if (first == 0) {
    LowrankFactory(rank_).check(keys().dim, 0);
    std::vector<float> sample;
    axes_ = CodeAxes(keys(), sample);
  }
  constexpr std::int64_t tile = CodeAxes::tile;
  partial_.resize(static_cast<std::size_t>(size() * rank()));
  const std::int64_t tiles = (size() - first + tile - 1) / tile;
  parallel_for(tiles, tiles_at_a_time, [&](std::int64_t from, std::int64_t to) {
    std::vector<float> centred(static_cast<std::size_t>(tile * keys().dim));
    std::vector<float> along(static_cast<std::size_t>(tile * rank())), squares(tile);
    for (std::int64_t at = first + from * tile; at < std::min(first + to * tile, size());
         at += tile) {
      check_stop(stop);
      const std::int64_t count = std::min(tile, size() - at);
      axes_.read(keys(), at, count, centred.data(), squares.data());
      axes_.project_each(centred.data(), count, rank(), along.data(), rank());
      from_float(along.data(), count * rank(), DType::bf16,
                 reinterpret_cast<std::byte*>(&partial_[static_cast<std::size_t>(at * rank())]));
      note_inserted(count);
    }
  });
}

void LowrankIndex::choose(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                          std::span<std::vector<std::int64_t>> found) const {
  const Scratch<LowrankWorkspace> workspace;
  auto& [projected, scores, keeper] = *workspace;
  projected.assign(static_cast<std::size_t>(token.heads * rank()), 0.0F);
  for (std::int64_t h = 0; h < token.heads; ++h) {
    for (std::int64_t i = 0; i < rank(); ++i) {
      float& sum = projected[static_cast<std::size_t>(h * rank() + i)];
      for (std::int64_t j = 0; j < token.dim; ++j) sum += token.query(h)[j] * axes_.axis(i)[j];
    }
  }
  const KeyView partial{reinterpret_cast<const std::byte*>(partial_.data()), DType::bf16, size(),
                        rank(), 2 * rank()};
  scores.resize(static_cast<std::size_t>(token.heads * allowed.size()));
  score_all(projected.data(), token.heads, partial.part(allowed), scored_at_a_time, scores.data());
  rank_not_numbers_last(scores);
  for (std::int64_t h = 0; h < token.heads; ++h) {
    keeper.reset(k);
    keeper.push(scores.data() + h * allowed.size(), allowed.size(), allowed.begin);
    for (const Scored& key : keeper.sorted())
      found[static_cast<std::size_t>(h)].push_back(key.position);
  }
}

std::shared_ptr<const IndexFactory> lowrank_factory(std::string_view spec,
                                                    std::string_view options) {
  std::int64_t rank = 16;
  parse_options(spec, options, {{"r", &rank, 1, CodeAxes::most_dims}});
  return std::make_shared<LowrankFactory>(rank);
}

void LowrankIndex::fields(Archive& archive) {
  axes_.fields(keys().dim, true, archive);
  archive.bf16_array(partial_);
  archive.check(std::ssize(partial_) == size() * rank(), "it has not one partial key for each key");
}

}  // namespace topkv
