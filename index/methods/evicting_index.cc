#include "index/methods/evicting_index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "index/common/index_factory.h"
#include "src/core/math/dot.h"
#include "src/core/math/vector_math.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Adds the softmax weights that a token's heads give to the keys up to it. scores: working memory.
void add_weights(const PrefillQueries& queries, std::int64_t number, const KeyView& keys,
                 std::vector<float>& scores, float* sums) {
  const std::int64_t position = queries.positions[static_cast<std::size_t>(number)];
  const std::int64_t count = std::min(position + 1, keys.count);
  scores.resize(static_cast<std::size_t>(queries.group * count));
  dot_block(queries.token(number), queries.group, keys.part({0, count}), scores.data(), count);
  for (std::int64_t h = 0; h < queries.group; ++h) {
    float* of = scores.data() + h * count;
    scale_by(of, count, queries.scale);
    if (queries.softcap > 0) soft_cap(of, count, queries.softcap);
    const float sum = exp_shifted(of, count, max_of(of, count));
    if (sum > 0 && sum < std::numeric_limits<float>::infinity())
      add_scaled(sums, 1 / sum, of, count);
  }
}

class EvictingFactory final : public IndexFactory {
 public:
  explicit EvictingFactory(Evicts by)
      : IndexFactory({.ranks_keys = false, .learns_queries = true}), by_(by) {}
  std::string text() const override { return by_ == Evicts::h2o ? "h2o" : "tova"; }
  std::unique_ptr<HeadIndex> make() const override { return std::make_unique<EvictingIndex>(by_); }
  void learn(KeyIndex& index, const PrefillQueries& queries,
             const std::stop_token& stop) const override {
    dynamic_cast<EvictingIndex&>(index).learn(queries, stop);
  }

 private:
  Evicts by_;
};

}  // namespace

std::int64_t EvictingIndex::memory() const {
  return static_cast<std::int64_t>(sizeof *this + ranked_.capacity() * sizeof(ranked_[0]));
}

void EvictingIndex::insert(std::int64_t first, const std::stop_token& /*stop*/) {
  for (std::int64_t position = first; position < size(); ++position) ranked_.push_back(position);
  note_inserted(size() - first);
}

void EvictingIndex::learn(const PrefillQueries& queries, const std::stop_token& stop) {
  if (size() == 0) return;
  const std::int64_t all = std::ssize(queries.positions);
  // Of the last tokens' the very last; of those spread over the text, all.
  const PositionRange used =
      by_ == Evicts::tova ? PositionRange{all - 1, all} : PositionRange{0, queries.spread};
  const bool has = by_ == Evicts::tova ? all > queries.spread : queries.spread > 0;
  if (!has) {
    throw InvalidArgument(spec() +
                          ": needs the queries of a prefill, and this context has no queries; "
                          "expected a prefill with ContextOptions::keep_queries, without appended "
                          "or truncated rows, and without steps whose out is q or that use chunks");
  }
  std::vector<float> sums(static_cast<std::size_t>(size()), 0.0F);
  std::vector<float> scores;
  for (std::int64_t number = used.begin; number < used.end; ++number) {
    check_stop(stop);
    add_weights(queries, number, keys(), scores, sums.data());
  }
  std::iota(ranked_.begin(), ranked_.end(), 0);
  std::stable_sort(ranked_.begin(), ranked_.end(), [&](std::int64_t a, std::int64_t b) {
    return sums[static_cast<std::size_t>(a)] > sums[static_cast<std::size_t>(b)];
  });
}

void EvictingIndex::choose(const TokenHeads& /*token*/, PositionRange allowed, std::int64_t k,
                           std::span<std::vector<std::int64_t>> found) const {
  std::vector<std::int64_t>& first = found[0];
  for (std::size_t i = 0; i < ranked_.size() && std::ssize(first) < k; ++i) {
    if (allowed.contains(ranked_[i])) first.push_back(ranked_[i]);
  }
  for (auto& list : found.subspan(1)) list = first;
}

std::shared_ptr<const IndexFactory> h2o_factory() {
  return std::make_shared<EvictingFactory>(Evicts::h2o);
}

std::shared_ptr<const IndexFactory> tova_factory() {
  return std::make_shared<EvictingFactory>(Evicts::tova);
}

void EvictingIndex::fields(Archive& archive) {
  archive.array(ranked_);
  archive.check(std::ssize(ranked_) == size(), "it has not one rank for each key");
  std::vector<bool> seen(ranked_.size(), false);
  for (const std::int64_t position : ranked_) {
    archive.check(position >= 0 && position < size() && !seen[static_cast<std::size_t>(position)],
                  "a rank names an unknown key, or a key has two ranks");
    seen[static_cast<std::size_t>(position)] = true;
  }
}

}  // namespace topkv
