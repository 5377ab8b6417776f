#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "src/attention/block_attention.h"
#include "src/core/math/convert.h"
#include "src/core/math/dot.h"
#include "src/core/math/matrix_product.h"
#include "src/core/math/packed_product.h"
#include "src/core/math/vector_math.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/threads.h"
#include "src/device/compute_device.h"
#include "src/device/host/decode.h"
#include "src/device/host/experts.h"
#include "src/device/host/gated_delta.h"
#include "src/device/host/mamba2.h"
#include "src/device/host/prefill.h"
#include "src/device/host/short_convolution.h"

namespace topkv {
namespace {

// Tiles of a larger product: the weights of one tile are widened to float32 and used for
// token_tile tokens, while they are in the second-level cache.
constexpr std::int64_t feature_tile = 128;
constexpr std::int64_t token_tile = 512;
constexpr std::int64_t element_grain = 1 << 14;  // elements a thread takes at a time

class HostDevice final : public ComputeDevice {
 public:
  bool is_cuda() const override { return false; }
  std::string name() const override { return "host"; }
  DeviceMemory memory() const override { return {}; }
  DeviceLock lock() override { return {}; }
  DType operand_dtype() const override { return DType::f32; }
  std::int64_t prefill_chunk() const override { return 2048; }

  std::unique_ptr<PhaseClock> phase_clock() override { return std::make_unique<HostPhaseClock>(); }

