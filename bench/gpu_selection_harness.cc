#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>

#include "bench/gpu_random.h"
#include "bench/gpu_selection.h"

namespace bench {

std::unique_ptr<Array<__nv_bfloat16>> normal(std::int64_t count, unsigned seed) {
  auto array = std::make_unique<Array<__nv_bfloat16>>(count);
  bench::fill_normal(array->data(), count, seed);
  TOPKV_CUDA(cudaDeviceSynchronize());
  return array;
}

double median_seconds(const Stream& stream, std::int64_t copies, std::int64_t calls,
                      const std::function<void(std::int64_t)>& work) {
  constexpr int runs = 9;
  std::vector<double> seconds;
  for (int run = 0; run <= runs; ++run) {
    Event start(Event::Timing::on);
    Event end(Event::Timing::on);
    start.record(stream);
    for (std::int64_t i = 0; i < calls; ++i) work(i % copies);
    end.record(stream);
    end.synchronize();
    if (run > 0)  // the first warms up
      seconds.push_back(end.seconds_since(start) / static_cast<double>(calls));
  }
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[runs / 2];
}

double median_seconds(const Layers& layers, const std::function<void(std::int64_t)>& work) {
  const std::int64_t times = layers.shape.elements() > (1 << 28) ? 3 : 10;
  return median_seconds(layers.stream, layers.shape.copies, times * layers.shape.copies, work);
}

void check_attention(const Layers& layers, std::int64_t copy, const ChosenEntries& chosen,
                     const Array<int>& entries, const Array<int>& counts, std::int64_t page,
                     std::int64_t skip) {
  const Shape& shape = layers.shape;
  const std::int64_t d = shape.head_dim;
  for (const std::int64_t head_step : {std::int64_t{0}, shape.head_steps() - 1}) {
    const HostRows rows(layers, copy, head_step);
    const int count = counts.read(head_step, 1)[0];
    const std::vector<int> listed = entries.read(skip + head_step * chosen.capacity, count);
    for (std::int64_t g = 0; g < shape.group; ++g) {
      const std::int64_t head = head_step * shape.group + g;
      const auto query = layers.queries->read(head * d, d);
      std::vector<double> want(static_cast<std::size_t>(d), 0.0);
      double sum = 0;
      for (const int entry : listed) {
        for (std::int64_t r = entry * page; r < std::min((entry + 1) * page, shape.rows); ++r) {
          double score = 0;
          for (std::int64_t j = 0; j < d; ++j)
            score += double{__bfloat162float(query[j])} * rows.keys[r * d + j];
          const double weight = std::exp(score * shape.scale());
          sum += weight;
          for (std::int64_t j = 0; j < d; ++j) want[j] += weight * rows.values[r * d + j];
        }
      }
      const std::vector<float> got = layers.out.read(head * d, d);
      for (std::int64_t j = 0; j < d; ++j) {
        if (!(std::abs(got[j] - want[j] / sum) <= 4 * 0x1p-8))
          throw std::runtime_error(
              fmt::format("head {}, element {}: {} for {}", head, j, got[j], want[j] / sum));
      }
    }
  }
}

Dense time_dense(const Layers& layers, CudnnAttention* cudnn) {
  const Shape& shape = layers.shape;
  Dense dense{0, std::numeric_limits<double>::infinity()};
  dense.ours = median_seconds(layers, [&](std::int64_t copy) {
    topkv::gpu::attend(
        {.kv_heads = shape.head_steps(), .head_dim = shape.head_dim, .scale = shape.scale()},
        {.data = layers.queries->data(),
         .tokens = 1,
         .heads = shape.heads(),
         .head_dim = shape.head_dim},
        layers.rows(copy), {}, layers.partial(), Into::overwrite, layers.stream);
  });
  const topkv::gpu::CudnnShape wanted{.head_dim = shape.head_dim,
                                      .q_heads = shape.heads(),
                                      .kv_heads = shape.head_steps(),
                                      .tokens = 1,
                                      .rows = shape.rows,
                                      .head_stride = shape.rows * shape.head_dim,
                                      .causal = false,
                                      .scale = shape.scale()};
  std::string why = "not loaded";
  if (cudnn == nullptr || !cudnn->supports(wanted, &why)) {
    fmt::print("  without cuDNN: {}\n", why);
    return dense;
  }
  const Array<__nv_bfloat16> out(shape.heads() * shape.head_dim);
  const Array<float> lse(shape.heads());
  const Array<std::byte> workspace(cudnn->workspace_bytes(wanted));
  dense.cudnn = median_seconds(layers, [&](std::int64_t copy) {
    const DeviceRows rows = layers.rows(copy);
    cudnn->attend(wanted, layers.queries->data(), rows.keys, rows.values, {out.data(), lse.data()},
                  workspace.data(), layers.stream);
  });
  return dense;
}

void report(const Layers& layers, const Dense& dense, double bandwidth, const Method& method) {
  const auto all = [&](std::int64_t copy) {
    for (const auto& [name, stage] : method.stages) stage(copy);
  };
  const double seconds = median_seconds(layers, all);
  std::string parts;
  for (const auto& [name, stage] : method.stages) {
    all(0);  // what the stage reads
    parts += fmt::format(" {} {:.1f}", name, 1e6 * median_seconds(layers, stage));
  }
  const double dense_bytes = 4.0 * static_cast<double>(layers.shape.elements());
  fmt::print(
      "  {:<34} {:>8.1f} us  {:>5.2f}x dense, of {:.2f}x by bytes; paper: {}; {:.0f} % of "
      "the memory's bandwidth; alone:{}\n",
      method.name, 1e6 * seconds, dense.best() / seconds, dense_bytes / method.bytes, method.paper,
      100 * method.bytes / seconds / bandwidth, parts);
}

void print_dense(const Layers& layers, const Dense& dense, double bandwidth) {
  const double bytes = 4.0 * static_cast<double>(layers.shape.elements());
  const auto share = [&](double seconds) { return 100 * bytes / seconds / bandwidth; };
  fmt::print(
      "{}\n  {:<34} {:>8.1f} us ({:.0f} % of the memory's bandwidth), topkv {:.1f} us "
      "({:.0f} %)\n",
      layers.shape.name(), "dense: cuDNN", 1e6 * dense.cudnn, share(dense.cudnn), 1e6 * dense.ours,
      share(dense.ours));
}

RandomClusters::RandomClusters(const Shape& shape)
    : count(shape.rows / 20),
      rows(shape.rows),
      device_begin(shape.head_steps() * (count + 1)),
      device_members(shape.head_steps() * rows) {
  std::mt19937_64 random(1);
  for (std::int64_t m = 0; m < shape.head_steps(); ++m) {
    std::vector<int> cluster(static_cast<std::size_t>(rows));
    std::vector<int> first(static_cast<std::size_t>(count + 1), 0);
    for (int& c : cluster) {
      c = static_cast<int>(random() % static_cast<std::uint64_t>(count));
      ++first[static_cast<std::size_t>(c + 1)];
    }
    std::partial_sum(first.begin(), first.end(), first.begin());
    begin.insert(begin.end(), first.begin(), first.end());
    const std::size_t base = members.size();
    members.resize(base + cluster.size());
    for (std::size_t row = 0; row < cluster.size(); ++row)
      members[base + static_cast<std::size_t>(first[static_cast<std::size_t>(cluster[row])]++)] =
          static_cast<int>(row);
  }
  TOPKV_CUDA(
      cudaMemcpy(device_begin.data(), begin.data(), begin.size() * 4, cudaMemcpyHostToDevice));
  TOPKV_CUDA(cudaMemcpy(device_members.data(), members.data(), members.size() * 4,
                        cudaMemcpyHostToDevice));
}

topkv::gpu::DeviceClusters RandomClusters::device() const {
  return {device_begin.data(), device_members.data(), count, rows};
}

double find_threshold(const Shape& shape, double sparsity, const Array<int>& counts,
                      const std::function<void(float)>& choose, float& log_threshold) {
  const double wanted =
      (100 - sparsity) / 100 * static_cast<double>(shape.head_steps() * shape.rows);
  float low = -60;
  float high = 0;
  double rows = 0;
  for (int round = 0; round < 24; ++round) {
    log_threshold = (low + high) / 2;
    choose(log_threshold);
    const std::vector<int> listed = counts.read();
    rows = std::accumulate(listed.begin(), listed.end(), 0.0);
    (rows > wanted ? low : high) = log_threshold;
  }
  return rows;
}

}  // namespace bench
