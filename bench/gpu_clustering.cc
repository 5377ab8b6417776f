// Keys of a head clustered by a GPU, for squeezed: an index's centroid for each 20 keys, 10 rounds;
// beside FAISS on the host's threads, a head on each, at a length at which that ends. What both
// find is compared before they are timed.
//
// usage: gpu_clustering_bench
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "index/lists/faiss_clustering.h"
#include "src/device/compute_device.h"

namespace {

constexpr std::int64_t keys_per_cluster = 20;
constexpr std::int64_t passes = 11;  // over all centroids: ten rounds, and what comes of them

/// About directions, of which each has some 100 vectors.
std::vector<float> vectors_of(std::int64_t count, std::int64_t dim) {
  const std::int64_t groups = count / 100;
  std::vector<float> all(static_cast<std::size_t>(count * dim));
  std::vector<float> centres(static_cast<std::size_t>(groups * dim));
  std::mt19937_64 random(1);
  const auto uniform = [](std::mt19937_64& from) {
    return static_cast<float>(static_cast<std::int64_t>(from()) * 0x1p-63);
  };
  for (float& x : centres) x = uniform(random);
  std::vector<std::thread> threads;
  const std::int64_t parts = std::max(1U, std::thread::hardware_concurrency());
  for (std::int64_t part = 0; part < parts; ++part) {
    threads.emplace_back([&, part] {
      std::mt19937_64 mine(static_cast<std::uint64_t>(part + 2));
      for (std::int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
        const auto group = static_cast<std::int64_t>(mine() % static_cast<std::uint64_t>(groups));
        for (std::int64_t j = 0; j < dim; ++j) {
          all[static_cast<std::size_t>(i * dim + j)] =
              centres[static_cast<std::size_t>(group * dim + j)] + uniform(mine);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

/// The mean cosine with the directions of clusters' means.
double objective(const std::vector<float>& vectors, std::int64_t dim,
                 const topkv::Clustering& found) {
  std::vector<double> sums(static_cast<std::size_t>(found.clusters * dim), 0.0);
  const std::int64_t count = std::ssize(found.cluster);
  for (std::int64_t i = 0; i < count; ++i) {
    const float* x = vectors.data() + i * dim;
    double square = 0;
    for (std::int64_t j = 0; j < dim; ++j) square += double{x[j]} * x[j];
    double* sum = sums.data() + found.cluster[static_cast<std::size_t>(i)] * dim;
    for (std::int64_t j = 0; j < dim; ++j) sum[j] += x[j] / std::sqrt(square);
  }
  double total = 0;
  for (std::int64_t c = 0; c < found.clusters; ++c) {
    double square = 0;
    for (std::int64_t j = 0; j < dim; ++j)
      square +=
          sums[static_cast<std::size_t>(c * dim + j)] * sums[static_cast<std::size_t>(c * dim + j)];
    total += std::sqrt(square);
  }
  return total / static_cast<double>(count);
}

template <class Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double products(std::int64_t count, std::int64_t dim) {
  return 2.0 * static_cast<double>(count) * static_cast<double>(count / keys_per_cluster) *
         static_cast<double>(dim * passes);
}

void measure(topkv::ComputeDevice& device, std::int64_t count, std::int64_t dim,
             std::int64_t host_count) {
  const auto clusterer = device.clusterer(dim);
  const std::int64_t threads = std::max(1U, std::thread::hardware_concurrency());
  // FAISS, at the length that it can.
  const std::vector<float> few = vectors_of(host_count, dim);
  topkv::Clustering by_faiss;
  const double alone = seconds_of(
      [&] { by_faiss = topkv::cluster_directions(few, dim, host_count / keys_per_cluster, {}); });
  const double together = seconds_of([&] {
    std::vector<std::thread> all;
    for (std::int64_t thread = 0; thread < threads; ++thread) {
      all.emplace_back(
          [&] { topkv::cluster_directions(few, dim, host_count / keys_per_cluster, {}); });
    }
    for (std::thread& thread : all) thread.join();
  });
  const double want = objective(few, dim, by_faiss);
  const double got =
      objective(few, dim, clusterer->cluster(few, host_count / keys_per_cluster, {}));
  if (!(got > 0.995 * want))
    throw std::runtime_error(fmt::format("mean cosine {} where FAISS has {}", got, want));
  const double rate = products(host_count, dim) / alone;
  const double host_rate = static_cast<double>(threads) * products(host_count, dim) / together;
  fmt::print(
      "{} keys of {}: mean cosine {:.5f}, FAISS {:.5f}, at {:.3f} TFLOP/s on a thread alone, "
      "{:.3f} "
      "on {} threads, a head each\n",
      host_count, dim, got, want, rate / 1e12, host_rate / 1e12, threads);
  const std::vector<float> many = vectors_of(count, dim);
  topkv::Clustering found;
  double best = 0;
  for (int run = 0; run < 3; ++run) {
    const double seconds =
        seconds_of([&] { found = clusterer->cluster(many, count / keys_per_cluster, {}); });
    if (run == 0 || seconds < best) best = seconds;
  }
  fmt::print(
      "{} keys of {} into {}: {:.3f} s a head, {:.0f} TFLOP/s, mean cosine {:.5f}; FAISS at "
      "that rate: {:.0f} s a head\n",
      count, dim, found.clusters, best, products(count, dim) / best / 1e12,
      objective(many, dim, found), products(count, dim) / host_rate);
}

}  // namespace

int main() {
  if (topkv::gpu_count() == 0) {
    fmt::print("skipped: no GPU: {}\n", topkv::gpu_reason());
    return 0;
  }
  try {
    const auto device = topkv::open_gpu(0, 0);
    fmt::print("{}\n", device->name());
    measure(*device, 1 << 20, 64, 1 << 15);
    measure(*device, 1 << 18, 128, 1 << 15);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
