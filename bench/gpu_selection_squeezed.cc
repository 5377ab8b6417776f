// Squeezed Attention of one token: clusters above a threshold.
#include "bench/gpu_selection.h"

namespace bench {

void squeezed(const Shape& shape, const std::vector<std::pair<int, std::string>>& sparsities,
              CudnnAttention* cudnn, double bandwidth) {
  const Layers layers(shape);
  std::vector<__nv_bfloat16> sharp = layers.queries->read();
  for (std::size_t i = 0; i < sharp.size(); ++i) {
    const auto head = static_cast<std::int64_t>(i) / shape.head_dim;
    sharp[i] = __float2bfloat16(sharpness(head) * __bfloat162float(sharp[i]));
  }
  TOPKV_CUDA(
      cudaMemcpy(layers.queries->data(), sharp.data(), sharp.size() * 2, cudaMemcpyHostToDevice));
  const HeadStepQueries queries = layers.head_step_queries();
  const RandomClusters groups(shape);
  const std::int64_t clusters = groups.count;
  const auto centroids = normal(shape.copies * shape.head_steps() * clusters * shape.head_dim, 99);
  const Array<float> scores(shape.heads() * clusters);
  const Array<int> entries(shape.head_steps() * shape.rows);
  const Array<int> counts(shape.head_steps());
  const ChosenEntries chosen{entries.data(), counts.data(), shape.rows};
  const auto score = [&](std::int64_t copy) {
    topkv::gpu::score_centroids(
        queries, centroids->data() + copy * shape.head_steps() * clusters * shape.head_dim,
        clusters, clusters, scores.data(), layers.stream);
  };
  float log_threshold = 0;
  const auto choose = [&](std::int64_t) {
    topkv::gpu::choose_important(scores.data(), queries, clusters, groups.device(), log_threshold,
                                 chosen, layers.stream);
  };
  const Dense dense = time_dense(layers, cudnn);
  print_dense(layers, dense, bandwidth);
  for (const auto& [sparsity, paper] : sparsities) {
    score(0);
    const double rows = find_threshold(
        shape, sparsity, counts,
        [&](float threshold) {
          log_threshold = threshold;
          choose(0);
        },
        log_threshold);
    const std::vector<int> listed = counts.read();
    Method method{
        fmt::format("squeezed, 5 % centroids, {:.0f} % left out",
                    100 - 100 * rows / static_cast<double>(shape.head_steps() * shape.rows)),
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
                   (static_cast<double>(shape.head_steps() * clusters) + 2 * rows);
    report(layers, dense, bandwidth, method);
  }
}

}  // namespace bench
