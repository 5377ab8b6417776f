// Squeezed Attention of a question, many tokens that choose together
// (bench/kernels/squeezed_attention.h).
#include <limits>
#include <stdexcept>
#include <thread>

#include "bench/gpu_selection.h"
#include "bench/kernels/squeezed_attention.h"

namespace bench {
namespace {

using topkv::gpu::SqueezedAttention;
using topkv::gpu::SqueezedQueries;

/// Tokens of a question ask for about the same: what a head's queries have in common is of the size
/// of what they have not.
std::vector<float> similar_queries(const Shape& shape, std::int64_t tokens) {
  const std::int64_t width = shape.heads() * shape.head_dim;
  const auto common = normal(width, 41)->read();
  const auto own = normal(tokens * width, 42)->read();
  std::vector<float> all;
  for (std::int64_t i = 0; i < tokens * width; ++i) {
    const float x = __bfloat162float(common[static_cast<std::size_t>(i % width)]) +
                    __bfloat162float(own[static_cast<std::size_t>(i)]);
    all.push_back(__bfloat162float(
        __float2bfloat16(sharpness(i % width / shape.head_dim) * std::sqrt(0.5F) * x)));
  }
  return all;
}

std::vector<__nv_bfloat16> rounded(const std::vector<float>& values) {
  std::vector<__nv_bfloat16> to;
  for (const float x : values) to.push_back(__float2bfloat16(x));
  return to;
}

struct Question {
  Question(const Layers& of, std::int64_t count)
      : layers(of),
        tokens(count),
        host(similar_queries(of.shape, count)),
        data(rounded(host)),
        out(count * of.shape.heads() * of.shape.head_dim),
        lse(count * of.shape.heads()) {}

  SqueezedQueries queries() const {
    const Shape& shape = layers.shape;
    return {data.data(), tokens, shape.head_steps(), shape.group, shape.head_dim, shape.scale()};
  }

