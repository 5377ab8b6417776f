// Quest and SparQ: the best pages, and the best rows.
#include <numeric>

#include "bench/gpu_selection.h"
#include "bench/kernels/quest_bounds.h"
#include "bench/kernels/sparq_components.h"

namespace bench {

void quest(const Shape& shape, std::int64_t budget, const std::string& paper, CudnnAttention* cudnn,
           double bandwidth) {
  constexpr std::int64_t page = 16;
  const Layers layers(shape);
  const HeadStepQueries queries = layers.head_step_queries();
  const std::int64_t pages = (shape.rows + page - 1) / page;
  const std::int64_t k = budget / page;
  std::vector<std::unique_ptr<Array<__nv_bfloat16>>> bounds;
  for (std::int64_t i = 0; i < shape.copies; ++i) {
    bounds.push_back(
        std::make_unique<Array<__nv_bfloat16>>(shape.head_steps() * pages * 2 * shape.head_dim));
    topkv::gpu::bound_pages(layers.rows(i).keys, shape.head_steps(), shape.rows, shape.head_dim,
                            page, 0, shape.rows, bounds.back()->data(), pages, layers.stream);
  }
  const Array<float> scores(shape.heads() * pages);
  const std::int64_t capacity = shape.group * k;
  const Array<int> entries(shape.head_steps() * capacity);
  const Array<int> counts(shape.head_steps());
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
                 (static_cast<double>(shape.head_steps() * pages) + rows);
  report(layers, dense, bandwidth, method);
}

void sparq(const Shape& shape, std::int64_t components, std::int64_t k, const std::string& paper,
           CudnnAttention* cudnn, double bandwidth) {
  const Layers layers(shape);
  const HeadStepQueries queries = layers.head_step_queries();
  std::vector<std::unique_ptr<Array<__nv_bfloat16>>> spread;
  for (std::int64_t i = 0; i < shape.copies; ++i) {
    spread.push_back(std::make_unique<Array<__nv_bfloat16>>(shape.elements()));
    topkv::gpu::spread_components(layers.rows(i).keys, shape.head_steps(), shape.rows,
                                  shape.head_dim, 0, shape.rows, spread.back()->data(),
                                  layers.stream);
  }
  const Array<float> scores(shape.heads() * shape.rows);
  const Array<float> shares(shape.heads());
  const Array<float> means(shape.head_steps() * shape.head_dim);
  const Array<int> entries(shape.head_steps() * k);
  const Array<int> counts(shape.head_steps());
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
  method.bytes = 2.0 * static_cast<double>(shape.head_steps()) *
                 static_cast<double>(components * shape.rows + 2 * k * shape.head_dim);
  report(layers, dense, bandwidth, method);
}

}  // namespace bench
