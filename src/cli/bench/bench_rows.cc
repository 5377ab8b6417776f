#include "src/cli/bench/bench_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

#include "src/core/math/convert.h"
#include "src/core/threads/threads.h"

namespace topkv::cli {
namespace {

constexpr std::int64_t piece_tokens = 65536;  // generated at a time: 64 MiB for 4 heads of 128
constexpr std::int64_t first_tokens = 4;
constexpr std::int64_t heavy_every = 1024;
constexpr std::int64_t active_clusters = 64;
constexpr std::int64_t turn_tokens = std::int64_t{1} << 20;
constexpr float noise_of_keys = 0.7F;
constexpr float noise_of_queries = 0.5F;
constexpr float attraction = 0.8F;

// What a stream of random numbers is for.
enum class Use : std::uint64_t { offset, attractor, from, to, noise, value, cluster, aim, query };

// The finaliser of SplitMix64 (Steele et al. 2014): turns a counter into random bits.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

std::uint64_t stream_of(std::uint64_t stream, Use use, std::int64_t number) {
  return mix(mix(stream ^ (static_cast<std::uint64_t>(use) << 56U)) +
             static_cast<std::uint64_t>(number));
}

/// The normal distribution's quantiles in the middles of 4096 equal parts: one lookup gives a
/// variate, none beyond 3.7.
const std::array<float, 4096>& normal_quantiles() {
  static const std::array<float, 4096> table = [] {
    std::array<float, 4096> quantiles{};
    for (std::size_t i = 0; i < quantiles.size(); ++i) {
      const double wanted = (static_cast<double>(i) + 0.5) / 4096;
      double low = -8;
      double high = 8;
      for (int step = 0; step < 60; ++step) {
        const double middle = (low + high) / 2;
        const bool below = 0.5 * std::erfc(-middle / std::numbers::sqrt2) < wanted;
        (below ? low : high) = middle;
      }
      quantiles[i] = static_cast<float>(low);
    }
    return quantiles;
  }();
  return table;
}

/// count standard normal numbers of a stream.
void normals(std::uint64_t stream, std::int64_t count, float* out) {
  const float* table = normal_quantiles().data();
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const std::uint64_t bits = mix(stream + static_cast<std::uint64_t>(i));
    out[i] = table[bits & 4095U];
    out[i + 1] = table[(bits >> 16U) & 4095U];
    out[i + 2] = table[(bits >> 32U) & 4095U];
    out[i + 3] = table[(bits >> 48U) & 4095U];
  }
  for (; i < count; ++i) out[i] = table[mix(stream + static_cast<std::uint64_t>(i)) & 4095U];
}

float sharpness_of(LayerKind kind) {
  switch (kind) {
    case LayerKind::diffuse:
      return 0.1F;
    case LayerKind::broad:
      return 0.8F;
    case LayerKind::focused:
      return 1.3F;
  }
  return 0;
}

}  // namespace

LayerKind kind_of_layer(std::int64_t layer) {
  if (layer == 0) return LayerKind::diffuse;
  return layer % 2 == 1 ? LayerKind::broad : LayerKind::focused;
}

std::string_view name_of(LayerKind kind) {
  constexpr std::array<std::string_view, 3> names = {"diffuse", "broad", "focused"};
  return names[static_cast<std::size_t>(kind)];
}

BenchLayer::BenchLayer(const AttentionShape& shape, std::int64_t layer, std::uint64_t seed)
    : head_dim_(shape.head_dim),
      group_(shape.group()),
      sharpness_(sharpness_of(kind_of_layer(layer))),
      heads_(static_cast<std::size_t>(shape.kv_heads)) {
  const std::int64_t d = head_dim_;
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    Head& head = heads_[h];
    head.stream = mix(mix(mix(seed) + static_cast<std::uint64_t>(layer)) + h);
    head.offset.resize(static_cast<std::size_t>(d));
    normals(stream_of(head.stream, Use::offset, 0), d, head.offset.data());
    // One channel in 16 is large: about as much norm as all that varies.
    for (std::int64_t j = 0; j < d; ++j) {
      const bool large = mix(stream_of(head.stream, Use::offset, 1 + j)) % 16 == 0;
      head.offset[static_cast<std::size_t>(j)] *= large ? 6.0F : 0.5F;
    }
    head.attractor.resize(static_cast<std::size_t>(d));
    normals(stream_of(head.stream, Use::attractor, 0), d, head.attractor.data());
    head.from.resize(static_cast<std::size_t>(clusters * d));
    head.to.resize(static_cast<std::size_t>(clusters * d));
    normals(stream_of(head.stream, Use::from, 0), clusters * d, head.from.data());
    normals(stream_of(head.stream, Use::to, 0), clusters * d, head.to.data());
  }
}

std::int64_t BenchLayer::cluster_of(const Head& head, std::int64_t token) const {
  const std::uint64_t bits = stream_of(head.stream, Use::cluster, token);
  const auto drawn = static_cast<std::int64_t>((bits >> 8U) % clusters);
  const std::int64_t stretch = token / era * 5;  // which clusters are in use moves on
  return bits % 8 == 0 ? drawn : (stretch + drawn % active_clusters) % clusters;
}

void BenchLayer::centre(const Head& head, std::int64_t cluster, std::int64_t token,
                        float* out) const {
  const double angle = std::numbers::pi / 2 * static_cast<double>(token / era * era) / turn_tokens;
  const auto c = static_cast<float>(std::cos(angle));
  const auto s = static_cast<float>(std::sin(angle));
  const float* from = head.from.data() + cluster * head_dim_;
  const float* to = head.to.data() + cluster * head_dim_;
  for (std::int64_t j = 0; j < head_dim_; ++j) out[j] = c * from[j] + s * to[j];
}

