// Exact search against the speed at which memory can be read.
//
// Checks results against plain loops, then times one decode step's search (a few queries over a
// million keys), one of a whole question, and one of all heads of a layer at once, and prints the
// bytes of K read per second as a share of the streaming read bandwidth measured in the same run.
// The bandwidth is measured again before every line, for machines that are shared.
//
//   exact_search_bench [keys]          default 1048576
#include <fmt/format.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "bench/keys.h"
#include "bench/machine.h"
#include "src/core/threads/threads.h"
#include "topkv/key_index.h"

namespace {

using topkv::PositionRange;

/// How many of the positions found among the first `count` keys do not reach the k-th best score by
/// plain loops.
int misses(const bench::Data& data, std::int64_t query, std::int64_t count,
           std::span<const std::int64_t> found) {
  std::vector<float> key(static_cast<std::size_t>(data.dim));
  std::vector<double> scores;
  for (std::int64_t i = 0; i < count; ++i) {
    topkv::to_float(data.keys().key(i), topkv::DType::bf16, data.dim, key.data());
    double total = 0;
    for (std::int64_t j = 0; j < data.dim; ++j) {
      total += double{data.queries[static_cast<std::size_t>(query * data.dim + j)]} *
               key[static_cast<std::size_t>(j)];
    }
    scores.push_back(total);
  }
  std::vector<double> best = scores;
  const auto kth = best.begin() + static_cast<std::ptrdiff_t>(found.size()) - 1;
  std::nth_element(best.begin(), kth, best.end(), std::greater<>());
  int missed = 0;
  for (const std::int64_t position : found) {
    missed += scores[static_cast<std::size_t>(position)] < *kth - 1e-3 ? 1 : 0;
  }
  return missed;
}

/// All heads of a layer at once, as a session's step searches them: threads share heads and keys.
void search_heads(std::span<const std::unique_ptr<topkv::KeyIndex>> heads,
                  const topkv::QueryBlock& block, std::int64_t k,
                  std::span<topkv::SearchResult> results) {
  topkv::parallel_for(static_cast<std::int64_t>(heads.size()), 1,
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t head = begin; head < end; ++head) {
                          const auto i = static_cast<std::size_t>(head);
                          heads[i]->search(block, k, results[i]);
                        }
                      });
}

void measure(std::int64_t count, std::int64_t dim, std::int64_t heads,
             std::span<const std::int64_t> query_counts, std::span<const std::int64_t> ks) {
  const std::int64_t most = std::ranges::max(query_counts);
  const bench::Data data = bench::make_data(count * heads, dim, most);
  std::vector<std::unique_ptr<topkv::KeyIndex>> indices;
  for (std::int64_t head = 0; head < heads; ++head) {
    indices.push_back(topkv::make_index("exact"));
    indices.back()->add(data.keys(head * count, count));
    indices.back()->build();
  }
  std::vector<topkv::SearchResult> results(static_cast<std::size_t>(heads));
  const std::vector<PositionRange> all(static_cast<std::size_t>(most), PositionRange{0, count});

  fmt::print("dim {}, {} keys of bf16, {} {} at once\n", dim, count, heads,
             heads == 1 ? "head" : "heads");
  for (const std::int64_t queries : query_counts) {
    for (const std::int64_t k : ks) {
      const topkv::QueryBlock block{data.queries.data(), queries, dim,
                                    std::span(all).first(static_cast<std::size_t>(queries))};
      search_heads(indices, block, k, results);
      if (misses(data, queries - 1, count, results[0].positions(queries - 1)) != 0) {
        fmt::print(stderr, "exact search missed keys: not timed\n");
        std::exit(1);
      }
      const double bandwidth = bench::read_bandwidth();
      const double time =
          bench::median_seconds(9, [&] { search_heads(indices, block, k, results); });
      const double key_bytes = static_cast<double>(heads * count * dim * 2);
      fmt::print(
          "  {:3} queries, k {:4}: {:8.3f} ms, {:6.1f} GB/s of K = {:3.0f} % of streaming ({:.0f} "
          "GB/s), {:7.1f} GFLOP/s\n",
          queries, k, time * 1e3, key_bytes / time * 1e-9, 100 * key_bytes / time / bandwidth,
          bandwidth * 1e-9, 2 * static_cast<double>(heads * count * dim * queries) / time * 1e-9);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t count = argc > 1 ? std::atoll(argv[1]) : std::int64_t{1} << 20;
  if (count < 1024) {
    fmt::print(stderr, "usage: exact_search_bench [keys]; at least 1024\n");
    return 2;
  }
  fmt::print("{} threads, best SIMD target {}\n", topkv::thread_count(),
             hwy::TargetName(hwy::SupportedTargets() & -hwy::SupportedTargets()));
  constexpr std::int64_t few[] = {1, 3, 7, 8, 120};
  constexpr std::int64_t ks[] = {64, 256, 1024};
  measure(count, 64, 1, few, ks);
  measure(count, 128, 1, few, ks);
  // One step of a layer with 4 KV heads of 7 query heads each.
  measure(std::max<std::int64_t>(count / 8, 1024), 128, 4, std::span(few).subspan(2, 1), ks);
}
