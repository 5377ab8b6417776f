// A layer with a trained indexer against dense attention over the same rows, and against the speed
// at which memory can be read.
//
// For the shapes of some models it checks the choice of one token with float64 by plain loops. Then
// it times the choice and the attention over it, of one token and of a chunk of 64, and dense
// attention of one token. It prints the bytes of index keys read per second as a share of the
// streaming bandwidth, which is measured in the same run, and products per second.
//
//   indexer_bench [tokens]          default 131072
#include <fmt/format.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "index/trained/choose_keys.h"
#include "src/attention/block_attention.h"
#include "src/core/threads/threads.h"
#include "src/device/host/indexer_attention.h"
#include "src/store/row_store.h"
#include "topkv/attention.h"

namespace {

std::vector<float> random_floats(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) x = normal(random);
  return out;
}

/// Rows and index keys of a layer: repeated random numbers, which take less time to make.
struct Layer {
  topkv::AttentionShape shape;
  topkv::RowStore store;

  Layer(topkv::AttentionShape attention, std::int64_t tokens)
      : shape(std::move(attention)), store(shape, topkv::DType::bf16, tokens, 0, "benchmark") {
    const topkv::IndexerShape& of = *shape.indexer;
    constexpr std::int64_t some = 4096;
    const std::int64_t width = shape.kv_heads * shape.head_dim;
    const auto rows = random_floats((some + 1) * width, 1);
    const auto keys = random_floats(of.keys(tokens) * of.dim, 2);
    store.index_keys().write(0, 0, tokens, keys.data());
    for (std::int64_t t = 0; t < tokens; t += some) {
      const auto view = [&](std::int64_t skipped) {
        return topkv::TensorView::tokens_first(rows.data() + skipped, topkv::DType::f32,
                                               std::min(some, tokens - t), shape.kv_heads,
                                               shape.head_dim);
      };
      store.append(0, view(0), shape.keys_are_values ? topkv::TensorView() : view(width));
    }
  }
};

/// Whether the blocks that the last token chose are the best, by plain loops.
bool is_right(const Layer& layer, const topkv::IndexQueries& queries,
              const topkv::KeyChoice& choice) {
  const topkv::IndexerShape& of = *layer.shape.indexer;
  const topkv::KeyView keys = layer.store.index_keys(0);
  const std::int64_t heads = of.heads / of.choices;
  const auto blocks = choice.blocks(queries.first, 0);
  std::vector<double> best;
  for (std::int64_t key = 0; key < keys.count; ++key) {
    const auto* k = reinterpret_cast<const float*>(keys.key(key));
    double score = 0;
    for (std::int64_t h = 0; h < heads; ++h) {
      double dot = 0;
      for (std::int64_t j = 0; j < of.dim; ++j) dot += double{queries.data[h * of.dim + j]} * k[j];
      if (of.score == topkv::IndexScore::relu) dot = std::max(dot, 0.0);
      score += dot * (queries.weights == nullptr ? 1.0F : queries.weights[h]);
    }
    if (key % of.block == 0) best.push_back(score);
    best.back() = std::max(best.back(), score);
  }
  std::vector<double> sorted = best;
  const auto kth = sorted.begin() + std::ssize(blocks) - 1;
  std::nth_element(sorted.begin(), kth, sorted.end(), std::greater<>());
  return std::ranges::all_of(blocks, [&](std::int32_t block) {
    return best[static_cast<std::size_t>(block)] >= *kth - 1e-3 ||
           block >= std::ssize(best) - of.local_blocks;
  });
}

