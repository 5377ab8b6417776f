#include "src/attention/block_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/core/math/matrix_product.h"
#include "src/core/math/vector_math.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/threads.h"
#include "topkv/attention.h"

namespace topkv {
namespace {

constexpr std::int64_t blocks_at_once = 4;  // of keys, for one matrix product

std::vector<std::int64_t> every(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> blocks(
      static_cast<std::size_t>(std::max<std::int64_t>(0, end - begin)));
  std::iota(blocks.begin(), blocks.end(), begin);
  return blocks;
}

/// log(exp(a) + exp(b)).
float add_logs(float a, float b) {
  const float high = std::max(a, b);
  return high == empty_lse ? high : high + std::log(std::exp(a - high) + std::exp(b - high));
}

/// The sampled queries of one block: [passes, samples, head_dim], scaled.
class Samples {
 public:
  explicit Samples(const BlockQueries& of) : of_(of), dim_(of.passes[0].queries.head_dim) {
    const std::vector<std::int64_t> tokens = sampled(of.tokens());
    count_ = std::ssize(tokens) * of.group;
    for (const std::int64_t token : tokens)
      positions_.insert(positions_.end(), static_cast<std::size_t>(of.group), of.first() + token);
    for (const PassQueries& pass : of.passes) {
      for (const std::int64_t token : tokens) {
        const float* q = pass.queries.query(token, of.head);
        data_.insert(data_.end(), q, q + of.group * dim_);
      }
    }
    scale_by(data_.data(), std::ssize(data_), of.scale);
  }

  std::int64_t count() const { return count_; }
  std::int64_t position(std::int64_t sample) const {
    return positions_[static_cast<std::size_t>(sample)];
  }

  /// The pass that meets a key.
  std::size_t pass_of(std::int64_t position) const {
    std::size_t pass = 0;
    while (!of_.passes[pass].sees.contains(position)) ++pass;
    return pass;
  }

  /// scores[sample * stride + i] of `keys`, [count, head_dim]: keys of one pass, the first of them
  /// at `position`.
  void score(std::int64_t position, const float* keys, std::int64_t count, float* scores,
             std::int64_t stride) const {
    matrix_product(Transposed::yes, count_, count, dim_,
                   &data_[pass_of(position) * static_cast<std::size_t>(count_ * dim_)], dim_, keys,
                   dim_, 0, scores, stride);
    if (of_.softcap <= 0) return;
    for (std::int64_t s = 0; s < count_; ++s) soft_cap(scores + s * stride, count, of_.softcap);
  }

  /// The parts of blocks [begin, end) that are of one pass: use(first block, one past the last).
  template <class Use>
  void each_pass(std::int64_t begin, std::int64_t end, const Use& use) const {
    for (const PassQueries& pass : of_.passes) {
      const PositionRange part = pass.sees.within({begin * key_block, end * key_block});
      if (part.size() > 0) use(part.begin / key_block, part.end / key_block);
    }
  }

