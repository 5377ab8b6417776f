// Exact search against the speed at which memory can be read.
//
// Checks results against plain loops, then times one decode step's search (a few queries over a
// million keys) and one of a whole question, and prints the bytes of K read per second as a share
// of the streaming read bandwidth measured in the same run. The
// bandwidth is measured again before every line, for machines that are shared.
//
//   exact_search_bench [keys]          default 1048576
#include <fmt/format.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "bench/keys.h"
#include "bench/machine.h"
#include "src/core/threads.h"
#include "topkv/key_index.h"

namespace {

using topkv::PositionRange;

/// The k-th best score by plain loops, and how many of the found positions do not reach it.
int misses(const bench::Data& data, std::int64_t query, std::span<const std::int64_t> found) {
  std::vector<float> key(static_cast<std::size_t>(data.dim));
  std::vector<double> scores;
  for (std::int64_t i = 0; i < data.count; ++i) {
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
  int count = 0;
  for (const std::int64_t position : found) {
    count += scores[static_cast<std::size_t>(position)] < *kth - 1e-3 ? 1 : 0;
  }
  return count;
}

void measure(std::int64_t count, std::int64_t dim) {
  const bench::Data data = bench::make_data(count, dim, 120);
  const auto index = topkv::make_index("exact");
  index->add(data.keys());
  index->build();
  const std::vector<PositionRange> all(120, PositionRange{0, count});
  topkv::SearchResult result;

  fmt::print("dim {}, {} keys of bf16\n", dim, count);

  for (const std::int64_t queries : {1, 3, 6, 120}) {
    for (const std::int64_t k : {64, 1024}) {
      const topkv::QueryBlock block{data.queries.data(), queries, dim,
                                    std::span(all).first(static_cast<std::size_t>(queries))};
      index->search(block, k, result);
      if (misses(data, queries - 1, result.positions(queries - 1)) != 0) {
        fmt::print(stderr, "exact search missed keys: not timed\n");
        std::exit(1);
      }
      const double bandwidth = bench::read_bandwidth();
      const double time = bench::median_seconds(9, [&] { index->search(block, k, result); });
      const double key_bytes = static_cast<double>(count * dim * 2);
      fmt::print(
          "  {:3} queries, k {:4}: {:8.3f} ms, {:6.1f} GB/s of K = {:3.0f} % of streaming ({:.0f} "
          "GB/s), "
          "{:7.1f} GFLOP/s\n",
          queries, k, time * 1e3, key_bytes / time * 1e-9, 100 * key_bytes / time / bandwidth,
          bandwidth * 1e-9, 2 * static_cast<double>(count * dim * queries) / time * 1e-9);
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
  measure(count, 64);
  measure(count, 128);
}
