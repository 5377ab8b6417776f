#include "index/tails/sample_tail.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "index/common/in_place_keys.h"
#include "index/common/spec.h"
#include "index/common/tail_factory.h"
#include "index/common/tail_loop.h"
#include "src/core/format/archive.h"
#include "src/core/math/dot.h"
#include "src/core/math/random_draws.h"
#include "src/core/math/vector_math.h"

namespace topkv {
namespace {

std::uint64_t seed_of(const float* query, std::int64_t dim) {
  std::uint64_t seed = 0;
  for (std::int64_t i = 0; i < dim; ++i)
    seed = RandomDraws(seed ^ std::bit_cast<std::uint32_t>(query[i])).next();
  return seed;
}

/// Sums over rows, their weights relative to exp(high).
struct Sampled {
  explicit Sampled(std::int64_t dim) : values(static_cast<std::size_t>(dim)), value_means(values) {}
  double weights = 0, squares = 0;  // of weights and their squares
  double value_squares = 0;         // of squared weights times |value|²
  std::vector<double> values;       // of weights times values
  std::vector<double> value_means;  // of squared weights times values

  void add(double weight, const std::vector<float>& value) {
    weights += weight;
    squares += weight * weight;
    double size = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] += weight * value[i];
      value_means[i] += weight * weight * value[i];
      size += static_cast<double>(value[i]) * value[i];
    }
    value_squares += weight * weight * size;
  }
};

double square_of(const std::vector<double>& x) {
  double sum = 0;
  for (const double of : x) sum += of * of;
  return sum;
}

}  // namespace

/// Of one query.
struct SampleTail::Workspace {
  std::vector<std::int64_t> before;  // per taken row: how many before it are not taken
  std::vector<std::int64_t> drawn, known;
  std::vector<float> scores, value;
};

std::string SampleParams::text() const {
  return fmt::format("sample:rows={},eps={},delta={}", rows, epsilon, delta);
}

void SampleTail::attend_one(const float* query, PositionRange allowed,
                            std::span<const std::int64_t> taken, float scale, float softcap,
                            Workspace& workspace, const TailParts& out) const {
  auto& before = workspace.before;
  auto& drawn = workspace.drawn;
  auto& known = workspace.known;
  auto& scores = workspace.scores;
  auto& value = workspace.value;
  const std::int64_t dim = rows_.dim();
  before.clear();
  known.clear();
  for (const std::int64_t row : taken) {
    if (!allowed.contains(row)) continue;
    before.push_back(row - allowed.begin - std::ssize(before));
    known.push_back(row);
  }
  const std::int64_t rest = allowed.size() - std::ssize(before);
  if (rest == 0) return;
  const auto rest_row = [&](std::int64_t number) {
    return allowed.begin + number +
           (std::upper_bound(before.begin(), before.end(), number) - before.begin());
  };
  const auto attend_all = [&] {
    drawn.clear();
    for (std::int64_t i = 0; i < rest; ++i) drawn.push_back(rest_row(i));
    attend_rows(query, rows_, drawn, scale, out.exact, softcap);
  };
  if (params_.rows >= rest) return attend_all();

  value.resize(static_cast<std::size_t>(dim));
  Sampled sums(dim);
  double high = empty_lse;
  // Scores rows and adds them up, weights relative to the highest score of all so far.
  const auto add_up = [&](std::span<const std::int64_t> rows, Sampled& to) {
    scores.resize(rows.size());
    dot_gather(query, 1, rows_.keys, rows.data(), std::ssize(rows), scores.data(),
               std::ssize(rows));
    scale_by(scores.data(), std::ssize(rows), scale);
    if (softcap > 0) soft_cap(scores.data(), std::ssize(rows), softcap);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      widen_key(rows_.values, rows[i], value.data());
      to.add(std::exp(scores[i] - high), value);
    }
  };
  const auto highest_of = [&](std::span<const std::int64_t> rows) {
    scores.resize(rows.size());
    dot_gather(query, 1, rows_.keys, rows.data(), std::ssize(rows), scores.data(),
               std::ssize(rows));
    double most = scale * static_cast<double>(max_of(scores.data(), std::ssize(rows)));
    return softcap > 0 ? softcap * std::tanh(most / softcap) : most;
  };
  RandomDraws draws(seed_of(query, dim));
  drawn.clear();
  const auto draw = [&](std::int64_t count) {
    while (std::ssize(drawn) < count) drawn.push_back(rest_row(draws.below(rest)));
  };
  draw(params_.rows);
  if (params_.epsilon > 0) {
    high = highest_of(drawn);
    if (!known.empty()) high = std::max(high, highest_of(known));
    Sampled selected(dim);
    add_up(known, selected);
    Sampled first(dim);
    add_up(drawn, first);
    const double n = static_cast<double>(params_.rows);
    const double r = static_cast<double>(rest);
    const double z = normal_bound(params_.delta / 200.0);
    const double epsilon = params_.epsilon / 200.0;
    const auto budget = [&](double variance, double whole) {
      return whole > 0 ? std::pow(z * r / (epsilon * whole), 2) * variance : r;
    };
    const double mean = first.weights / n;
    const double weights = budget(std::max(first.squares / n - mean * mean, 0.0) * n / (n - 1),
                                  selected.weights + r * mean);
    std::vector<double> whole = selected.values;
    for (std::size_t i = 0; i < whole.size(); ++i) whole[i] += r / n * first.values[i];
    const double values = budget(
        std::max(first.value_squares / n - square_of(first.values) / (n * n), 0.0) * n / (n - 1),
        std::sqrt(square_of(whole)));
    const double wanted = std::max(weights, values);
    if (!(wanted < r)) return attend_all();
    draw(static_cast<std::int64_t>(std::ceil(wanted)));
  }
  high = highest_of(drawn);
  add_up(drawn, sums);
  const auto n = static_cast<double>(std::ssize(drawn));
  out.estimate.lse[0] =
      static_cast<float>(high + std::log(sums.weights / n * static_cast<double>(rest)));
  double apart = sums.value_squares;  // Σ w² |v - out|²
  for (std::int64_t i = 0; i < dim; ++i) {
    const double mean = sums.values[static_cast<std::size_t>(i)] / sums.weights;
    out.estimate.out[i] = static_cast<float>(mean);
    apart += mean * (mean * sums.squares - 2 * sums.value_means[static_cast<std::size_t>(i)]);
  }
  out.noise[0].values = static_cast<float>(std::max(apart, 0.0) / (sums.weights * sums.weights));
}

