#include "gpu/build/clusterer.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "gpu/build/clustering.h"
#include "gpu/device.h"
#include "gpu/long_work.h"
#include "src/core/io/faults.h"
#include "src/device/pieces.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr int rounds = 10;  // as on the host
/// Products of elements in a step: an H100 takes 2 ms for so many, for which others wait.
constexpr std::int64_t step_products = std::int64_t{1} << 38;

/// Pieces of device memory, one behind the other.
struct ClusterLayout {
  std::int64_t sent, vectors, nearest, centroids, sums, sizes, offsets, numbers, total;

  ClusterLayout(std::int64_t count, std::int64_t clusters, std::int64_t width) {
    Pieces pieces;
    sent = pieces.place(LongWork::piece_bytes);
    vectors = pieces.place(count * width * std::int64_t{sizeof(__half)});
    nearest = pieces.place(count * std::int64_t{sizeof(int)});
    centroids = pieces.place(clusters * width * std::int64_t{sizeof(__half)});
    sums = pieces.place(clusters * width * std::int64_t{sizeof(std::int64_t)});
    sizes = pieces.place(clusters * std::int64_t{sizeof(int)});
    offsets = pieces.place(nearest_offsets(clusters) * std::int64_t{sizeof(float)});
    numbers = pieces.place(clusters * std::int64_t{sizeof(Split)});
    total = pieces.used();
  }
};

/// Numbers of different vectors, at random.
std::vector<int> some_of(std::int64_t count, std::int64_t wanted) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  std::mt19937_64 random(1234);
  for (std::int64_t i = 0; i < wanted; ++i) {
    const auto other =
        i + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count - i));
    std::swap(numbers[static_cast<std::size_t>(i)], numbers[static_cast<std::size_t>(other)]);
  }
  numbers.resize(static_cast<std::size_t>(wanted));
  return numbers;
}

/// What clusters without vectors become: halves of the largest, of these halves, and so on.
std::vector<Split> splits_of(const std::vector<int>& sizes) {
  std::vector<Split> splits;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) splits.push_back({static_cast<int>(i), 0});
  }
  if (splits.empty()) return splits;
  struct Part {
    int size, cluster;
    bool operator<(const Part& other) const {
      return size < other.size || (size == other.size && cluster > other.cluster);
    }
  };
  std::priority_queue<Part> parts;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1) parts.push({sizes[i], static_cast<int>(i)});
  }
  std::size_t made = 0;
  while (made < splits.size() && !parts.empty()) {
    const Part largest = parts.top();
    parts.pop();
    splits[made++].from = largest.cluster;
    for (const int half : {largest.size - largest.size / 2, largest.size / 2}) {
      if (half > 1) parts.push({half, largest.cluster});
    }
  }
  splits.resize(made);
  return splits;
}

/// One call at a time; the stream keeps its steps in order.
class CudaClusterer final : public Clusterer {
 public:
  CudaClusterer(CudaDevice& device, std::int64_t dim)
      : device_(device), work_(device), dim_(dim), width_(width_of(dim)) {
    const auto lock = device.lock();
    wave_ = nearest_wave(width_);
  }

  Clustering cluster(std::span<const float> vectors, std::int64_t clusters,
                     const std::stop_token& stop) override {
    const std::lock_guard one(mutex_);
    const std::int64_t count = std::ssize(vectors) / dim_;
    const ClusterLayout layout(count, clusters, width_);
    if (memory_.bytes() < layout.total) {
      memory_ = {};
      memory_ = device_.allocate(layout.total, "clustering");
    }
    send(layout, vectors, count, stop);
    begin(layout, count, clusters);
    for (int round = 0; round < rounds; ++round) {
      assign(layout, count, clusters, true, stop);
      update(layout, clusters);
    }
    assign(layout, count, clusters, false, stop);
    std::vector<std::int32_t> nearest(static_cast<std::size_t>(count));
    copy_out(layout.nearest, nearest);
    return without_empty(nearest, clusters);
  }

