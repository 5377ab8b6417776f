// Attention on the device: one prefill block over a tile of rows and over itself, beside cuDNN
// where it can be loaded, and the one-token step over a session's window, beside the time in which
// memory gives its rows.
//
// usage: gpu_attention_bench [HEAD_DIM Q_HEADS KV_HEADS [TOKENS ROWS]]
//        gpu_attention_bench step    steps of heads of 512 and 576 elements (latent attention)
#include <cuda_bf16.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/gpu_bandwidth.h"
#include "bench/gpu_cudnn.h"
#include "gpu/attention/attention.h"
#include "gpu/attention/cudnn_attention.h"
#include "gpu/runtime/handles.h"
#include "src/device/compute_device.h"

namespace {

using topkv::gpu::CudnnAttention;
using topkv::gpu::Event;
using topkv::gpu::Into;

struct Shape {
  std::int64_t head_dim, q_heads, kv_heads, tokens, rows;
  std::int64_t layers = 1;  ///< copies of the rows, of which each call reads the next

  /// Whether it is latent attention, whose rows are keys and values at once.
  bool keys_are_values() const { return head_dim == 576; }
  std::int64_t row_bytes() const { return kv_heads * head_dim * (keys_are_values() ? 2 : 4); }
};

template <class T>
struct Array {
  explicit Array(std::int64_t count_) : count(count_) {
    T* memory = nullptr;
    TOPKV_CUDA(cudaMalloc(reinterpret_cast<void**>(&memory),
                          static_cast<std::size_t>(std::max<std::int64_t>(count, 1)) * sizeof(T)));
    data.reset(memory);
  }
  std::vector<T> read() const {
    std::vector<T> out(static_cast<std::size_t>(count));
    TOPKV_CUDA(cudaDeviceSynchronize());
    TOPKV_CUDA(cudaMemcpy(out.data(), data.get(), out.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }

  struct Free {
    void operator()(T* memory) const { cudaFree(memory); }
  };
  std::int64_t count;
  std::unique_ptr<T, Free> data;
};

/// Multiples of 1/32 in [-2, 2), on both sides; on the device `copies` times.
struct Numbers {
  std::vector<float> host;
  Array<__nv_bfloat16> device;

  Numbers(std::int64_t count, std::uint64_t seed, std::int64_t copies = 1)
      : host(static_cast<std::size_t>(count)), device(count * copies) {
    std::vector<__nv_bfloat16> rounded(host.size());
    std::uint64_t state = seed;
    for (std::size_t i = 0; i < host.size(); ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      host[i] = static_cast<float>(static_cast<int>(state >> 57) - 64) / 32.0F;
      rounded[i] = __float2bfloat16(host[i]);
    }
    for (std::int64_t i = 0; i < copies; ++i) {
      TOPKV_CUDA(cudaMemcpy(device.data.get() + i * count, rounded.data(), rounded.size() * 2,
                            cudaMemcpyHostToDevice));
    }
  }
};

/// Median seconds of one of `batch` calls in a row.
double median_seconds(int runs, int batch, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i <= runs; ++i) {
    Event start(Event::Timing::on);
    Event end(Event::Timing::on);
    start.record(nullptr);
    for (int j = 0; j < batch; ++j) work();
    end.record(nullptr);
    end.synchronize();
    if (i > 0) seconds.push_back(end.seconds_since(start) / batch);  // the first run warms up
  }
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[static_cast<std::size_t>(runs / 2)];
}

class Problem {
 public:
  explicit Problem(const Shape& shape)
      : shape_(shape),
        queries_(shape.tokens * shape.q_heads * shape.head_dim, 1),
        keys_(shape.kv_heads * shape.rows * shape.head_dim, 2, shape.layers),
        values_(shape.kv_heads * shape.rows * shape.head_dim, shape.keys_are_values() ? 2 : 3,
                shape.keys_are_values() ? 1 : shape.layers),
        out_(shape.tokens * shape.q_heads * shape.head_dim),
        lse_(shape.tokens * shape.q_heads) {}

  void attend(std::int64_t rows, bool causal) {
    const std::int64_t from = layer_ * shape_.kv_heads * shape_.rows * shape_.head_dim;
    layer_ = (layer_ + 1) % shape_.layers;
    topkv::gpu::attend(
        {.kv_heads = shape_.kv_heads,
         .head_dim = shape_.head_dim,
         .scale = scale(),
         .keys_are_values = shape_.keys_are_values()},
        {.data = queries_.device.data.get(),
         .tokens = shape_.tokens,
         .heads = shape_.q_heads,
         .head_dim = shape_.head_dim,
         .first = rows - shape_.tokens},
        {.keys = keys_.device.data.get() + from,
         .values = shape_.keys_are_values() ? nullptr : values_.device.data.get() + from,
         .head_stride = shape_.rows * shape_.head_dim,
         .count = rows},
        {.causal = causal}, {out_.data.get(), lse_.data.get()}, Into::overwrite, nullptr);
  }