std::int64_t SampleTail::bytes_read(std::int64_t heads) const {
  if (rows_.count() == 0) return 0;
  return heads * std::min(params_.rows, rows_.count()) *
         (vector_bytes(rows_.keys.dtype, rows_.keys.dim) +
          vector_bytes(rows_.values.dtype, rows_.values.dim));
}

void SampleTail::attend(const QueryBlock& queries,
                        std::span<const std::span<const std::int64_t>> taken,
                        std::span<const float> /*ceilings*/, float scale, float softcap,
                        const TailParts& out) const {
  attend_each<Workspace>(
      queries, rows_.count(), out,
      [&](std::int64_t q, PositionRange allowed, Workspace& workspace, const TailParts& parts) {
        attend_one(queries.query(q), allowed, taken[static_cast<std::size_t>(q)], scale, softcap,
                   workspace, parts);
      });
}

std::shared_ptr<const IndexFactory> sample_factory(std::string_view spec,
                                                   std::string_view options) {
  class Sample final : public TailFactory {
   public:
    explicit Sample(const SampleParams& params) : params_(params) {}
    std::string text() const override { return params_.text(); }
    std::unique_ptr<RowTail> make_tail(const KeyIndex& /*index*/, const RowsView& rows,
                                       const Accelerator& /*accelerator*/,
                                       const std::stop_token& /*stop*/) const override {
      return std::make_unique<SampleTail>(params_, rows);
    }
    std::unique_ptr<RowTail> transfer_tail(RowTail* /*tail*/, const KeyIndex& /*index*/,
                                           const RowsView& rows, Archive& archive) const override {
      if (!archive.reading()) return nullptr;
      return std::make_unique<SampleTail>(params_, rows);
    }

   private:
    SampleParams params_;
  };
  SampleParams params;
  parse_options(spec, options,
                {{"rows", &params.rows, 2, 1 << 20},
                 {"eps", &params.epsilon, 0, 99},
                 {"delta", &params.delta, 1, 99}});
  return std::make_shared<Sample>(params);
}

}  // namespace topkv