 private:
  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }
  template <class T>
  void copy_in(const std::vector<T>& from, std::int64_t to) const {
    work_.copy_in(from.data(), std::ssize(from) * std::int64_t{sizeof(T)}, memory_.data() + to);
  }
  template <class T>
  void copy_out(std::int64_t from, std::vector<T>& to) {
    work_.copy_out(memory_.data() + from, std::ssize(to) * std::int64_t{sizeof(T)}, to.data());
  }

  void send(const ClusterLayout& layout, std::span<const float> vectors, std::int64_t count,
            const std::stop_token& stop) {
    const std::int64_t bytes = dim_ * std::int64_t{sizeof(float)};
    const std::int64_t most = LongWork::piece_bytes / bytes;
    for (std::int64_t first = 0; first < count; first += most) {
      check(stop);
      const std::int64_t some = std::min(most, count - first);
      work_.give([&] {
        device_.copy_in(vectors.data() + first * dim_, some * bytes, memory_.data() + layout.sent);
        normalise_vectors(at<float>(layout.sent), some, dim_,
                          at<__half>(layout.vectors) + first * width_, device_.compute_stream());
      });
    }
  }

  /// Centroids are vectors at random.
  void begin(const ClusterLayout& layout, std::int64_t count, std::int64_t clusters) {
    const std::vector<int> numbers = some_of(count, clusters);
    std::vector<float> offsets(static_cast<std::size_t>(nearest_offsets(clusters)),
                               -std::numeric_limits<float>::infinity());
    std::fill_n(offsets.begin(), clusters, 0.0F);
    copy_in(numbers, layout.numbers);
    copy_in(offsets, layout.offsets);
    work_.give([&] {
      pick_centroids(at<__half>(layout.vectors), at<int>(layout.numbers), clusters, width_,
                     at<__half>(layout.centroids), device_.compute_stream());
    });
  }

  /// Every vector to the nearest centroid; sums: whether clusters' sums are wanted as well.
  void assign(const ClusterLayout& layout, std::int64_t count, std::int64_t clusters, bool sums,
              const std::stop_token& stop) {
    if (sums) {
      const auto clear = [&](std::int64_t offset, std::int64_t bytes) {
        TOPKV_CUDA(cudaMemsetAsync(memory_.data() + offset, 0, static_cast<std::size_t>(bytes),
                                   device_.compute_stream()));
      };
      work_.give([&] {
        clear(layout.sums, clusters * width_ * std::int64_t{sizeof(std::int64_t)});
        clear(layout.sizes, clusters * std::int64_t{sizeof(int)});
      });
    }
    // Whole waves: what is left of one would keep the device less busy in every step.
    const std::int64_t waves = step_products / (clusters * width_ * wave_);
    const std::int64_t most = wave_ * std::max<std::int64_t>(1, waves);
    for (std::int64_t first = 0; first < count; first += most) {
      reach_fault("clustering.step");
      check(stop);
      const cudaStream_t stream = device_.compute_stream();
      const std::int64_t some = std::min(most, count - first);
      const __half* vectors = at<__half>(layout.vectors) + first * width_;
      int* nearest = at<int>(layout.nearest) + first;
      work_.give([&] {
        find_nearest(vectors, some, at<__half>(layout.centroids), clusters, width_,
                     at<float>(layout.offsets), nearest, stream);
        if (!sums) return;
        add_to_clusters(vectors, nearest, some, width_, at<std::int64_t>(layout.sums),
                        at<int>(layout.sizes), stream);
      });
      work_.wait();
    }
  }

  void update(const ClusterLayout& layout, std::int64_t clusters) {
    std::vector<int> sizes(static_cast<std::size_t>(clusters));
    work_.give([&] {
      point_centroids(at<std::int64_t>(layout.sums), clusters, width_, at<__half>(layout.centroids),
                      device_.compute_stream());
    });
    copy_out(layout.sizes, sizes);
    const std::vector<Split> splits = splits_of(sizes);
    if (splits.empty()) return;
    copy_in(splits, layout.numbers);
    work_.give([&] {
      split_centroids(at<Split>(layout.numbers), std::ssize(splits), dim_,
                      at<__half>(layout.centroids), device_.compute_stream());
    });
  }

  static void check(const std::stop_token& stop) {
    if (stop.stop_requested()) throw Stopped("clustering on a device: stopped");
  }

  CudaDevice& device_;
  LongWork work_;
  const std::int64_t dim_;
  const std::int64_t width_;
  std::int64_t wave_ = 0;  // vectors that the device works on at the same time
  std::mutex mutex_;
  Buffer memory_;  // as large as any call wanted it
};

}  // namespace

std::unique_ptr<Clusterer> make_clusterer(CudaDevice& device, std::int64_t dim) {
  if (dim > most_clustered_dim) return nullptr;
  return std::make_unique<CudaClusterer>(device, dim);
}

}  // namespace topkv::gpu
