// What measurements of selection in a GPU's memory (gpu_selection.cc) have in common: rows of
// layers, dense attention to compare with, and stages that are timed.
#pragma once

#include <cuda_bf16.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/kernels/chosen_attention.h"
#include "bench/kernels/squeezed_choice.h"
#include "gpu/attention/attention.h"
#include "gpu/attention/cudnn_attention.h"
#include "gpu/entries/entry_scores.h"
#include "gpu/entries/top_entries.h"
#include "gpu/runtime/handles.h"

namespace bench {

using topkv::PartialView;
using topkv::gpu::ChosenEntries;
using topkv::gpu::CudnnAttention;
using topkv::gpu::DeviceRows;
using topkv::gpu::Event;
using topkv::gpu::HeadStepQueries;
using topkv::gpu::Into;
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

/// Random numbers.
std::unique_ptr<Array<__nv_bfloat16>> normal(std::int64_t count, unsigned seed);

struct Shape {
  std::int64_t sequences, kv_heads, group, head_dim, rows;
  std::int64_t copies;  // of a layer, used in turn, so that no cache helps

  std::int64_t head_steps() const { return sequences * kv_heads; }
  std::int64_t heads() const { return head_steps() * group; }
  std::int64_t elements() const { return head_steps() * rows * head_dim; }
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
        arrived(of.head_steps()),
        partials(topkv::gpu::chosen_workspace_bytes(of.head_dim) / 4) {
    for (std::int64_t i = 0; i < of.copies; ++i) {
      keys.push_back(normal(of.elements(), static_cast<unsigned>(2 + 2 * i)));
      values.push_back(normal(of.elements(), static_cast<unsigned>(3 + 2 * i)));
    }
  }
  HeadStepQueries head_step_queries() const {
    return {queries->data(), shape.head_steps(), shape.group, shape.head_dim, shape.scale()};
  }
  DeviceRows rows(std::int64_t copy) const {
    return {.keys = keys[static_cast<std::size_t>(copy)]->data(),
            .values = values[static_cast<std::size_t>(copy)]->data(),
            .head_stride = shape.rows * shape.head_dim,
            .count = shape.rows};
  }
  PartialView partial() const { return {out.data(), lse.data()}; }

  Shape shape;
  std::unique_ptr<Array<__nv_bfloat16>> queries;
  std::vector<std::unique_ptr<Array<__nv_bfloat16>>> keys, values;
  Array<float> out, lse;
  Array<int> arrived;
  Array<float> partials;
  Stream stream;
};

/// Median seconds of work(copy), called so many times for copies in turn, again and again.
double median_seconds(const Stream& stream, std::int64_t copies, std::int64_t calls,
                      const std::function<void(std::int64_t)>& work);
/// As many times as is good for one token's attention of the layers.
double median_seconds(const Layers& layers, const std::function<void(std::int64_t)>& work);

/// Of a head step's rows.
struct HostRows {
  HostRows(const Layers& layers, std::int64_t copy, std::int64_t head_step)
      : dim(layers.shape.head_dim),
        keys(widened(*layers.keys[static_cast<std::size_t>(copy)], layers, head_step)),
        values(widened(*layers.values[static_cast<std::size_t>(copy)], layers, head_step)) {}

  static std::vector<float> widened(const Array<__nv_bfloat16>& from, const Layers& layers,
                                    std::int64_t head_step) {
    const std::int64_t count = layers.shape.rows * layers.shape.head_dim;
    std::vector<float> to;
    for (const __nv_bfloat16 x : from.read(head_step * count, count))
      to.push_back(__bfloat162float(x));
    return to;
  }
  std::int64_t dim;
  std::vector<float> keys, values;
};

/// Throws unless the output for a few heads is attention over these rows of its head step. skip:
/// before the first of entries.
void check_attention(const Layers& layers, std::int64_t copy, const ChosenEntries& chosen,
                     const Array<int>& entries, const Array<int>& counts, std::int64_t page,
                     std::int64_t skip = 0);

struct Dense {
  double ours, cudnn;
  double best() const { return std::min(ours, cudnn); }
};

Dense time_dense(const Layers& layers, CudnnAttention* cudnn);
void print_dense(const Layers& layers, const Dense& dense, double bandwidth);

/// One way of attending, in stages that are timed one by one and together.
struct Method {
  std::string name;
  std::string paper;  // its speed-up
  double bytes;       // that it reads, of a layer
  std::vector<std::pair<std::string, std::function<void(std::int64_t)>>> stages;
};

void report(const Layers& layers, const Dense& dense, double bandwidth, const Method& method);

/// Clusters of a twentieth as many as rows, at random: memory is read as for clusters of similar
/// keys.
struct RandomClusters {
  explicit RandomClusters(const Shape& shape);
  topkv::gpu::DeviceClusters device() const;

  std::int64_t count, rows;  // of a head step
  std::vector<int> begin, members;
  Array<int> device_begin, device_members;
};

/// Finds the threshold, a logarithm, at which choose(threshold) leaves out so many percent of the
/// rows; counts: of those chosen, [head_steps]. Gives how many rows are chosen then.
double find_threshold(const Shape& shape, double sparsity, const Array<int>& counts,
                      const std::function<void(float)>& choose, float& log_threshold);

/// Queries of eight degrees of sharpness, so that one threshold gives heads different numbers of
/// rows.
inline float sharpness(std::int64_t head) {
  return 0.5F + 2.0F * static_cast<float>(head % 8) / 7.0F;
}

// The measurements. paper: its speed-up.

void quest(const Shape& shape, std::int64_t budget, const std::string& paper, CudnnAttention* cudnn,
           double bandwidth);
void sparq(const Shape& shape, std::int64_t components, std::int64_t k, const std::string& paper,
           CudnnAttention* cudnn, double bandwidth);
void squeezed(const Shape& shape, const std::vector<std::pair<int, std::string>>& sparsities,
              CudnnAttention* cudnn, double bandwidth);
/// Squeezed Attention of questions of so many tokens.
void question(const Shape& shape, const std::vector<std::int64_t>& tokens,
              const std::vector<std::pair<int, std::string>>& sparsities, CudnnAttention& cudnn);
/// As a session's decode step has it: 16 bytes for a key and 8 for a value, rare keys as they are,
/// an estimate of all rows that are not found; but for the merge of the three parts.
void codes(const Shape& shape, std::int64_t k, CudnnAttention* cudnn, double bandwidth);

}  // namespace bench
