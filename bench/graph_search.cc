// hnswlib's graph over bf16 rows in place (index "hnsw") against stock hnswlib over float32 copies:
// the same keys, M and efc; one thread searching. Prints recall@64 and time per query for several
// ef, bytes held, and the ratio of times at equal recall.
//
// Every result is checked to hold distinct positions and exact scores before anything is timed.
//
//   graph_search_bench [keys [dim]]          default 131072 64
#include <faiss/Index.h>
#include <fmt/format.h>
#include <oneapi/tbb/global_control.h>

// The library's own copy of hnswlib's templates is compiled with other settings: give this one
// another name, so that neither is taken for the other.
#define hnswlib stock_hnswlib
#include <hnswlib/hnswlib.h>
#undef hnswlib

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "bench/keys.h"
#include "bench/machine.h"
#include "src/core/math/dot.h"
#include "src/core/threads/threads.h"
#include "topkv/key_index.h"

namespace {

using topkv::PositionRange;

constexpr std::int64_t k = 64;
constexpr std::int64_t query_count = 200;
constexpr std::int64_t m = 16;
constexpr std::int64_t efc = 100;

struct Point {
  std::int64_t ef = 0;
  double recall = 0;
  double microseconds = 0;
};

using Found = std::vector<std::vector<std::int64_t>>;  // [queries], best first

double recall(const Found& found, const Found& truth) {
  std::int64_t hits = 0;
  for (std::size_t q = 0; q < truth.size(); ++q) {
    const std::set<std::int64_t> expected(truth[q].begin(), truth[q].end());
    for (const std::int64_t position : found[q]) hits += expected.contains(position) ? 1 : 0;
  }
  return static_cast<double>(hits) / static_cast<double>(k * query_count);
}

/// Searches query by query with a topkv index; checks what it finds.
Found search(const topkv::KeyIndex& index, const bench::Data& data) {
  const PositionRange all{0, data.count};
  topkv::SearchResult result;
  Found found;
  for (std::int64_t q = 0; q < query_count; ++q) {
    const float* query = data.queries.data() + q * data.dim;
    index.search({query, 1, data.dim, {&all, 1}}, k, result);
    found.emplace_back(result.positions(0).begin(), result.positions(0).end());
    const std::set<std::int64_t> distinct(found.back().begin(), found.back().end());
    for (std::size_t i = 0; i < found.back().size(); ++i) {
      const float exact = topkv::dot(query, data.keys(), found.back()[i]);
      if (distinct.size() != found.back().size() ||
          std::abs(exact - result.scores(0)[i]) > 1e-4F * (1 + std::abs(exact))) {
        fmt::print(stderr, "{}: a result with duplicates or wrong scores; not timed\n",
                   index.spec());
        std::exit(1);
      }
    }
  }
  return found;
}

double microseconds_per_query(const std::function<void(std::int64_t)>& search_one) {
  return bench::median_seconds(5,
                               [&] {
                                 for (std::int64_t q = 0; q < query_count; ++q) search_one(q);
                               }) /
         static_cast<double>(query_count) * 1e6;
}

std::unique_ptr<topkv::KeyIndex> build(const bench::Data& data, const std::string& spec) {
  auto index = topkv::make_index(spec);
  index->add(data.keys());
  index->build();
  return index;
}

Point measure(const topkv::KeyIndex& index, const bench::Data& data, const Found& truth,
              std::int64_t ef) {
  const PositionRange all{0, data.count};
  topkv::SearchResult result;
  Point point{ef, recall(search(index, data), truth), 0};
  point.microseconds = microseconds_per_query([&](std::int64_t q) {
    index.search({data.queries.data() + q * data.dim, 1, data.dim, {&all, 1}}, k, result);
  });
  return point;
}

void print(const std::string& name, const std::vector<Point>& points) {
  fmt::print("{}\n", name);
  for (const Point& p : points) {
    fmt::print("  ef {:5}: recall@64 {:.4f}, {:8.1f} us/query\n", p.ef, p.recall, p.microseconds);
  }
}

/// The least time at which a recall was reached; negative when it was not.
double time_at(const std::vector<Point>& points, double wanted) {
  double least = -1;
  for (const Point& p : points) {
    if (p.recall >= wanted && (least < 0 || p.microseconds < least)) least = p.microseconds;
  }
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t count = argc > 1 ? std::atoll(argv[1]) : 131072;
  const std::int64_t dim = argc > 2 ? std::atoll(argv[2]) : 64;
  if (count < 4096 || dim < 1) {
    fmt::print(stderr, "usage: graph_search_bench [keys [dim]]; at least 4096 keys\n");
    return 2;
  }
#ifdef USE_AVX512
  const char* target = "AVX-512";
#elif defined(USE_AVX)
  const char* target = "AVX";
#else
  const char* target = "SSE";
#endif
  fmt::print("{} keys of dim {}, M {}, efc {}; FAISS {}.{}.{}; stock hnswlib uses {}\n", count, dim,
             m, efc, FAISS_VERSION_MAJOR, FAISS_VERSION_MINOR, FAISS_VERSION_PATCH, target);
  const bench::Data data = bench::make_data(count, dim, query_count);
  const Found truth = search(*build(data, "exact"), data);
  const std::int64_t efs[] = {96, 192, 384, 768, 1536};

  // Ours. The graph is built once per ef, since ef is part of the spec: the same keys and
  // parameters, by as many threads as there are.
  std::vector<Point> ours;
  for (const std::int64_t ef : efs) {
    std::unique_ptr<topkv::KeyIndex> index;
    const double seconds = bench::seconds_of(
        [&] { index = build(data, fmt::format("hnsw:M={},efc={},ef={}", m, efc, ef)); });
    if (ours.empty()) {
      fmt::print("hnsw: built in {:.1f} s by {} threads; holds {:.1f} MiB beside the rows\n",
                 seconds, topkv::thread_count(), static_cast<double>(index->memory()) / 1048576);
    }
    ours.push_back(measure(*index, data, truth, ef));
  }
  print("hnsw, bf16 rows in place", ours);
  const Point follows =
      measure(*build(data, fmt::format("hnsw:M={},efc={}", m, efc)), data, truth, 0);
  print("hnsw, ef following k", {follows});

  // Stock hnswlib.
  std::vector<float> copies(static_cast<std::size_t>(count * dim));
  for (std::int64_t i = 0; i < count; ++i) {
    topkv::to_float(data.keys().key(i), topkv::DType::bf16, dim, copies.data() + i * dim);
  }
  stock_hnswlib::InnerProductSpace space(static_cast<std::size_t>(dim));
  stock_hnswlib::HierarchicalNSW<float> stock(&space, static_cast<std::size_t>(count), m, efc);
  const double seconds = bench::seconds_of([&] {
    topkv::parallel_for(count, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        stock.addPoint(copies.data() + i * dim, static_cast<std::size_t>(i));
      }
    });
  });
  fmt::print("stock hnswlib: built in {:.1f} s; ground floor alone holds {:.1f} MiB\n", seconds,
             static_cast<double>(stock.size_data_per_element_ * stock.max_elements_) / 1048576);
  std::vector<Point> theirs;
  for (const std::int64_t ef : efs) {
    stock.setEf(static_cast<std::size_t>(ef));
    Found found(query_count);
    const double time = microseconds_per_query([&](std::int64_t q) {
      auto best = stock.searchKnn(data.queries.data() + q * dim, k);
      auto& positions = found[static_cast<std::size_t>(q)];
      positions.clear();
      for (; !best.empty(); best.pop()) {
        positions.push_back(static_cast<std::int64_t>(best.top().second));
      }
    });
    theirs.push_back({ef, recall(found, truth), time});
  }
  print("stock hnswlib, float32 copies, inner product space", theirs);

  for (const Point& p : theirs) {
    const double time = time_at(ours, p.recall);
    if (time > 0) {
      fmt::print("recall of at least {:.4f}: {:.1f} us against {:.1f} us, {:.2f} times as fast\n",
                 p.recall, time, p.microseconds, p.microseconds / time);
    }
  }
}
