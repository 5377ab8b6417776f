// Selection and sparse attention of one layer for one token, beside dense attention in the same
// run: rows and what stands for them lie in the GPU's memory. The settings are those in which the
// papers of Quest, SparQ and Squeezed Attention time their kernels; their speed-ups are printed
// beside. Results are checked against float64 before they are timed.
//
// usage: gpu_selection_bench [quest|sparq|squeezed ...]
#include <cuda_bf16.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu_bandwidth.h"
#include "bench/gpu_cudnn.h"
#include "bench/gpu_random.h"
#include "gpu/attention.h"
#include "gpu/code_scan.h"
#include "gpu/cuda_codes.h"
#include "gpu/cuda_device.h"
#include "gpu/cudnn_attention.h"
#include "gpu/handles.h"
#include "gpu/selection.h"
#include "index/code_tail.h"
#include "index/codes_index.h"
#include "src/context/codes_on_device.h"
#include "src/device/compute_device.h"

namespace {

using topkv::gpu::ChosenEntries;
using topkv::gpu::CudnnAttention;
using topkv::gpu::DevicePartial;
using topkv::gpu::DeviceRows;
using topkv::gpu::Event;
using topkv::gpu::Into;
using topkv::gpu::MeetingQueries;
using topkv::gpu::Stream;

template <class T>
class Array {
 public:
  explicit Array(std::int64_t count) : count_(count) {
    TOPKV_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()));
    TOPKV_CUDA(cudaMemset(data_, 0, bytes()));
  }
  explicit Array(const std::vector<T>& values) : Array(std::ssize(values)) {
    TOPKV_CUDA(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() const { return data_; }
  std::vector<T> read(std::int64_t first, std::int64_t count) const {
    std::vector<T> out(static_cast<std::size_t>(count));
    TOPKV_CUDA(cudaDeviceSynchronize());
    TOPKV_CUDA(
        cudaMemcpy(out.data(), data_ + first, out.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }
  std::vector<T> read() const { return read(0, count_); }

 private:
  std::size_t bytes() const {
    return static_cast<std::size_t>(std::max<std::int64_t>(count_, 1)) * sizeof(T);
  }
  T* data_ = nullptr;
  std::int64_t count_;
};

std::unique_ptr<Array<__nv_bfloat16>> normal(std::int64_t count, unsigned seed) {
  auto array = std::make_unique<Array<__nv_bfloat16>>(count);
  bench::fill_normal(array->data(), count, seed);
  TOPKV_CUDA(cudaDeviceSynchronize());
  return array;
}

struct Shape {
  std::int64_t sequences, kv_heads, group, head_dim, rows;
  std::int64_t copies;  // of a layer, used in turn, so that no cache helps

  std::int64_t meetings() const { return sequences * kv_heads; }
  std::int64_t heads() const { return meetings() * group; }
  std::int64_t elements() const { return meetings() * rows * head_dim; }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(head_dim)); }
  std::string name() const {
    return fmt::format("{} x {}/{} heads of {}, {} rows", sequences, kv_heads * group, kv_heads,
                       head_dim, rows);
  }
};

/// Rows of layers, and queries.
struct Layers {
  explicit Layers(const Shape& of)
      : shape(of),
        queries(normal(of.heads() * of.head_dim, 1)),
        out(of.heads() * of.head_dim),
        lse(of.heads()),
        arrived(of.meetings()),
        partials(topkv::gpu::chosen_room_bytes(of.head_dim) / 4) {
    for (std::int64_t i = 0; i < of.copies; ++i) {
      keys.push_back(normal(of.elements(), static_cast<unsigned>(2 + 2 * i)));
      values.push_back(normal(of.elements(), static_cast<unsigned>(3 + 2 * i)));
    }
  }
  MeetingQueries meeting_queries() const {
    return {queries->data(), shape.meetings(), shape.group, shape.head_dim, shape.scale()};
  }
  DeviceRows rows(std::int64_t copy) const {
    return {.keys = keys[static_cast<std::size_t>(copy)]->data(),
            .values = values[static_cast<std::size_t>(copy)]->data(),
            .head_stride = shape.rows * shape.head_dim,
            .count = shape.rows};
  }
  DevicePartial partial() const { return {out.data(), lse.data()}; }

  Shape shape;
  std::unique_ptr<Array<__nv_bfloat16>> queries;
  std::vector<std::unique_ptr<Array<__nv_bfloat16>>> keys, values;
  Array<float> out, lse;
  Array<int> arrived;
  Array<float> partials;
  Stream stream;
};

/// Median seconds of work(copy), called for all copies in turn, several times over.
double median_seconds(const Layers& layers, const std::function<void(std::int64_t)>& work) {
  constexpr int runs = 9;
  const std::int64_t calls = layers.shape.copies * (layers.shape.elements() > (1 << 28) ? 3 : 10);
  std::vector<double> seconds;
  for (int run = 0; run <= runs; ++run) {
    Event start(Event::Timing::on);
    Event end(Event::Timing::on);
    start.record(layers.stream);
    for (std::int64_t i = 0; i < calls; ++i) work(i % layers.shape.copies);
    end.record(layers.stream);
    end.synchronize();
    if (run > 0)  // the first warms up
      seconds.push_back(end.seconds_since(start) / static_cast<double>(calls));
  }
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[runs / 2];
}

/// Of a meeting's rows.
struct HostRows {
  HostRows(const Layers& layers, std::int64_t copy, std::int64_t meeting)
      : dim(layers.shape.head_dim),
        keys(widened(*layers.keys[static_cast<std::size_t>(copy)], layers, meeting)),
        values(widened(*layers.values[static_cast<std::size_t>(copy)], layers, meeting)) {}

  static std::vector<float> widened(const Array<__nv_bfloat16>& from, const Layers& layers,
                                    std::int64_t meeting) {
    const std::int64_t count = layers.shape.rows * layers.shape.head_dim;
    std::vector<float> to;
    for (const __nv_bfloat16 x : from.read(meeting * count, count))
      to.push_back(__bfloat162float(x));
    return to;
  }
  std::int64_t dim;
  std::vector<float> keys, values;
};

/// Throws unless the output for a few heads is attention over these rows of its meeting. skip:
/// before the first of entries.
void check_attention(const Layers& layers, std::int64_t copy, const ChosenEntries& chosen,
                     const Array<int>& entries, const Array<int>& counts, std::int64_t page,
                     std::int64_t skip = 0) {
  const Shape& shape = layers.shape;
  const std::int64_t d = shape.head_dim;
  for (const std::int64_t meeting : {std::int64_t{0}, shape.meetings() - 1}) {
    const HostRows rows(layers, copy, meeting);
    const int count = counts.read(meeting, 1)[0];
    const std::vector<int> listed = entries.read(skip + meeting * chosen.capacity, count);
    for (std::int64_t g = 0; g < shape.group; ++g) {
      const std::int64_t head = meeting * shape.group + g;
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

struct Dense {
  double ours, cudnn;
  double best() const { return std::min(ours, cudnn); }
};

Dense time_dense(const Layers& layers, CudnnAttention* cudnn) {
  const Shape& shape = layers.shape;
  Dense dense{0, std::numeric_limits<double>::infinity()};
  dense.ours = median_seconds(layers, [&](std::int64_t copy) {
    topkv::gpu::attend({.data = layers.queries->data(),
                        .tokens = 1,
                        .q_heads = shape.heads(),
                        .kv_heads = shape.meetings(),
                        .head_dim = shape.head_dim,
                        .scale = shape.scale()},
                       layers.rows(copy), {}, layers.partial(), Into::overwrite, layers.stream);
  });
  const topkv::gpu::CudnnShape wanted{.head_dim = shape.head_dim,
                                      .q_heads = shape.heads(),
                                      .kv_heads = shape.meetings(),
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

/// One way of attending, in stages that are timed one by one and together.
struct Method {
  std::string name;
  std::string paper;  // its speed-up
  double bytes;       // that it reads, of a layer
  std::vector<std::pair<std::string, std::function<void(std::int64_t)>>> stages;
};

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

void quest(const Shape& shape, std::int64_t budget, const std::string& paper, CudnnAttention* cudnn,
           double bandwidth) {
  constexpr std::int64_t page = 16;
  const Layers layers(shape);
  const MeetingQueries queries = layers.meeting_queries();
  const std::int64_t pages = (shape.rows + page - 1) / page;
  const std::int64_t k = budget / page;
  std::vector<std::unique_ptr<Array<__nv_bfloat16>>> bounds;
  for (std::int64_t i = 0; i < shape.copies; ++i) {
    bounds.push_back(
        std::make_unique<Array<__nv_bfloat16>>(shape.meetings() * pages * 2 * shape.head_dim));
    topkv::gpu::bound_pages(layers.rows(i).keys, shape.meetings(), shape.rows, shape.head_dim, page,
                            0, shape.rows, bounds.back()->data(), pages, layers.stream);
  }
  const Array<float> scores(shape.heads() * pages);
  const std::int64_t capacity = shape.group * k;
  const Array<int> entries(shape.meetings() * capacity);
  const Array<int> counts(shape.meetings());
  const ChosenEntries chosen{entries.data(), counts.data(), capacity};
  const Dense dense = time_dense(layers, cudnn);
  print_dense(layers, dense, bandwidth);
  Method method{fmt::format("quest, pages of {}, {} rows", page, budget), paper, 0, {}};
  method.stages = {
      {"scores",
       [&](std::int64_t copy) {
         topkv::gpu::score_pages(queries, bounds[static_cast<std::size_t>(copy)]->data(), pages,
                                 pages, scores.data(), layers.stream);
       }},
      {"choice",
       [&](std::int64_t) {
         topkv::gpu::choose_best(scores.data(), queries, pages, k, chosen, layers.stream);
       }},
      {"attention", [&](std::int64_t copy) {
         topkv::gpu::attend_chosen(queries, layers.rows(copy), chosen, page, layers.partial(),
                                   {layers.arrived.data(), layers.partials.data()}, layers.stream);
       }}};
  for (const auto& [name, stage] : method.stages) stage(0);
  check_attention(layers, 0, chosen, entries, counts, page);
  const std::vector<int> listed = counts.read();
  const double rows = page * std::accumulate(listed.begin(), listed.end(), 0.0);
  method.bytes = 4.0 * static_cast<double>(shape.head_dim) *
                 (static_cast<double>(shape.meetings() * pages) + rows);
  report(layers, dense, bandwidth, method);
}

void sparq(const Shape& shape, std::int64_t components, std::int64_t k, const std::string& paper,
           CudnnAttention* cudnn, double bandwidth) {
  const Layers layers(shape);
  const MeetingQueries queries = layers.meeting_queries();
  std::vector<std::unique_ptr<Array<__nv_bfloat16>>> spread;
  for (std::int64_t i = 0; i < shape.copies; ++i) {
    spread.push_back(std::make_unique<Array<__nv_bfloat16>>(shape.elements()));
    topkv::gpu::spread_components(layers.rows(i).keys, shape.meetings(), shape.rows, shape.head_dim,
                                  0, shape.rows, spread.back()->data(), layers.stream);
  }
  const Array<float> scores(shape.heads() * shape.rows);
  const Array<float> shares(shape.heads());
  const Array<float> means(shape.meetings() * shape.head_dim);
  const Array<int> entries(shape.meetings() * k);
  const Array<int> counts(shape.meetings());
  const ChosenEntries chosen{entries.data(), counts.data(), k};
  const Dense dense = time_dense(layers, cudnn);
  print_dense(layers, dense, bandwidth);
  Method method{fmt::format("sparq, r = {}, k = {}, mean value", components, k), paper, 0, {}};
  method.stages = {
      {"scores",
       [&](std::int64_t copy) {
         topkv::gpu::score_components(queries, spread[static_cast<std::size_t>(copy)]->data(),
                                      shape.rows, shape.rows, components, scores.data(),
                                      layers.stream);
       }},
      {"choice",
       [&](std::int64_t) {
         topkv::gpu::choose_heaviest(scores.data(), queries, shape.rows, k, chosen, shares.data(),
                                     layers.stream);
       }},
      {"attention", [&](std::int64_t copy) {
         topkv::gpu::attend_chosen(queries, layers.rows(copy), chosen, 1, layers.partial(),
                                   {layers.arrived.data(), layers.partials.data()}, layers.stream);
       }}};
  for (const auto& [name, stage] : method.stages) stage(0);
  check_attention(layers, 0, chosen, entries, counts, 1);
  method.stages.emplace_back("mean", [&](std::int64_t) {
    topkv::gpu::reallocate_mean(queries, shares.data(), means.data(), layers.partial(),
                                layers.stream);
  });
  method.bytes = 2.0 * static_cast<double>(shape.meetings()) *
                 static_cast<double>(components * shape.rows + 2 * k * shape.head_dim);
  report(layers, dense, bandwidth, method);
}

void squeezed(const Shape& shape, const std::vector<std::pair<int, std::string>>& sparsities,
              CudnnAttention* cudnn, double bandwidth) {
  const Layers layers(shape);
  // Heads of different sharpness, so that one threshold gives them different numbers of rows.
  std::vector<__nv_bfloat16> sharp = layers.queries->read();
  for (std::size_t i = 0; i < sharp.size(); ++i) {
    const auto head = static_cast<std::int64_t>(i) / shape.head_dim;
    const float factor = 0.5F + 2.0F * static_cast<float>(head % 8) / 7.0F;
    sharp[i] = __float2bfloat16(factor * __bfloat162float(sharp[i]));
  }
  TOPKV_CUDA(
      cudaMemcpy(layers.queries->data(), sharp.data(), sharp.size() * 2, cudaMemcpyHostToDevice));
  const MeetingQueries queries = layers.meeting_queries();
  const std::int64_t clusters = shape.rows / 20;
  const auto centroids = normal(shape.copies * shape.meetings() * clusters * shape.head_dim, 99);
  // Rows belong to clusters at random: memory is read as for clusters of similar keys.
  std::vector<int> begin, members;
  std::mt19937_64 random(1);
  for (std::int64_t m = 0; m < shape.meetings(); ++m) {
    std::vector<int> cluster(static_cast<std::size_t>(shape.rows));
    std::vector<int> first(static_cast<std::size_t>(clusters + 1), 0);
    for (int& c : cluster) {
      c = static_cast<int>(random() % static_cast<std::uint64_t>(clusters));
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
  const Array<int> device_begin(begin);
  const Array<int> device_members(members);
  const Array<float> scores(shape.heads() * clusters);
  const Array<int> entries(shape.meetings() * shape.rows);
  const Array<int> counts(shape.meetings());
  const ChosenEntries chosen{entries.data(), counts.data(), shape.rows};
  const auto score = [&](std::int64_t copy) {
    topkv::gpu::score_centroids(
        queries, centroids->data() + copy * shape.meetings() * clusters * shape.head_dim, clusters,
        clusters, scores.data(), layers.stream);
  };
  float log_threshold = 0;
  const auto choose = [&](std::int64_t) {
    topkv::gpu::choose_important(scores.data(), queries, clusters,
                                 {device_begin.data(), device_members.data(), clusters, shape.rows},
                                 log_threshold, chosen, layers.stream);
  };
  const Dense dense = time_dense(layers, cudnn);
  print_dense(layers, dense, bandwidth);
  for (const auto& [sparsity, paper] : sparsities) {
    // The threshold that leaves so many rows over all heads.
    const double wanted =
        (100 - sparsity) / 100.0 * static_cast<double>(shape.meetings() * shape.rows);
    float low = -60;
    float high = 0;
    double rows = 0;
    std::vector<int> listed;
    score(0);
    for (int round = 0; round < 24; ++round) {
      log_threshold = (low + high) / 2;
      choose(0);
      listed = counts.read();
      rows = std::accumulate(listed.begin(), listed.end(), 0.0);
      (rows > wanted ? low : high) = log_threshold;
    }
    Method method{
        fmt::format("squeezed, 5 % centroids, {:.0f} % left out",
                    100 - 100 * rows / static_cast<double>(shape.meetings() * shape.rows)),
        paper,
        0,
        {}};
    method.stages = {{"scores", score},
                     {"choice", choose},
                     {"attention", [&](std::int64_t copy) {
                        topkv::gpu::attend_chosen(
                            queries, layers.rows(copy), chosen, 1, layers.partial(),
                            {layers.arrived.data(), layers.partials.data()}, layers.stream);
                      }}};
    for (const auto& [name, stage] : method.stages) stage(0);
    check_attention(layers, 0, chosen, entries, counts, 1);
    const auto [least, most] = std::minmax_element(listed.begin(), listed.end());
    fmt::print("  rows of a KV head: {} to {}\n", *least, *most);
    method.bytes = 2.0 * static_cast<double>(shape.head_dim) *
                   (static_cast<double>(shape.meetings() * clusters) + 2 * rows);
    report(layers, dense, bandwidth, method);
  }
}

/// As a session's decode step has it: 16 bytes for a key and 8 for a value, rare keys as they are,
/// an estimate of all rows that are not found; but for the merge of the three parts.
void codes(const Shape& shape, std::int64_t k, CudnnAttention* cudnn, double bandwidth) {
  const Layers layers(shape);
  const std::int64_t d = shape.head_dim;
  // Codes of one KV head stand for those of all: they are as many bytes.
  const auto keys = layers.keys[0]->read(0, shape.rows * d);
  const auto values = layers.values[0]->read(0, shape.rows * d);
  const topkv::RowsView rows{
      {reinterpret_cast<const std::byte*>(keys.data()), topkv::DType::bf16, shape.rows, d, 2 * d},
      {reinterpret_cast<const std::byte*>(values.data()), topkv::DType::bf16, shape.rows, d,
       2 * d}};
  const topkv::CodesParams params{.key_bytes = 16, .value_bytes = 8};
  topkv::CodesIndex index(params);
  index.add(rows.keys, {});
  index.build({});
  const topkv::CodeTail tail(index, rows, params.bits_of_value(d), {});
  const std::vector<topkv::HeadCodes> heads(
      static_cast<std::size_t>(shape.copies * shape.meetings()),
      topkv::codes_of(index, &tail, rows));
  const auto compute = topkv::open_gpu(0, 0);
  auto& device = dynamic_cast<topkv::gpu::CudaDevice&>(*compute);
  const auto lock = device.lock();
  const topkv::AttentionShape attention{.layers = shape.copies,
                                        .q_heads = shape.heads(),
                                        .kv_heads = shape.meetings(),
                                        .head_dim = d};
  const topkv::gpu::CudaCodes coded(device, attention, heads);
  std::vector<float> query;
  for (const __nv_bfloat16 x : layers.queries->read()) query.push_back(__bfloat162float(x));
  const Array<float> queries(query);
  const std::int64_t capacity = 64 * shape.group * k;  // thresholds come of a sample
  const std::int64_t stride = 1 + capacity;
  const Array<int> found(shape.meetings() * stride);
  const Array<int> counts(shape.meetings());
  const Array<float> rare(shape.heads() * d), estimate(shape.heads() * d);
  const Array<float> rare_lse(shape.heads()), estimate_lse(shape.heads());
  const Array<topkv::TailNoise> noise(shape.heads());
  const ChosenEntries chosen{found.data() + 1, counts.data(), stride};
  const auto scan_of = [&](std::int64_t copy) {
    topkv::gpu::CodeScan scan = coded.scan(copy);
    scan.wanted = static_cast<int>(k);
    scan.lists = 1;
    scan.capacity = static_cast<int>(capacity);
    scan.tail = true;
    for (std::int64_t h = 0; h < shape.meetings(); ++h)
      scan.range[h] = coded.range(copy, h, {0, shape.rows});
    scan.token[scan.tokens++] = {.query = queries.data(),
                                 .rare = {rare.data(), rare_lse.data()},
                                 .estimate = {estimate.data(), estimate_lse.data()},
                                 .noise = noise.data(),
                                 .found = found.data()};
    scan.splits = coded.splits(1);
    return scan;
  };
  const Dense dense = time_dense(layers, cudnn);
  print_dense(layers, dense, bandwidth);
  Method method{fmt::format("codes, 16 and 8 bytes, {} rows, tail", k), "-", 0, {}};
  method.stages = {
      {"scan",
       [&](std::int64_t copy) {
         const topkv::gpu::CodeScan scan = scan_of(copy);
         topkv::gpu::prepare_queries(scan, {}, layers.stream);
         topkv::gpu::list_rows(scan, layers.stream);
       }},
      {"counts",
       [&](std::int64_t) {
         TOPKV_CUDA(cudaMemcpy2DAsync(counts.data(), sizeof(int), found.data(),
                                      static_cast<std::size_t>(stride) * sizeof(int), sizeof(int),
                                      static_cast<std::size_t>(shape.meetings()),
                                      cudaMemcpyDeviceToDevice, layers.stream));
       }},
      {"attention", [&](std::int64_t copy) {
         topkv::gpu::attend_chosen(layers.meeting_queries(), layers.rows(copy), chosen, 1,
                                   layers.partial(),
                                   {layers.arrived.data(), layers.partials.data()}, layers.stream);
       }}};
  for (const auto& [name, stage] : method.stages) stage(0);
  check_attention(layers, 0, chosen, found, counts, 1, 1);
  const std::vector<int> listed = counts.read();
  const double attended = std::accumulate(listed.begin(), listed.end(), 0.0) +
                          static_cast<double>(shape.meetings() * std::ssize(index.rare()));
  method.bytes = 4.0 * static_cast<double>(d) * attended +
                 24.0 * static_cast<double>(shape.meetings() * shape.rows);
  report(layers, dense, bandwidth, method);
}

int run(const std::vector<std::string>& wanted) {
  if (topkv::gpu_count() == 0) {
    fmt::print("skipped: no GPU: {}\n", topkv::gpu_reason());
    return 0;
  }
  const std::unique_ptr<CudnnAttention> cudnn = bench::open_cudnn();
  cudaDeviceProp properties{};
  TOPKV_CUDA(cudaGetDeviceProperties(&properties, 0));
  const double bandwidth = bench::gpu_read_bandwidth();
  fmt::print("{}: {:.0f} GB/s read\n", properties.name, bandwidth / 1e9);
  const auto has = [&](const char* name) {
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };
  constexpr std::int64_t ki = 1024;
  if (has("quest")) {
    quest({1, 32, 1, 128, 32 * ki, 4}, 2048, "7.03x (RTX 4090)", cudnn.get(), bandwidth);
    quest({8, 32, 1, 128, 32 * ki, 1}, 2048, "-", cudnn.get(), bandwidth);
    quest({1, 8, 4, 128, 128 * ki, 4}, 2048, "-", cudnn.get(), bandwidth);
  }
  if (has("sparq")) {
    sparq({64, 32, 1, 128, 4 * ki, 1}, 32, 128, "3.02x (A100), 4.17x (A10G)", cudnn.get(),
          bandwidth);
    sparq({1, 32, 1, 128, 128 * ki, 2}, 32, 128, "-", cudnn.get(), bandwidth);
  }
  if (has("squeezed")) {
    for (const std::int64_t rows : {128 * ki, 512 * ki})
      squeezed({1, 32, 1, 128, rows, rows == 128 * ki ? 2 : 1},
               {{70, "-"}, {80, "-"}, {90, "4.2x (one H100, 512 Ki)"}}, cudnn.get(), bandwidth);
  }
  if (has("codes")) {
    codes({1, 32, 1, 128, 32 * ki, 4}, 64, cudnn.get(), bandwidth);
    codes({1, 8, 4, 128, 128 * ki, 4}, 64, cudnn.get(), bandwidth);
    codes({1, 8, 4, 128, 512 * ki, 2}, 64, cudnn.get(), bandwidth);
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> wanted(words + 1, words + count);
  for (const std::string& word : wanted) {
    if (word == "quest" || word == "sparq" || word == "squeezed" || word == "codes") continue;
    fmt::print(stderr, "usage: {} [quest|sparq|squeezed|codes ...]\n", words[0]);
    return 2;
  }
  try {
    return run(wanted);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