  Buffer allocate(std::int64_t bytes, std::string_view /*what*/) override {
    constexpr std::align_val_t alignment{256};
    auto* data =
        static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), alignment));
    return {data, bytes, [](std::byte* memory, std::int64_t) {
              ::operator delete (memory, std::align_val_t{256});
            }};
  }
  std::shared_ptr<StateMemory> make_state(std::int64_t size) override {
    return std::make_shared<HostState>(size);
  }
  void copy_in(const void* host, std::int64_t bytes, std::byte* to) override {
    if (bytes > 0) std::memcpy(to, host, static_cast<std::size_t>(bytes));
  }
  void copy_out(const std::byte* from, std::int64_t bytes, void* host) override {
    if (bytes > 0) std::memcpy(host, from, static_cast<std::size_t>(bytes));
  }
  void synchronize() override {}
  Matrix upload(const Matrix& host, std::byte* /*storage*/) override { return host; }
  std::int64_t upload_bytes(const Matrix& /*host*/) const override { return 0; }

  void embed(const Matrix& table, std::span<const Token> tokens, float* out) override {
    for (std::size_t t = 0; t < tokens.size(); ++t)
      widen_rows(table, tokens[t], 1, out + static_cast<std::int64_t>(t) * table.in_features);
  }

  void matmul(const Matrix& weight, const std::byte* operand, std::int64_t tokens, bool accumulate,
              float* out) override {
    const float* x = floats(operand);
    if (tokens <= few_step_tokens) {
      stream_weights(weight, x, tokens, accumulate, out);
    } else {
      multiply_tiles(weight, x, tokens, accumulate, out);
    }
  }

  void add_bias(const float* bias, std::int64_t rows, std::int64_t width, float* x) override {
    each_row(rows, width, [&](std::int64_t row) { add_to(x + row * width, bias, width); });
  }

  void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t width,
                float epsilon, std::byte* out) override {
    each_row(rows, width, [&](std::int64_t row) {
      topkv::rms_norm(x + row * width, weight, width, epsilon, floats(out) + row * width);
    });
  }

  void add_norm(const float* from, const float* weight, std::int64_t rows, std::int64_t width,
                float epsilon, float* x) override {
    parallel_for(rows, std::max<std::int64_t>(1, element_grain / width),
                 [&](std::int64_t begin, std::int64_t end) {
                   thread_local std::vector<float> normed;
                   normed.resize(static_cast<std::size_t>(width));
                   for (std::int64_t row = begin; row < end; ++row) {
                     topkv::rms_norm(from + row * width, weight, width, epsilon, normed.data());
                     add_to(x + row * width, normed.data(), width);
                   }
                 });
  }

  void head_norm(const float* weight, std::int64_t rows, std::int64_t width, float epsilon,
                 float* x) override {
    each_row(rows, width, [&](std::int64_t row) {
      topkv::rms_norm(x + row * width, weight, width, epsilon, x + row * width);
    });
  }

  void rope(const RopeAngles& angles, std::int64_t tokens, std::int64_t heads,
            std::int64_t head_dim, float* x) override {
    const std::int64_t turned = angles.rotary_dim > 0 ? angles.rotary_dim : head_dim;
    const auto rotate = angles.interleaved ? rotate_pairs : rotate_half;
    each_row(tokens, heads * head_dim, [&](std::int64_t token) {
      for (std::int64_t head = 0; head < heads; ++head) {
        rotate(x + (token * heads + head) * head_dim, turned, angles.cos + token * turned / 2,
               angles.sin + token * turned / 2);
      }
    });
  }

  void silu_multiply(const float* gate, const float* up, std::int64_t count,
                     std::byte* out) override {
    parallel_for(count, element_grain, [&](std::int64_t begin, std::int64_t end) {
      std::copy(gate + begin, gate + end, floats(out) + begin);
      topkv::silu_multiply(floats(out) + begin, up + begin, end - begin);
    });
  }

  void gelu_multiply(const float* gate, const float* up, std::int64_t count,
                     std::byte* out) override {
    parallel_for(count, element_grain, [&](std::int64_t begin, std::int64_t end) {
      std::copy(gate + begin, gate + end, floats(out) + begin);
      topkv::gelu_multiply(floats(out) + begin, up + begin, end - begin);
    });
  }

  void relu_multiply(const float* gate, const float* up, std::int64_t count,
                     std::byte* out) override {
    parallel_for(count, element_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) floats(out)[i] = std::max(gate[i], 0.0F) * up[i];
    });
  }

  void clamped_silu_multiply(const float* gate, const float* up, float limit, std::int64_t count,
                             std::byte* out) override {
    parallel_for(count, element_grain, [&](std::int64_t begin, std::int64_t end) {
      topkv::clamped_silu_multiply(gate + begin, up + begin, limit, end - begin,
                                   floats(out) + begin);
    });
  }

  void attend_sinks(const float* sinks, const float* lse, std::int64_t tokens, std::int64_t heads,
                    std::int64_t head_dim, float* x) override {
    each_row(tokens, heads * head_dim, [&](std::int64_t token) {
      topkv::attend_sinks(sinks, lse + token * heads, heads, head_dim,
                          x + token * heads * head_dim);
    });
  }

  void gated_delta(const GatedDeltaNet& net, const GatedDeltaStep& step) override {
    gated_delta_on_host(net, step);
  }

  void mamba2(const Mamba2& net, const Mamba2Step& step) override { mamba2_on_host(net, step); }

  void norm_gated(const float* x, const float* gate, const float* weight, std::int64_t rows,
                  std::int64_t width, std::int64_t groups, float epsilon, std::byte* out) override {
    const std::int64_t run = width / groups;
    parallel_for(rows * groups, std::max<std::int64_t>(1, element_grain / run),
                 [&](std::int64_t begin, std::int64_t end) {
                   thread_local std::vector<float> gated;
                   gated.resize(static_cast<std::size_t>(run));
                   for (std::int64_t i = begin; i < end; ++i) {
                     std::copy_n(gate + i * run, run, gated.data());
                     topkv::silu_multiply(gated.data(), x + i * run, run);
                     topkv::rms_norm(gated.data(), weight + i % groups * run, run, epsilon,
                                     floats(out) + i * run);
                   }
                 });
  }

  void short_convolution(const ShortConvolution& net, const ShortConvolutionStep& step) override {
    short_convolution_on_host(net, step);
  }

  void gated_norm(const float* x, const float* gate, const float* weight, std::int64_t rows,
                  std::int64_t width, float epsilon, std::byte* out) override {
    parallel_for(rows, std::max<std::int64_t>(1, element_grain / width),
                 [&](std::int64_t begin, std::int64_t end) {
                   thread_local std::vector<float> normed;
                   normed.resize(static_cast<std::size_t>(width));
                   for (std::int64_t row = begin; row < end; ++row) {
                     topkv::rms_norm(x + row * width, weight, width, epsilon, normed.data());
                     float* const to = floats(out) + row * width;
                     std::copy_n(gate + row * width, width, to);
                     topkv::silu_multiply(to, normed.data(), width);
                   }
                 });
  }

  void part_pairs(const float* from, std::int64_t rows, std::int64_t width, float* first,
                  float* second) override {
    each_row(rows, 2 * width, [&](std::int64_t row) {
      std::copy_n(from + 2 * row * width, width, first + row * width);
      std::copy_n(from + (2 * row + 1) * width, width, second + row * width);
    });
  }

  void copy_runs(const float* from, const RunsCopy& runs, float* to) override {
    each_row(runs.rows, runs.columns * runs.width, [&](std::int64_t row) {
      for (std::int64_t c = 0; c < runs.columns; ++c)
        std::copy_n(from + row * runs.from_row + c * runs.from_column, runs.width,
                    to + row * runs.to_row + c * runs.to_column);
    });
  }

  void sigmoid_multiply(const float* gate, const float* x, std::int64_t count,
                        std::byte* out) override {
    parallel_for(count, element_grain, [&](std::int64_t begin, std::int64_t end) {
      topkv::sigmoid_multiply(gate + begin, x + begin, end - begin, floats(out) + begin);
    });
  }

  void scale_rows(const float* weights, std::int64_t rows, std::int64_t width, float* x) override {
    each_row(rows, width, [&](std::int64_t row) {
      scale_by(x + row * width, width, 1 / (1 + std::exp(-weights[row])));
    });
  }

  void route(const float* scores, std::int64_t tokens, const Routing& routing, std::int32_t* ids,
             float* weights) override {
    each_row(tokens, routing.experts * routing.k, [&](std::int64_t token) {
      choose_experts(scores + token * routing.experts, routing, ids + token * routing.k,
                     weights + token * routing.k);
    });
  }

  void expert_products(std::span<const ExpertProduct> all, const std::byte* x, std::int64_t sharing,
                       const ExpertRows& rows) override {
    multiply_each_expert(*this, all, x, sharing, rows);
  }

  void gather(const std::byte* x, const std::int32_t* slots, std::int64_t count,
              std::int64_t sharing, std::int64_t width, std::byte* out) override {
    each_row(count, width, [&](std::int64_t row) {
      std::copy_n(floats(x) + slots[row] / sharing * width, width, floats(out) + row * width);
    });
  }

  void add_weighted(const float* from, const float* weights, const std::int32_t* places,
                    std::int64_t tokens, std::int64_t k, std::int64_t width, float* x) override {
    each_row(tokens, width * k, [&](std::int64_t token) {
      for (std::int64_t slot = token * k; slot < (token + 1) * k; ++slot) {
        const std::int64_t place = places == nullptr ? slot : places[slot];
        add_scaled(x + token * width, weights[slot], from + place * width, width);
      }
    });
  }

  void scale_by_expert(const float* scales, const std::int32_t* ids, std::int64_t slots,
                       float* weights) override {
    for (std::int64_t slot = 0; slot < slots; ++slot) weights[slot] *= scales[ids[slot]];
  }

  void clear(std::int64_t count, float* x) override { std::fill_n(x, count, 0.0F); }

  void add(const float* from, std::int64_t count, float* x) override {
    parallel_for(count, element_grain, [&](std::int64_t begin, std::int64_t end) {
      add_to(x + begin, from + begin, end - begin);
    });
  }

  void copy(const float* from, std::int64_t count, float* to) override {
    std::copy(from, from + count, to);
  }

  void scale(float factor, std::int64_t count, float* x) override { scale_by(x, count, factor); }

  void to_operand(const float* x, std::int64_t count, std::byte* out) override {
    std::copy(x, x + count, floats(out));
  }

  Token argmax(const float* logits, std::int64_t count) override {
    return static_cast<Token>(std::max_element(logits, logits + count) - logits);
  }

  void merge(PartialView into, PartialView other, void* /*stream*/) override {
    topkv::merge(into, other);
  }

  std::unique_ptr<DevicePrefill> prefill_attention(const AttentionShape& shape,
                                                   const PrefillVisibility& visible,
                                                   std::int64_t /*chunk*/,
                                                   const PrefillRows& rows) override {
    return make_host_prefill(shape, visible, rows);
  }
  std::int64_t prefill_attention_bytes(const AttentionShape& /*shape*/,
                                       const PrefillVisibility& /*visible*/, KvDType /*rows*/,
                                       std::int64_t /*chunk*/,
                                       std::int64_t /*tokens*/) const override {
    return 0;
  }
  DecodeBackend decode_backend(const SessionShape& shape) override {
    return make_host_decode(shape);
  }
  std::int64_t decode_backend_bytes(const SessionShape& /*shape*/) const override { return 0; }

 private:
  static float* floats(std::byte* memory) { return reinterpret_cast<float*>(memory); }
  static const float* floats(const std::byte* memory) {
    return reinterpret_cast<const float*>(memory);
  }

  template <class Body>
  static void each_row(std::int64_t rows, std::int64_t width, const Body& body) {
    parallel_for(rows, std::max<std::int64_t>(1, element_grain / width),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) body(row);
                 });
  }

  /// Rows [first, first + rows) as float32.
  static void widen_rows(const Matrix& weight, std::int64_t first, std::int64_t rows, float* out) {
    if (weight.packed()) {
      unpack_rows(weight, first, rows, out);
    } else {
      to_float(weight.data + first * weight.row_bytes(), weight.dtype, rows * weight.in_features,
               out);
    }
  }

  /// A product with few tokens is many inner products with the rows of the weight: of plain ones by
  /// the same kernel that scores keys.
  static void stream_weights(const Matrix& weight, const float* x, std::int64_t tokens,
                             bool accumulate, float* out) {
    thread_local std::vector<float> arranged;
    if (weight.packed()) {
      arranged.resize(static_cast<std::size_t>(tokens * arranged_size(weight)));
      arrange_inputs(weight, x, tokens, arranged.data());
    }
    const float* inputs = arranged.data();
    // Alone: work taken up while waiting might be another product, which would arrange its own.
    parallel_for_alone(weight.out_features,
                       std::max<std::int64_t>(64, element_grain * 4 / weight.in_features),
                       [&](std::int64_t begin, std::int64_t end) {
                         thread_local std::vector<float> scores;
                         const std::int64_t n = end - begin;
                         scores.resize(static_cast<std::size_t>(n * tokens));
                         if (weight.packed()) {
                           packed_dot(weight, begin, n, inputs, tokens, scores.data(), n);
                         } else {
                           dot_block(x, tokens,
                                     {weight.data + begin * weight.row_bytes(), weight.dtype, n,
                                      weight.in_features, weight.row_bytes()},
                                     scores.data(), n);
                         }
                         for (std::int64_t t = 0; t < tokens; ++t) {
                           float* to = out + t * weight.out_features + begin;
                           const float* from = scores.data() + t * n;
                           if (accumulate) {
                             add_to(to, from, n);
                           } else {
                             std::copy(from, from + n, to);
                           }
                         }
                       });
  }

  static void multiply_tiles(const Matrix& weight, const float* x, std::int64_t tokens,
                             bool accumulate, float* out) {
    const std::int64_t in = weight.in_features;
    const std::int64_t feature_tiles = (weight.out_features + feature_tile - 1) / feature_tile;
    const std::int64_t token_tiles = (tokens + token_tile - 1) / token_tile;
    parallel_for(feature_tiles * token_tiles, 1, [&](std::int64_t begin, std::int64_t end) {
      thread_local std::vector<float> widened;
      widened.resize(static_cast<std::size_t>(feature_tile * in));
      for (std::int64_t tile = begin; tile < end; ++tile) {
        check_stop();
        const std::int64_t first = tile / token_tiles * feature_tile;
        const std::int64_t features = std::min(feature_tile, weight.out_features - first);
        const std::int64_t token = tile % token_tiles * token_tile;
        widen_rows(weight, first, features, widened.data());
        matrix_product(Transposed::yes, std::min(token_tile, tokens - token), features, in,
                       x + token * in, in, widened.data(), in, accumulate ? 1.0F : 0.0F,
                       out + token * weight.out_features + first, weight.out_features);
      }
    });
  }
};

}  // namespace

const std::shared_ptr<ComputeDevice>& host_device() {
  static const std::shared_ptr<ComputeDevice> device = std::make_shared<HostDevice>();
  return device;
}

}  // namespace topkv