  /// A few heads against float64. Throws when one is wrong.
  void check(std::int64_t rows, bool causal) const {
    const std::vector<float> out = out_.read();
    const std::int64_t dim = shape_.head_dim;
    const std::int64_t group = shape_.q_heads / shape_.kv_heads;
    const std::int64_t heads = shape_.tokens * shape_.q_heads;
    for (const std::int64_t at : {std::int64_t{0}, heads / 2 + 1, heads - 1}) {
      const std::int64_t first = at % shape_.q_heads / group * shape_.rows * dim;
      const std::int64_t seen = causal ? at / shape_.q_heads + rows - shape_.tokens + 1 : rows;
      std::vector<double> want(static_cast<std::size_t>(dim));
      double sum = 0;
      for (std::int64_t row = 0; row < seen; ++row) {
        double score = 0;
        for (std::int64_t j = 0; j < dim; ++j)
          score += double{queries_.host[at * dim + j]} * keys_.host[first + row * dim + j];
        const double weight = std::exp(score * scale());  // far from overflow with these numbers
        sum += weight;
        for (std::int64_t j = 0; j < dim; ++j)
          want[j] += weight * values_.host[first + row * dim + j];
      }
      for (std::int64_t j = 0; j < dim; ++j) {
        // Values are below 2; weights are rounded to bf16.
        if (!(std::abs(out[at * dim + j] - want[j] / sum) <= 2 * 0x1p-8))
          throw std::runtime_error(fmt::format("wrong attention of head {}, element {}: {} for {}",
                                               at, j, out[at * dim + j], want[j] / sum));
      }
    }
  }

  /// Seconds through cuDNN, whose result must be that of the last attend(); none when cuDNN has no
  /// plan.
  std::optional<double> cudnn_seconds(CudnnAttention& cudnn, std::int64_t rows, bool causal) {
    const topkv::gpu::CudnnShape wanted{.head_dim = shape_.head_dim,
                                        .q_heads = shape_.q_heads,
                                        .kv_heads = shape_.kv_heads,
                                        .tokens = shape_.tokens,
                                        .rows = rows,
                                        .head_stride = shape_.rows * shape_.head_dim,
                                        .causal = causal,
                                        .scale = scale()};
    std::string why;
    if (!cudnn.supports(wanted, &why)) {
      fmt::print("cuDNN has no plan: {}\n", why);
      return std::nullopt;
    }
    const Array<__nv_bfloat16> out(out_.count);
    const Array<float> lse(lse_.count);
    const Array<std::byte> workspace(cudnn.workspace_bytes(wanted));
    const auto run = [&] {
      cudnn.attend(wanted, queries_.device.data.get(), keys_.device.data.get(),
                   values_.device.data.get(), {out.data.get(), lse.data.get()},
                   workspace.data.get(), nullptr);
    };
    run();
    const std::vector<float> ours = out_.read();
    const std::vector<__nv_bfloat16> theirs = out.read();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      // Both round their weights to bf16, and cuDNN its result.
      if (!(std::abs(ours[i] - __bfloat162float(theirs[i])) <= 2 * 3 * 0x1p-8))
        throw std::runtime_error(
            fmt::format("element {} is {}, of cuDNN {}", i, ours[i], __bfloat162float(theirs[i])));
    }
    return median_seconds(7, 1, run);
  }

 private:
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)); }

  Shape shape_;
  std::int64_t layer_ = 0;  ///< which the next call reads
  Numbers queries_, keys_, values_;
  Array<float> out_, lse_;
};