void BenchLayer::key(const Head& head, std::int64_t token, const float* centre, float* scratch,
                     float* out) const {
  const std::int64_t d = head_dim_;
  normals(stream_of(head.stream, Use::noise, token), d, scratch);
  const float* offset = head.offset.data();
  for (std::int64_t j = 0; j < d; ++j) out[j] = offset[j] + centre[j] + noise_of_keys * scratch[j];
  const bool first = token < first_tokens;
  if (first || stream_of(head.stream, Use::cluster, ~token) % heavy_every == 0) {
    const float pull = first ? 2.0F : 1.0F;
    for (std::int64_t j = 0; j < d; ++j) {
      out[j] += pull * head.attractor[static_cast<std::size_t>(j)];
    }
  }
}

void BenchLayer::fill(std::int64_t begin, std::int64_t count, std::byte* keys,
                      std::byte* values) const {
  const std::int64_t d = head_dim_;
  const std::int64_t row = d * bytes_of(DType::bf16);
  const std::int64_t first = begin / era;
  const std::int64_t eras = count > 0 ? (begin + count - 1) / era - first + 1 : 0;
  const auto kv_heads = static_cast<std::int64_t>(heads_.size());
  parallel_for(kv_heads * eras, 1, [&](std::int64_t part, std::int64_t parts_end) {
    std::vector<float> centres(static_cast<std::size_t>(clusters * d));
    std::vector<float> scratch(static_cast<std::size_t>(2 * d));
    for (; part < parts_end; ++part) {
      const Head& head = heads_[static_cast<std::size_t>(part / eras)];
      const std::int64_t at = (first + part % eras) * era;
      for (std::int64_t c = 0; c < clusters; ++c) centre(head, c, at, centres.data() + c * d);
      const std::int64_t from = std::max(at, begin);
      const std::int64_t to = std::min(at + era, begin + count);
      for (std::int64_t token = from; token < to; ++token) {
        const std::int64_t slot = part / eras * count + token - begin;
        key(head, token, centres.data() + cluster_of(head, token) * d, scratch.data(),
            scratch.data() + d);
        from_float(scratch.data() + d, d, DType::bf16, keys + slot * row);
        normals(stream_of(head.stream, Use::value, token), d, scratch.data());
        from_float(scratch.data(), d, DType::bf16, values + slot * row);
      }
    }
  });
}

void BenchLayer::fill_float(std::int64_t begin, std::int64_t count, float* keys,
                            float* values) const {
  const std::int64_t d = head_dim_;
  const auto kv_heads = static_cast<std::int64_t>(heads_.size());
  const auto bytes = static_cast<std::size_t>(kv_heads * count * d * bytes_of(DType::bf16));
  std::vector<std::byte> stored_keys(bytes);
  std::vector<std::byte> stored_values(bytes);
  fill(begin, count, stored_keys.data(), stored_values.data());
  for (std::int64_t token = 0; token < count; ++token) {
    for (std::int64_t head = 0; head < kv_heads; ++head) {
      const std::int64_t from = (head * count + token) * d * bytes_of(DType::bf16);
      const std::int64_t to = (token * kv_heads + head) * d;
      to_float(stored_keys.data() + from, DType::bf16, d, keys + to);
      to_float(stored_values.data() + from, DType::bf16, d, values + to);
    }
  }
}

void BenchLayer::queries(std::int64_t step, std::int64_t tokens, float* out) const {
  const std::int64_t d = head_dim_;
  std::vector<float> noise(static_cast<std::size_t>(d));
  const auto q_heads = static_cast<std::int64_t>(heads_.size()) * group_;
  for (std::int64_t q = 0; q < q_heads; ++q) {
    const Head& head = heads_[static_cast<std::size_t>(q / group_)];
    const std::int64_t number = step * group_ + q % group_;
    const auto aim =
        static_cast<std::int64_t>(stream_of(head.stream, Use::aim, number) %
                                  static_cast<std::uint64_t>(std::max<std::int64_t>(tokens, 1)));
    float* query = out + q * d;
    centre(head, cluster_of(head, aim), aim, query);
    normals(stream_of(head.stream, Use::query, number), d, noise.data());
    for (std::int64_t j = 0; j < d; ++j) {
      const auto i = static_cast<std::size_t>(j);
      query[j] =
          sharpness_ * (query[j] + noise_of_queries * noise[i] + attraction * head.attractor[i]);
    }
  }
}

std::vector<BenchLayer> bench_layers(const AttentionShape& shape, std::uint64_t seed) {
  std::vector<BenchLayer> layers;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    layers.emplace_back(shape, layer, seed);
  }
  return layers;
}

void append_rows(ContextBuilder& builder, const std::vector<BenchLayer>& layers,
                 std::int64_t tokens, const ProgressFn& progress) {
  const AttentionShape& shape = builder.shape();
  const std::int64_t piece = std::min(tokens, piece_tokens);
  const auto bytes =
      static_cast<std::size_t>(shape.kv_heads * piece * shape.head_dim * bytes_of(DType::bf16));
  std::vector<std::byte> keys(bytes);
  std::vector<std::byte> values(bytes);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    for (std::int64_t at = builder.tokens(layer); at < tokens; at = builder.tokens(layer)) {
      const std::int64_t count = std::min(piece, tokens - at);
      layers[static_cast<std::size_t>(layer)].fill(at, count, keys.data(), values.data());
      const auto view = [&](const std::vector<std::byte>& data) {
        return TensorView::heads_first(data.data(), DType::bf16, count, shape.kv_heads,
                                       shape.head_dim);
      };
      builder.append(layer, view(keys), view(values));
      if (progress)
        progress({"rows", "tokens", layer * tokens + at + count, shape.layers * tokens});
    }
  }
}

}  // namespace topkv::cli