  const Layers& layers;
  std::int64_t tokens;
  std::vector<float> host;
  Array<__nv_bfloat16> data;
  Array<float> out, lse;
};

/// Scores of a head, as it is scaled, in float64.
double score(const Question& question, std::int64_t token, std::int64_t head, const float* row) {
  const Shape& shape = question.layers.shape;
  const float* query = question.host.data() + (token * shape.heads() + head) * shape.head_dim;
  double sum = 0;
  for (std::int64_t j = 0; j < shape.head_dim; ++j) sum += double{query[j]} * row[j];
  return sum * shape.scale();
}

/// Importances of a head's clusters, by float64 on all threads.
std::vector<double> importances(const Question& question, std::int64_t head,
                                const std::vector<float>& centroids, const RandomClusters& groups) {
  const Shape& shape = question.layers.shape;
  const int* begin = groups.begin.data() + head / shape.group * (groups.count + 1);
  const std::int64_t parts = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::vector<double>> sums(static_cast<std::size_t>(parts));
  std::vector<std::thread> threads;
  for (std::int64_t part = 0; part < parts; ++part) {
    threads.emplace_back([&, part] {
      std::vector<double>& mine = sums[static_cast<std::size_t>(part)];
      mine.assign(static_cast<std::size_t>(groups.count), 0.0);
      std::vector<double> weights(mine.size());
      for (std::int64_t t = part; t < question.tokens; t += parts) {
        double sum = 0;
        for (std::int64_t c = 0; c < groups.count; ++c) {
          const double weight =
              std::exp(score(question, t, head, centroids.data() + c * shape.head_dim));
          weights[static_cast<std::size_t>(c)] = weight;
          sum += (begin[c + 1] - begin[c]) * weight;
        }
        for (std::size_t c = 0; c < mine.size(); ++c)
          mine[c] += weights[c] / sum / static_cast<double>(question.tokens);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t part = 1; part < sums.size(); ++part) {
    for (std::size_t c = 0; c < sums[0].size(); ++c) sums[0][c] += sums[part][c];
  }
  return sums[0];
}

/// Throws unless a head, without others in its group, has the rows of the clusters above the
/// threshold.
void check_choice(const Question& question, std::int64_t head, const std::vector<double>& wanted,
                  const RandomClusters& groups, double log_threshold,
                  const std::vector<int>& chosen) {
  std::vector<bool> has(static_cast<std::size_t>(question.layers.shape.rows), false);
  for (const int row : chosen) has[static_cast<std::size_t>(row)] = true;
  const int* begin = groups.begin.data() + head * (groups.count + 1);
  const int* members = groups.members.data() + head * groups.rows;
  for (std::int64_t c = 0; c < groups.count; ++c) {
    const double margin = std::log(wanted[static_cast<std::size_t>(c)]) - log_threshold;
    for (int i = begin[c]; std::abs(margin) > 2e-3 && i < begin[c + 1]; ++i) {
      if (has[static_cast<std::size_t>(members[i])] != (margin > 0))
        throw std::runtime_error(
            fmt::format("head {}, cluster {}: {} above the threshold", head, c, margin));
    }
  }
}

/// Throws unless a few tokens' outputs for a head are attention over these rows.
void check_outputs(const Question& question, std::int64_t head, const HostRows& rows,
                   const std::vector<int>& chosen) {
  const Shape& shape = question.layers.shape;
  const std::int64_t d = shape.head_dim;
  for (std::int64_t t = 0; t < question.tokens; t += question.tokens / 5) {
    std::vector<double> want(static_cast<std::size_t>(d), 0.0);
    double sum = 0;
    for (const int row : chosen) {
      const double weight = std::exp(score(question, t, head, rows.keys.data() + row * d));
      sum += weight;
      for (std::int64_t j = 0; j < d; ++j)
        want[static_cast<std::size_t>(j)] +=
            weight * rows.values[static_cast<std::size_t>(row * d + j)];
    }
    const std::vector<float> got = question.out.read((t * shape.heads() + head) * d, d);
    for (std::size_t j = 0; j < want.size(); ++j) {
      if (!(std::abs(got[j] - (sum > 0 ? want[j] / sum : 0)) <= 4 * 0x1p-8))
        throw std::runtime_error(fmt::format("token {}, head {}, element {}: {} for {}", t, head, j,
                                             got[j], want[j] / sum));
    }
  }
}

double time_dense(const Question& question, CudnnAttention& cudnn) {
  const Shape& shape = question.layers.shape;
  const topkv::gpu::CudnnShape wanted{.head_dim = shape.head_dim,
                                      .q_heads = shape.heads(),
                                      .kv_heads = shape.head_steps(),
                                      .tokens = question.tokens,
                                      .rows = shape.rows,
                                      .head_stride = shape.rows * shape.head_dim,
                                      .scale = shape.scale()};
  const Array<__nv_bfloat16> out(question.tokens * shape.heads() * shape.head_dim);
  const Array<float> lse(question.tokens * shape.heads());
  const Array<std::byte> workspace(cudnn.workspace_bytes(wanted));
  const DeviceRows rows = question.layers.rows(0);
  return median_seconds(question.layers.stream, 1, 2, [&](std::int64_t) {
    cudnn.attend(wanted, question.data.data(), rows.keys, rows.values, {out.data(), lse.data()},
                 workspace.data(), question.layers.stream);
  });
}

}  // namespace

void question(const Shape& shape, const std::vector<std::int64_t>& tokens,
              const std::vector<std::pair<int, std::string>>& sparsities, CudnnAttention& cudnn) {
  const Layers layers(shape);
  const RandomClusters groups(shape);
  const auto centroids = normal(shape.head_steps() * groups.count * shape.head_dim, 99);
  const Array<float> scores(shape.heads() * groups.count);
  const Array<int> entries(shape.head_steps() * shape.rows);
  const Array<int> counts(shape.head_steps());
  const ChosenEntries chosen{entries.data(), counts.data(), shape.rows};
  const std::int64_t checked[] = {1, shape.heads() - 1};
  std::vector<HostRows> host_rows;
  for (const std::int64_t head : checked) host_rows.emplace_back(layers, 0, head / shape.group);
  for (const std::int64_t count : tokens) {
    const Question question(layers, count);
    const SqueezedQueries queries = question.queries();
    const Array<float> room(topkv::gpu::weigh_workspace(queries, groups.count));
    const auto weigh = [&](std::int64_t) {
      topkv::gpu::weigh_clusters(queries, centroids->data(), groups.count, groups.count,
                                 groups.device(), room.data(), scores.data(), layers.stream);
    };
    float log_threshold = 0;
    const auto choose = [&](std::int64_t) {
      topkv::gpu::choose_important(scores.data(), layers.head_step_queries(), groups.count,
                                   groups.device(), log_threshold, chosen, layers.stream);
    };
    weigh(0);
    const double pairs = static_cast<double>(count * shape.heads());
    const double dense = time_dense(question, cudnn);
    const double products = 4.0 * static_cast<double>(shape.head_dim) * pairs;
    fmt::print("{}, a question of {} tokens\n  dense: cuDNN {:>44.1f} us, {:.0f} TFLOP/s\n",
               shape.name(), count, 1e6 * dense,
               products * static_cast<double>(shape.rows) / dense / 1e12);
    std::vector<std::vector<double>> wanted;
    for (const std::int64_t head : checked) {
      std::vector<float> of_head;
      const std::int64_t width = groups.count * shape.head_dim;
      for (const __nv_bfloat16 x : centroids->read(head / shape.group * width, width))
        of_head.push_back(__bfloat162float(x));
      wanted.push_back(importances(question, head, of_head, groups));
    }
    for (const auto& [sparsity, paper] : sparsities) {
      const double rows = find_threshold(
          shape, sparsity, counts,
          [&](float threshold) {
            log_threshold = threshold;
            choose(0);
          },
          log_threshold);
      const std::vector<int> listed = counts.read();
      const std::int64_t piece_rows = shape.rows > (1 << 18) ? 8192 : 4096;
      SqueezedAttention attention(cudnn, {.tokens = count,
                                          .head_steps = shape.head_steps(),
                                          .group = shape.group,
                                          .head_dim = shape.head_dim,
                                          .scale = shape.scale(),
                                          .rows = shape.rows,
                                          .piece_rows = piece_rows});
      const Array<std::byte> attention_room(attention.workspace_bytes());
      const auto attend = [&](std::int64_t) {
        attention.attend(queries, layers.rows(0), chosen,
                         {question.out.data(), question.lse.data()}, Into::overwrite,
                         attention_room.data(), layers.stream);
      };
      attend(0);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const std::int64_t head = checked[i];
        const std::int64_t head_step = head / shape.group;
        const std::vector<int> some =
            entries.read(head_step * shape.rows, listed[static_cast<std::size_t>(head_step)]);
        if (shape.group == 1) check_choice(question, head, wanted[i], groups, log_threshold, some);
        check_outputs(question, head, host_rows[i], some);
      }
      const auto seconds = [&](const std::function<void(std::int64_t)>& work) {
        return median_seconds(layers.stream, 1, 1, work);
      };
      const double all = seconds([&](std::int64_t) {
        weigh(0);
        choose(0);
        attend(0);
      });
      const double weighing = seconds(weigh);
      const double attending = seconds(attend);
      const auto [least, most] = std::minmax_element(listed.begin(), listed.end());
      fmt::print(
          "  squeezed, 5 % centroids, {:.0f} % left out {:>8.1f} us  {:>5.2f}x dense; paper: {}; "
          "{} "
          "to {} rows of a head; alone: importances {:.1f} ({:.0f} TFLOP/s), choice {:.1f}, "
          "attention {:.1f} ({:.0f} TFLOP/s), in {:.2f} GiB\n",
          100 - 100 * rows / static_cast<double>(shape.head_steps() * shape.rows), 1e6 * all,
          dense / all, paper, *least, *most, 1e6 * weighing,
          products * static_cast<double>(groups.count) / weighing / 1e12, 1e6 * seconds(choose),
          1e6 * attending,
          products / static_cast<double>(shape.head_steps()) * rows / attending / 1e12,
          static_cast<double>(attention.workspace_bytes()) / (1 << 30));
    }
  }
}

}  // namespace bench