void measure(const std::string& name, const topkv::AttentionShape& shape, std::int64_t tokens) {
  const Layer layer(shape, tokens);
  const topkv::IndexerShape& of = *shape.indexer;
  constexpr std::int64_t chunk = 64;
  const auto q = random_floats(chunk * shape.q_heads * shape.head_dim, 3);
  const auto index_q = random_floats(chunk * of.heads * of.dim, 4);
  const auto weights = random_floats(chunk * of.heads, 5);
  topkv::Partial out(chunk * shape.q_heads, shape.head_dim);
  topkv::IndexerAttention indexer(shape);
  const auto queries_of = [&](std::int64_t count) {
    return topkv::TokenQueries{q.data(), count, shape.q_heads, shape.head_dim, tokens - count};
  };
  const auto indexed_of = [&](std::int64_t count) {
    return topkv::IndexQueries{index_q.data(), weights.data(), count, tokens - count};
  };
  const topkv::IndexKeySpan keys{layer.store.index_keys(0)};
  topkv::KeyChoice choice;
  topkv::choose_keys(of, indexed_of(1), keys, choice);
  if (!is_right(layer, indexed_of(1), choice)) {
    fmt::print(stderr, "{}: the choice is wrong: not timed\n", name);
    std::exit(1);
  }
  const double bandwidth = bench::read_bandwidth();
  fmt::print("{}: {} tokens, {} index keys; streaming {:.1f} GB/s\n", name, tokens, keys.count(),
             bandwidth * 1e-9);
  const std::int64_t together = std::min(chunk, topkv::tokens_that_choose(of, keys.count()));
  for (const std::int64_t count : {std::int64_t{1}, together}) {
    const double choosing = bench::median_seconds(5, [&] {
      choice.clear();
      topkv::choose_keys(of, indexed_of(count), keys, choice);
    });
    const topkv::AttentionStep step{
        .layer = 0, .tokens = count, .index_q = index_q.data(), .index_weights = weights.data()};
    const double whole = bench::median_seconds(5, [&] {
      indexer.attend(step, queries_of(count), {.store = layer.store},
                     out.view().part(0, count * shape.q_heads));
    });
    const auto bytes = static_cast<double>(keys.count() * of.key_bytes());
    const auto products = static_cast<double>(count * keys.count() * of.heads * of.dim);
    fmt::print(
        "  {:2} tokens: choice {:8.3f} ms ({:5.1f} GB/s of index keys = {:3.0f} % of streaming, "
        "{:6.1f} GFLOP/s), choice and attention {:8.3f} ms\n",
        count, choosing * 1e3, bytes / choosing * 1e-9, 100 * bytes / choosing / bandwidth,
        2e-9 * products / choosing, whole * 1e3);
  }
  std::vector<topkv::RowSpan> spans;
  for (std::int64_t head = 0; head < shape.kv_heads; ++head)
    spans.push_back({layer.store.rows(0, head)});
  const double dense = bench::median_seconds(3, [&] {
    topkv::attend_few_tokens(shape, queries_of(1), {}, spans, out.view().part(0, shape.q_heads));
  });
  fmt::print("   1 token, dense attention: {:8.3f} ms\n", dense * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t tokens = argc > 1 ? std::atoll(argv[1]) : std::int64_t{1} << 17;
  if (tokens < 4096) {
    fmt::print(stderr, "usage: indexer_bench [tokens]; at least 4096\n");
    return 2;
  }
  fmt::print("{} threads, best SIMD target {}\n", topkv::thread_count(),
             hwy::TargetName(hwy::SupportedTargets() & -hwy::SupportedTargets()));
  measure("DeepSeek-V3.2",
          {.layers = 1,
           .q_heads = 128,
           .kv_heads = 1,
           .head_dim = 576,
           .keys_are_values = true,
           .indexer = topkv::IndexerShape{.dim = 128, .heads = 64, .top = 2048}},
          tokens);
  measure("MiniMax-M3",
          {.layers = 1,
           .q_heads = 64,
           .kv_heads = 4,
           .head_dim = 128,
           .indexer = topkv::IndexerShape{.dim = 128,
                                          .heads = 4,
                                          .choices = 4,
                                          .score = topkv::IndexScore::dot,
                                          .block = 128,
                                          .top = 16,
                                          .local_blocks = 1}},
          tokens);
}
