// Codes of this library, where rows lie in the GPU's memory.
#include <numeric>

#include "bench/gpu_selection.h"
#include "gpu/codes/code_scan.h"
#include "gpu/codes/codes.h"
#include "gpu/device.h"
#include "index/codes/code_tail.h"
#include "index/codes/codes_index.h"
#include "src/context/index_on_device.h"
#include "src/device/compute_device.h"

namespace bench {

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
      static_cast<std::size_t>(shape.copies * shape.head_steps()),
      topkv::codes_of(index, &tail, rows));
  const auto compute = topkv::open_gpu(0, 0);
  auto& device = dynamic_cast<topkv::gpu::CudaDevice&>(*compute);
  const auto lock = device.lock();
  const topkv::AttentionShape attention{.layers = shape.copies,
                                        .q_heads = shape.heads(),
                                        .kv_heads = shape.head_steps(),
                                        .head_dim = d};
  const topkv::gpu::CudaCodes coded(device, attention, heads);
  std::vector<float> query;
  for (const __nv_bfloat16 x : layers.queries->read()) query.push_back(__bfloat162float(x));
  const Array<float> queries(query);
  const std::int64_t capacity = 64 * shape.group * k;  // thresholds come of a sample
  const std::int64_t stride = 1 + capacity;
  const Array<int> found(shape.head_steps() * stride);
  const Array<int> counts(shape.head_steps());
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
    for (std::int64_t h = 0; h < shape.head_steps(); ++h)
      scan.range[h] = coded.range(copy, h, {0, shape.rows});
    scan.token[scan.tokens++] = {.query = {queries.data()},
                                 .parts = {{estimate.data(), estimate_lse.data()},
                                           {rare.data(), rare_lse.data()},
                                           noise.data()},
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
                                      static_cast<std::size_t>(shape.head_steps()),
                                      cudaMemcpyDeviceToDevice, layers.stream));
       }},
      {"attention", [&](std::int64_t copy) {
         topkv::gpu::attend_chosen(layers.head_step_queries(), layers.rows(copy), chosen, 1,
                                   layers.partial(),
                                   {layers.arrived.data(), layers.partials.data()}, layers.stream);
       }}};
  for (const auto& [name, stage] : method.stages) stage(0);
  check_attention(layers, 0, chosen, found, counts, 1, 1);
  const std::vector<int> listed = counts.read();
  const double attended = std::accumulate(listed.begin(), listed.end(), 0.0) +
                          static_cast<double>(shape.head_steps() * std::ssize(index.rare()));
  method.bytes = 4.0 * static_cast<double>(d) * attended +
                 24.0 * static_cast<double>(shape.head_steps() * shape.rows);
  report(layers, dense, bandwidth, method);
}

}  // namespace bench
