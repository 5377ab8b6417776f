// Search keys: the index alone, without a model.
//
// Makes 100,000 random keys, adds them to an index named by a spec string and prints the ten keys
// with the largest inner product with a query.
//
//   search_keys [spec]        e.g. search_keys hnsw:M=16,ef=128
#include <cstdio>
#include <random>
#include <vector>

#include "topkv/error.h"
#include "topkv/key_index.h"

int main(int argc, char** argv) try {
  const std::int64_t count = 100'000;
  const std::int64_t dim = 64;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> keys(static_cast<std::size_t>(count * dim));  // [count, dim]
  for (float& x : keys) x = normal(random);
  std::vector<float> query(static_cast<std::size_t>(dim));
  for (float& x : query) x = normal(random);

  const auto index = topkv::make_index(argc > 1 ? argv[1] : "exact");
  index->add({.data = reinterpret_cast<const std::byte*>(keys.data()),
              .dtype = topkv::DType::f32,
              .count = count,
              .dim = dim,
              .stride_bytes = dim * static_cast<std::int64_t>(sizeof(float))});
  index->build();

  const topkv::PositionRange everywhere{0, count};
  topkv::SearchResult result;
  index->search({query.data(), 1, dim, {&everywhere, 1}}, 10, result);
  std::printf("%s: %lld keys, %lld bytes beside them\n", index->spec().c_str(),
              static_cast<long long>(index->size()), static_cast<long long>(index->memory()));
  for (std::size_t i = 0; i < result.positions(0).size(); ++i) {
    std::printf("  key %6lld  q·k = %.4f\n", static_cast<long long>(result.positions(0)[i]),
                static_cast<double>(result.scores(0)[i]));
  }
} catch (const topkv::Error& error) {
  std::fprintf(stderr, "search_keys: %s\n", error.what());
  return 1;
}