void prefill(Problem& problem, const Shape& shape, std::int64_t rows, bool causal,
             CudnnAttention* cudnn) {
  problem.attend(rows, causal);
  problem.check(rows, causal);
  const double seconds = median_seconds(7, 1, [&] { problem.attend(rows, causal); });
  const std::int64_t unseen = causal ? shape.tokens * (shape.tokens - 1) / 2 : 0;
  const double flops = 4.0 * static_cast<double>(shape.tokens * rows - unseen) *
                       static_cast<double>(shape.head_dim * shape.q_heads);
  problem.attend(rows, causal);
  const std::optional<double> theirs =
      cudnn == nullptr ? std::nullopt : problem.cudnn_seconds(*cudnn, rows, causal);
  fmt::print("{:>4} {:>3}/{:<3} {:>7} {:>7} {:<7} {:>9.2f} {:>9.0f}", shape.head_dim, shape.q_heads,
             shape.kv_heads, shape.tokens, rows, causal ? "causal" : "full", seconds * 1e3,
             flops / seconds / 1e12);
  if (theirs) {
    fmt::print(" {:>9.0f} {:>8.2f}", flops / *theirs / 1e12, *theirs / seconds);
  }
  fmt::print("\n");
}

/// A step of one token over rows that are in no cache. bandwidth: of memory, in bytes per second.
void decode(Shape shape, double bandwidth) {
  constexpr std::int64_t beyond_caches = std::int64_t{256} << 20;
  const std::int64_t bytes = shape.rows * shape.row_bytes();
  shape.layers = beyond_caches / bytes + 1;
  Problem problem(shape);
  problem.attend(shape.rows, true);
  problem.check(shape.rows, true);
  const double seconds = median_seconds(7, 50, [&] { problem.attend(shape.rows, true); });
  const double bound = static_cast<double>(bytes) / bandwidth;
  const double flops = 4.0 * static_cast<double>(shape.rows * shape.head_dim * shape.q_heads);
  fmt::print("{:>4} {:>3}/{:<3} {:>7} {:>7.1f} us {:>9.1f} us {:>7.2f} {:>9.0f}\n", shape.head_dim,
             shape.q_heads, shape.kv_heads, shape.rows, seconds * 1e6, bound * 1e6, bound / seconds,
             flops / seconds / 1e12);
}

void print_decode_header(double bandwidth) {
  fmt::print("steps of one token; memory is read at {:.0f} GB/s\n", bandwidth / 1e9);
  fmt::print("{:>4} {:<7} {:>7} {:>10} {:>12} {:>7} {:>9}\n", "dim", "heads", "rows", "step",
             "its bytes", "share", "TFLOP/s");
}

void steps() {
  const double bandwidth = bench::gpu_read_bandwidth();
  print_decode_header(bandwidth);
  for (const std::int64_t rows : {260, 1028, 4096, 32768}) {
    for (const std::int64_t heads : {16, 32, 64, 128}) decode({576, heads, 1, 1, rows}, bandwidth);
    for (const auto& [heads, kv_heads] : {std::pair{8, 1}, {16, 2}, {32, 4}})
      decode({512, heads, kv_heads, 1, rows}, bandwidth);
  }
}

void run(const std::vector<Shape>& shapes) {
  const std::unique_ptr<CudnnAttention> cudnn = bench::open_cudnn();
  fmt::print("{:>4} {:<7} {:>7} {:>7} {:<7} {:>9} {:>9} {:>9} {:>8}\n", "dim", "heads", "tokens",
             "rows", "mask", "ms", "TFLOP/s", "cuDNN", "ratio");
  for (const Shape& shape : shapes) {
    Problem problem(shape);
    prefill(problem, shape, shape.rows, false, cudnn.get());
    if (shape.tokens <= shape.rows) prefill(problem, shape, shape.tokens, true, cudnn.get());
  }
  const double bandwidth = bench::gpu_read_bandwidth();
  print_decode_header(bandwidth);
  for (const Shape& shape : shapes)
    decode({shape.head_dim, shape.q_heads, shape.kv_heads, 1, 1028}, bandwidth);
}

}  // namespace

int main(int count, char** words) {
  std::vector<Shape> shapes{
      {64, 6, 2, 8192, 32768}, {128, 32, 8, 8192, 32768}, {128, 28, 4, 8192, 32768}};
  const bool only_steps = count == 2 && words[1] == std::string_view("step");
  if (count == 4 || count == 6) {
    Shape shape{std::atoll(words[1]), std::atoll(words[2]), std::atoll(words[3]), 8192, 32768};
    if (count == 6) {
      shape.tokens = std::atoll(words[4]);
      shape.rows = std::atoll(words[5]);
    }
    shapes = {shape};
  } else if (count != 1 && !only_steps) {
    fmt::print(stderr, "usage: {} [step | HEAD_DIM Q_HEADS KV_HEADS [TOKENS ROWS]]\n", words[0]);
    return 2;
  }
  if (topkv::gpu_count() == 0) {
    fmt::print("skipped: no GPU: {}\n", topkv::gpu_reason());
    return 0;
  }
  try {
    only_steps ? steps() : run(shapes);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