 private:
  const BlockQueries& of_;
  std::int64_t dim_;
  std::int64_t count_ = 0;
  std::vector<std::int64_t> positions_;
  std::vector<float> data_;
};

/// Scratch of one thread.
struct ChoiceScratch {
  std::vector<float> means;   // scores of candidates, then weights: [samples, candidates]
  std::vector<float> shares;  // [candidates]
  std::vector<float> keys;    // [blocks_at_once * key_block, head_dim]
  std::vector<float> scores;  // [samples, blocks_at_once * key_block]
  std::vector<float> lse;     // [kept, samples]
  std::vector<float> forced;  // [samples]
  std::vector<std::int64_t> order;
};

/// The order of numbers by falling share; the lower number first where shares are equal.
auto by_falling(const std::vector<float>& shares) {
  return [&shares](std::int64_t a, std::int64_t b) {
    const float x = shares[static_cast<std::size_t>(a)];
    const float y = shares[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
}

/// The candidates that remain after the first look, ascending. unseen: receives, per sample, the
/// lse of the keys of those that do not remain, by their mean keys.
std::vector<std::int64_t> first_look(const Samples& samples, const ForcedBlocks& forced,
                                     std::int64_t most, const float* means, std::int64_t dim,
                                     ChoiceScratch& s, std::vector<float>& unseen) {
  const std::int64_t n = forced.candidates();
  if (n <= most) {
    unseen.assign(static_cast<std::size_t>(samples.count()), empty_lse);
    return every(forced.sinks, forced.local);
  }
  s.means.resize(static_cast<std::size_t>(samples.count() * n));
  s.shares.assign(static_cast<std::size_t>(n), 0.0F);
  samples.each_pass(forced.sinks, forced.local, [&](std::int64_t begin, std::int64_t end) {
    samples.score(begin * key_block, means + begin * dim, end - begin,
                  s.means.data() + begin - forced.sinks, n);
  });
  std::vector<float> high;
  for (std::int64_t i = 0; i < samples.count(); ++i) {
    float* weights = s.means.data() + i * n;
    high.push_back(max_of(weights, n));
    add_scaled(s.shares.data(), 1 / exp_shifted(weights, n, high.back()), weights, n);
  }
  std::vector<std::int64_t> kept(static_cast<std::size_t>(n));
  std::iota(kept.begin(), kept.end(), std::int64_t{0});
  std::nth_element(kept.begin(), kept.begin() + most - 1, kept.end(), by_falling(s.shares));
  const std::span<const std::int64_t> left =
      std::span(kept).subspan(static_cast<std::size_t>(most));
  for (std::int64_t i = 0; i < samples.count(); ++i) {
    float sum = 0;
    for (const std::int64_t block : left) sum += s.means[static_cast<std::size_t>(i * n + block)];
    unseen.push_back(sum > 0 ? high[static_cast<std::size_t>(i)] +
                                   std::log(static_cast<float>(key_block) * sum)
                             : empty_lse);
  }
  kept.resize(static_cast<std::size_t>(most));
  std::ranges::sort(kept);
  for (std::int64_t& block : kept) block += forced.sinks;
  return kept;
}

/// Meets every key of the blocks, whose numbers ascend: use(number in `blocks`, sample, lse of the
/// block's keys that are not behind the sample).
template <class Use>
void second_look(const Samples& samples, std::span<const std::int64_t> blocks, const RowSpan& rows,
                 std::int64_t end, ChoiceScratch& s, const Use& use) {
  constexpr std::int64_t stride = blocks_at_once * key_block;
  const std::int64_t dim = rows.dim();
  s.keys.resize(static_cast<std::size_t>(stride * dim));
  s.scores.resize(static_cast<std::size_t>(samples.count() * stride));
  for (std::int64_t first = 0; first < std::ssize(blocks); first += blocks_at_once) {
    const auto some = blocks.subspan(
        static_cast<std::size_t>(first),
        static_cast<std::size_t>(std::min(blocks_at_once, std::ssize(blocks) - first)));
    for (std::size_t i = 0; i < some.size(); ++i) {
      const std::int64_t begin = some[i] * key_block;
      const std::int64_t count = std::min(key_block, end - begin);
      const auto at = static_cast<std::int64_t>(i) * key_block;
      for (std::int64_t x = 0; x < count; ++x)
        rows.key(begin + x, &s.keys[static_cast<std::size_t>((at + x) * dim)]);
    }
    // Neighbours in the list that are of one pass share a product.
    for (std::size_t i = 0; i < some.size();) {
      const std::int64_t position = some[i] * key_block;
      const std::size_t begin = i;
      while (i < some.size() && samples.pass_of(some[i] * key_block) == samples.pass_of(position))
        ++i;
      samples.score(position, &s.keys[begin * static_cast<std::size_t>(key_block * dim)],
                    static_cast<std::int64_t>(i - begin) * key_block,
                    s.scores.data() + begin * key_block, stride);
    }
    for (std::size_t i = 0; i < some.size(); ++i) {
      for (std::int64_t sample = 0; sample < samples.count(); ++sample) {
        const std::int64_t count = std::min({key_block, end - some[i] * key_block,
                                             samples.position(sample) + 1 - some[i] * key_block});
        float* scores =
            s.scores.data() + sample * stride + static_cast<std::int64_t>(i) * key_block;
        float lse = empty_lse;
        if (count > 0) {
          const float high = max_of(scores, count);
          lse = high + std::log(exp_shifted(scores, count, high));
        }
        use(first + static_cast<std::int64_t>(i), sample, lse);
      }
    }
  }
}

/// The mean over samples of the share of their attention that keys of `chosen` blocks have: every
/// key before `end` is met.
double measured_mass(const Samples& samples, std::span<const std::int64_t> chosen,
                     const RowSpan& rows, std::int64_t end, ChoiceScratch& s) {
  std::vector<float> met(static_cast<std::size_t>(samples.count()), empty_lse);
  std::vector<float> total = met;
  second_look(samples, every(0, (end + key_block - 1) / key_block), rows, end, s,
              [&](std::int64_t block, std::int64_t sample, float lse) {
                const auto i = static_cast<std::size_t>(sample);
                total[i] = add_logs(total[i], lse);
                if (std::ranges::binary_search(chosen, block)) met[i] = add_logs(met[i], lse);
              });
  double mass = 0;
  for (std::size_t i = 0; i < met.size(); ++i) mass += std::exp(met[i] - total[i]);
  return mass / static_cast<double>(met.size());
}

}  // namespace

ForcedBlocks::ForcedBlocks(std::int64_t first, std::int64_t window, std::int64_t sink_tokens)
    : sinks((sink_tokens + key_block - 1) / key_block),
      local(std::max(sinks, std::max<std::int64_t>(0, first - window + 1) / key_block)) {}

std::vector<std::int64_t> sampled(std::int64_t tokens) {
  if (tokens <= sampled_tokens) return every(0, tokens);
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < sampled_tokens; ++i)
    numbers.push_back((2 * i + 1) * tokens / (2 * sampled_tokens));
  return numbers;
}

ChosenBlocks choose_blocks(const BlockQueries& queries, const ForcedBlocks& forced,
                           const BlockBudget& budget, const RowSpan& rows,
                           std::span<const float> means) {
  const std::int64_t end = queries.first() + queries.tokens();
  const std::int64_t last = (end - 1) / key_block;
  if (forced.candidates() * key_block <= budget.without_choice()) return {every(0, last + 1), 1};
  thread_local ChoiceScratch s;
  const Samples samples(queries);
  std::vector<float> total;  // lse of all keys of a sample: unseen ones first
  const std::vector<std::int64_t> kept =
      first_look(samples, forced, candidate_factor * budget.most / key_block, means.data(),
                 rows.dim(), s, total);
  std::vector<std::int64_t> always = every(0, forced.sinks);
  const std::vector<std::int64_t> local = every(forced.local, last + 1);
  always.insert(always.end(), local.begin(), local.end());
  s.forced.assign(static_cast<std::size_t>(samples.count()), empty_lse);
  second_look(samples, always, rows, end, s,
              [&](std::int64_t /*block*/, std::int64_t sample, float lse) {
                float& to = s.forced[static_cast<std::size_t>(sample)];
                to = add_logs(to, lse);
              });
  s.lse.resize(kept.size() * static_cast<std::size_t>(samples.count()));
  second_look(samples, kept, rows, end, s, [&](std::int64_t block, std::int64_t sample, float lse) {
    s.lse[static_cast<std::size_t>(block * samples.count() + sample)] = lse;
    float& to = total[static_cast<std::size_t>(sample)];
    to = add_logs(to, lse);
  });
  double met = 0;
  for (std::int64_t i = 0; i < samples.count(); ++i) {
    float& to = total[static_cast<std::size_t>(i)];
    to = add_logs(to, s.forced[static_cast<std::size_t>(i)]);
    met += std::exp(s.forced[static_cast<std::size_t>(i)] - to);
  }
  s.shares.resize(kept.size());
  for (std::size_t block = 0; block < kept.size(); ++block) {
    float sum = 0;
    for (std::int64_t i = 0; i < samples.count(); ++i)
      sum += std::exp(
          s.lse[block * static_cast<std::size_t>(samples.count()) + static_cast<std::size_t>(i)] -
          total[static_cast<std::size_t>(i)]);
    s.shares[block] = sum;
  }
  s.order.resize(kept.size());
  std::iota(s.order.begin(), s.order.end(), std::int64_t{0});
  std::ranges::sort(s.order, by_falling(s.shares));
  const auto count = static_cast<double>(samples.count());
  ChosenBlocks chosen{std::move(always), 0};
  for (std::int64_t i = 0; i < std::min(std::ssize(kept), budget.most / key_block); ++i) {
    if (i * key_block >= budget.least && budget.mass < 1 && met >= budget.mass * count) break;
    const auto block = static_cast<std::size_t>(s.order[static_cast<std::size_t>(i)]);
    chosen.blocks.push_back(kept[block]);
    met += s.shares[block];
  }
  std::ranges::sort(chosen.blocks);
  chosen.mass = budget.measure ? measured_mass(samples, chosen.blocks, rows, end, s) : met / count;
  chosen.mass = std::min(1.0, chosen.mass);
  return chosen;
}

void extend_means(const RowSpan& rows, std::int64_t end, std::vector<float>& means) {
  const std::int64_t d = rows.dim();
  const std::int64_t first = std::ssize(means) / d;
  const std::int64_t blocks = std::max<std::int64_t>(0, end / key_block - first);
  std::vector<float> more(static_cast<std::size_t>(blocks * d));
  constexpr std::int64_t at_once = 32;
  parallel_for(blocks, at_once, [&](std::int64_t from, std::int64_t to) {
    std::vector<float> key(static_cast<std::size_t>(d));
    for (std::int64_t block = from; block < to; ++block) {
      check_stop();
      float* mean = more.data() + block * d;
      for (std::int64_t x = 0; x < key_block; ++x) {
        rows.key((first + block) * key_block + x, key.data());
        add_scaled(mean, 1.0F / key_block, key.data(), d);
      }
    }
  });
  means.insert(means.end(), more.begin(), more.end());
}

}  // namespace topkv
