// How concentrated the attention over generated rows is.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "src/cli/bench/bench_rows.h"
#include "topkv/attention.h"

namespace topkv::cli {
namespace {

constexpr std::int64_t measured_queries = 8;

// Queries of KV head 0, [measured_queries, head_dim].
std::vector<float> some_queries(const BenchLayer& layer, const AttentionShape& shape,
                                std::int64_t tokens) {
  const auto row = static_cast<std::size_t>(shape.head_dim);
  std::vector<float> step(static_cast<std::size_t>(shape.q_heads) * row);
  std::vector<float> queries;
  for (std::int64_t number = 0; number < measured_queries; ++number) {
    layer.queries(-1 - number, tokens, step.data());  // none that a step uses
    queries.insert(queries.end(), step.begin(), step.begin() + static_cast<std::ptrdiff_t>(row));
  }
  return queries;
}

}  // namespace

std::vector<AttentionMass> attention_mass(const Context& context,
                                          const std::vector<BenchLayer>& layers,
                                          const std::vector<std::int64_t>& ks, std::int64_t sinks,
                                          std::int64_t window) {
  const AttentionShape& shape = context.shape();
  const PositionRange found{sinks, context.tokens() - window};
  std::vector<AttentionMass> masses;
  if (found.size() == 0 || ks.empty()) return masses;
  std::vector<std::int64_t> positions(static_cast<std::size_t>(found.size()));
  std::iota(positions.begin(), positions.end(), found.begin);
  const std::vector<PositionRange> allowed(measured_queries, found);
  const std::int64_t most = *std::max_element(ks.begin(), ks.end());
  std::set<LayerKind> seen;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const LayerKind kind = kind_of_layer(layer);
    if (!shape.attends_all(layer) || !seen.insert(kind).second) continue;
    const std::vector<float> queries =
        some_queries(layers[static_cast<std::size_t>(layer)], shape, context.tokens());
    Partial all(measured_queries, shape.head_dim);
    attend_rows(queries.data(), context.rows(layer, 0), positions, shape.softmax_scale(),
                all.view());
    SearchResult best;
    context.index("exact", layer, 0)
        .search({queries.data(), measured_queries, shape.head_dim, allowed}, most, best);
    for (const std::int64_t k : ks) {
      double share = 0;
      for (std::int64_t q = 0; q < measured_queries; ++q) {
        const std::span<const float> scores = best.scores(q);
        const double lse = all.lse()[static_cast<std::size_t>(q)];
        for (std::size_t i = 0; i < std::min(scores.size(), static_cast<std::size_t>(k)); ++i) {
          share += std::exp(static_cast<double>(scores[i]) * shape.softmax_scale() - lse);
        }
      }
      masses.push_back({kind, layer, k, share / measured_queries});
    }
  }
  return masses;
}

}  // namespace topkv::cli
