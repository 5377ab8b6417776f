// Gated DeltaNet layers as devices compute them, against plain loops in float64: on the host and on
// a CUDA device.
#include "src/device/gated_delta.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "src/core/math/convert.h"
#include "src/device/compute_device.h"
#include "tests/support/reference.h"
#include "tests/support/token_stream.h"

namespace topkv {
namespace {

using ::test::Place;

struct DeltaCase {
  std::string device;
  std::string name;
  GatedDeltaNet net;
};
void PrintTo(const DeltaCase& c, std::ostream* out) { *out << c.device << " " << c.name; }

/// What a layer reads, and its weights.
struct DeltaText {
  std::vector<float> qkv, gates, kernel, fading, time_bias;
};

DeltaText draw(const GatedDeltaNet& net, std::int64_t tokens) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto values = [&](std::int64_t count, float mean, float spread) {
    std::vector<float> all(static_cast<std::size_t>(count));
    for (float& value : all) value = mean + spread * normal(random);
    return all;
  };
  DeltaText text;
  text.qkv = values(tokens * net.qkv_width(), 0, 1);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (const auto& gates : {values(net.value_heads, 0, 1), values(net.value_heads, -1, 2)})
      text.gates.insert(text.gates.end(), gates.begin(), gates.end());
  }
  text.kernel = values(net.kernel * net.qkv_width(), 0, 0.5F);
  text.fading = values(net.value_heads, -0.5F, 0.2F);
  for (float& fading : text.fading) fading = std::min(fading, -0.01F);
  text.time_bias = values(net.value_heads, 0, 0.5F);
  return text;
}

/// The definition of topkv/recurrence.h, token by token.
struct Reference {
  std::vector<double> out, state;
};

Reference run_reference(const GatedDeltaNet& net, const DeltaText& text, std::int64_t tokens) {
  const auto at = [](const auto& values, std::int64_t i) -> double {
    return double{values[static_cast<std::size_t>(i)]};
  };
  const std::int64_t width = net.qkv_width();
  Reference result;
  std::vector<double> matrices(static_cast<std::size_t>(net.state_size() - net.matrices_at()));
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<double> mixed(static_cast<std::size_t>(width));
    for (std::int64_t c = 0; c < width; ++c) {
      double sum = 0;
      for (std::int64_t j = 0; j < net.kernel; ++j) {
        const std::int64_t from = t - net.kernel + 1 + j;
        if (from >= 0) sum += at(text.kernel, j * width + c) * at(text.qkv, from * width + c);
      }
      mixed[static_cast<std::size_t>(c)] = sum / (1 + std::exp(-sum));
    }
    const auto unit = [&](std::int64_t first) {
      double squares = 0;
      for (std::int64_t i = 0; i < net.key_dim; ++i) squares += std::pow(at(mixed, first + i), 2);
      std::vector<double> head;
      for (std::int64_t i = 0; i < net.key_dim; ++i)
        head.push_back(at(mixed, first + i) / std::sqrt(squares + 1e-6));
      return head;
    };
    for (std::int64_t h = 0; h < net.value_heads; ++h) {
      const std::int64_t key_head =
          net.tiled ? h % net.key_heads : h / (net.value_heads / net.key_heads);
      const auto q = unit(key_head * net.key_dim);
      const auto k = unit(net.key_width() + key_head * net.key_dim);
      const std::int64_t gate = 2 * t * net.value_heads + h;
      const double x = at(text.gates, gate + net.value_heads) + at(text.time_bias, h);
      const double decay = std::exp(at(text.fading, h) * std::log1p(std::exp(x)));
      const double rate = 1 / (1 + std::exp(-at(text.gates, gate)));
      double* const matrix = matrices.data() + h * net.key_dim * net.value_dim;
      for (std::int64_t v = 0; v < net.value_dim; ++v) {
        double seen = 0;
        for (std::int64_t i = 0; i < net.key_dim; ++i) {
          matrix[i * net.value_dim + v] *= decay;
          seen += at(k, i) * matrix[i * net.value_dim + v];
        }
        const double value = at(mixed, 2 * net.key_width() + h * net.value_dim + v);
        double out = 0;
        for (std::int64_t i = 0; i < net.key_dim; ++i) {
          matrix[i * net.value_dim + v] += at(k, i) * rate * (value - seen);
          out += at(q, i) * matrix[i * net.value_dim + v];
        }
        result.out.push_back(out / std::sqrt(static_cast<double>(net.key_dim)));
      }
    }
  }
  for (std::int64_t j = 0; j < net.kernel - 1; ++j) {
    const std::int64_t from = tokens - net.kernel + 1 + j;
    for (std::int64_t c = 0; c < width; ++c)
      result.state.push_back(from < 0 ? 0 : at(text.qkv, from * width + c));
  }
  result.state.insert(result.state.end(), matrices.begin(), matrices.end());
  return result;
}

class GatedDelta : public testing::TestWithParam<DeltaCase> {
 protected:
  void SetUp() override { TOPKV_NEEDS_DEVICE(GetParam().device); }

  struct Given {
    std::vector<float> out, state;
  };

  /// Gives the text in steps of so many tokens, in turn.
  static Given run(const DeltaText& text, std::int64_t tokens,
                   const std::vector<std::int64_t>& steps) {
    const Place place(GetParam().device);
    const GatedDeltaNet& net = GetParam().net;
    const Buffer kernel = place.put(text.kernel);
    const Buffer fading = place.put(text.fading);
    const Buffer time_bias = place.put(text.time_bias);
    const Buffer states[2] = {place.room(net.state_size()), place.room(net.state_size())};
    Given given;
    std::int64_t turn = 0;
    for (std::int64_t first = 0; first < tokens; ++turn) {
      const std::int64_t count =
          std::min(steps[static_cast<std::size_t>(turn % std::ssize(steps))], tokens - first);
      const auto part = [&](const std::vector<float>& all, std::int64_t width) {
        const auto* from = all.data() + first * width;
        return place.put(std::vector<float>(from, from + count * width));
      };
      const Buffer qkv = part(text.qkv, net.qkv_width());
      const Buffer gates = part(text.gates, 2 * net.value_heads);
      const Buffer room = place.room(gated_delta_room(net, count));
      const Buffer out = place.room(count * net.value_width());
      {
        const auto lock = place.compute().lock();
        place.compute().gated_delta(net, {.tokens = count,
                                          .qkv = qkv.floats(),
                                          .gates = gates.floats(),
                                          .kernel = kernel.floats(),
                                          .fading = fading.floats(),
                                          .time_bias = time_bias.floats(),
                                          .state = turn == 0 ? nullptr : states[turn % 2].floats(),
                                          .next_state = states[(turn + 1) % 2].floats(),
                                          .room = room.floats(),
                                          .out = out.floats()});
      }
      const auto outs = place.get(out.floats(), count * net.value_width());
      given.out.insert(given.out.end(), outs.begin(), outs.end());
      first += count;
    }
    given.state = place.get(states[turn % 2].floats(), net.state_size());
    return given;
  }

  /// The largest distance, relative to the largest value.
  static double distance(const std::vector<float>& got, const std::vector<double>& expected) {
    EXPECT_EQ(got.size(), expected.size());
    double most = 0;
    double off = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      most = std::max(most, std::abs(expected[i]));
      const double one = std::abs(got[i] - expected[i]);
      if (!(one <= off)) off = one;
    }
    return off / most;
  }
};

// Rounding errors fade with the state: a few units of float32 remain. A token left out, or one
// whose decay is another's, is off by 1e-2 or more.
constexpr double near_enough = 5e-6;

TEST_P(GatedDelta, IsTheDefinitionInFloat64HoweverTokensAreCut) {
  const GatedDeltaNet& net = GetParam().net;
  constexpr std::int64_t tokens = 90;
  const DeltaText text = draw(net, tokens);
  const Reference expected = run_reference(net, text, tokens);
  for (const auto& steps :
       std::vector<std::vector<std::int64_t>>{{tokens}, {1}, {2, 1}, {16}, {17, 31}, {40, 1, 3}}) {
    const Given given = run(text, tokens, steps);
    EXPECT_LE(distance(given.out, expected.out), near_enough) << steps.front();
    EXPECT_LE(distance(given.state, expected.state), near_enough) << steps.front();
  }
}

TEST_P(GatedDelta, AStepShorterThanTheConvolutionKeepsWhatWasBefore) {
  const GatedDeltaNet& net = GetParam().net;
  for (const std::int64_t tokens : {1, 2, 3, 5}) {
    const DeltaText text = draw(net, tokens);
    const Reference expected = run_reference(net, text, tokens);
    const Given given = run(text, tokens, {1});
    EXPECT_LE(distance(given.out, expected.out), near_enough) << tokens;
    EXPECT_LE(distance(given.state, expected.state), near_enough) << tokens;
  }
}

// A token's gates, recurrence and norm, with the pointers to its states in the device's memory, as
// recorded steps have them. Inputs that are no multiple of 8 take another way on a CUDA device, and
// more than 8,192 are read in turns.
TEST_P(GatedDelta, ATokenFromOperandToOperandIsItsParts) {
  const GatedDeltaNet& net = GetParam().net;
  const Place place(GetParam().device);
  constexpr std::int64_t tokens = 6;
  constexpr float epsilon = 1e-4F;
  const DType dtype = place.compute().operand_dtype();
  const double unit = place.is_cuda() ? 1.0 / (1 << 8) : 1e-6;
  for (const std::int64_t inputs : {16, 20, 4104, 8456}) {
    DeltaText text = draw(net, tokens);
    const auto rows = 2 * net.value_heads;
    const auto weights =
        reference::random_bf16(rows * inputs, 3, 1 / std::sqrt(static_cast<float>(inputs)));
    const auto x = reference::random_bf16(tokens * inputs, 4);
    const auto z = reference::random_floats(tokens * net.value_width(), 5, 2.0F);
    const auto norm = reference::random_floats(net.value_dim, 6);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (std::int64_t i = 0; i < inputs; ++i)
          sum += double{weights[r * inputs + i]} * x[t * inputs + i];
        text.gates[t * rows + r] = static_cast<float>(sum);
      }
    }
    const Reference expected = run_reference(net, text, tokens);

    const Matrix on_host{reinterpret_cast<const std::byte*>(weights.data()), DType::f32, rows,
                         inputs};
    const Buffer gate_room = place.room(rows * inputs);
    const Buffer kernel = place.put(text.kernel);
    const Buffer fading = place.put(text.fading);
    const Buffer time_bias = place.put(text.time_bias);
    const Buffer on_norm = place.put(norm);
    const Buffer states[2] = {place.room(net.state_size()), place.room(net.state_size())};
    const Buffer table = place.room(4);
    const Buffer gates = place.room(rows);
    const Buffer room = place.room(gated_delta_room(net, 1));
    const Buffer inner = place.room(net.value_width());
    const Buffer out = place.room(net.value_width());
    const Buffer operand = place.room(inputs);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto part = [&](const std::vector<float>& all, std::int64_t width) {
        const auto* from = all.data() + t * width;
        return place.put(std::vector<float>(from, from + width));
      };
      const Buffer qkv = part(text.qkv, net.qkv_width());
      const Buffer on_z = part(z, net.value_width());
      const Buffer on_x = part(x, inputs);
      std::vector<std::byte> bytes(static_cast<std::size_t>(net.value_width() * bytes_of(dtype)));
      {
        ComputeDevice& device = place.compute();
        const auto lock = device.lock();
        const Matrix gate_weights = device.upload(on_host, gate_room.data());
        device.to_operand(on_x.floats(), inputs, operand.data());
        const float* const pointers[2] = {t == 0 ? nullptr : states[t % 2].floats(),
                                          states[(t + 1) % 2].floats()};
        device.copy_in(pointers, sizeof pointers, table.data());
        device.gated_delta_token(
            net, {.step = {.qkv = qkv.floats(),
                           .kernel = kernel.floats(),
                           .fading = fading.floats(),
                           .time_bias = time_bias.floats(),
                           .states = reinterpret_cast<const float* const*>(table.data()),
                           .room = room.floats(),
                           .out = inner.floats()},
                  .gate_weights = &gate_weights,
                  .x = operand.data(),
                  .gates = gates.floats(),
                  .z = on_z.floats(),
                  .norm = on_norm.floats(),
                  .epsilon = epsilon,
                  .out = out.data()});
        device.copy_out(out.data(), std::ssize(bytes), bytes.data());
      }
      std::vector<float> got(static_cast<std::size_t>(net.value_width()));
      to_float(bytes.data(), dtype, net.value_width(), got.data());
      for (std::int64_t h = 0; h < net.value_heads; ++h) {
        const double* const head = expected.out.data() + t * net.value_width() + h * net.value_dim;
        double squares = 0;
        for (std::int64_t i = 0; i < net.value_dim; ++i) squares += head[i] * head[i];
        const double by = 1 / std::sqrt(squares / static_cast<double>(net.value_dim) + epsilon);
        for (std::int64_t i = 0; i < net.value_dim; ++i) {
          const std::int64_t at = h * net.value_dim + i;
          const double gate = z[t * net.value_width() + at];
          const double weight = by * norm[i] * gate / (1 + std::exp(-gate));
          const double size = std::sqrt(static_cast<double>(net.value_dim));
          EXPECT_NEAR(
              got[at], head[i] * weight,
              unit * std::abs(head[i] * weight) + 2e-5 * size * std::abs(norm[i] * gate) + 1e-30)
              << inputs << " inputs, token " << t << ", element " << at;
        }
      }
    }
    EXPECT_LE(distance(place.get(states[tokens % 2].floats(), net.state_size()), expected.state),
              4 * near_enough);
  }
}

std::vector<DeltaCase> delta_cases() {
  std::vector<DeltaCase> all;
  for (const char* device : {"cpu", "cuda"}) {
    const auto add = [&](const char* name, const GatedDeltaNet& net) {
      all.push_back({device, name, net});
    };
    add("qwen", {.key_heads = 2, .value_heads = 4, .key_dim = 128, .value_dim = 128, .kernel = 4});
    add("small", {.key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 20, .kernel = 4});
    add("odd", {.key_heads = 1, .value_heads = 3, .key_dim = 33, .value_dim = 45, .kernel = 2});
    add("wide", {.key_heads = 1, .value_heads = 1, .key_dim = 256, .value_dim = 72, .kernel = 6});
    add("tiled", {.key_heads = 3,
                  .value_heads = 6,
                  .key_dim = 32,
                  .value_dim = 40,
                  .kernel = 4,
                  .tiled = true});
    add("one", {.key_heads = 1, .value_heads = 1, .key_dim = 1, .value_dim = 1, .kernel = 3});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Everywhere, GatedDelta, testing::ValuesIn(delta_cases()),
                         [](const auto& one) { return one.param.device + "_" + one.param.name; });

class Gates : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { TOPKV_NEEDS_DEVICE(GetParam()); }
};

// v is bf16's unit roundoff, for operands of a CUDA device.
TEST_P(Gates, AreTheirDefinitionInFloat64) {
  const Place place(GetParam());
  constexpr std::int64_t rows = 37;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 2);
  const double unit = place.is_cuda() ? 1.0 / (1 << 8) : 1e-6;
  for (const std::int64_t width : {1, 20, 128, 300}) {
    const std::int64_t count = rows * width;
    std::vector<float> x(static_cast<std::size_t>(count)), gate(x), pairs(2 * x.size());
    std::vector<float> weight(static_cast<std::size_t>(width));
    for (auto* values : {&x, &gate, &weight, &pairs})
      for (float& value : *values) value = normal(random);
    gate[0] = -200;  // whose exponential is infinite
    const Buffer on_x = place.put(x);
    const Buffer on_gate = place.put(gate);
    const Buffer on_weight = place.put(weight);
    const Buffer on_pairs = place.put(pairs);
    const Buffer normed = place.room(count);
    const Buffer gated = place.room(count);
    const Buffer first = place.room(count);
    const Buffer second = place.room(count);
    {
      const auto lock = place.compute().lock();
      place.compute().gated_norm(on_x.floats(), on_gate.floats(), on_weight.floats(), rows, width,
                                 1e-6F, normed.data());
      place.compute().sigmoid_multiply(on_gate.floats(), on_x.floats(), count, gated.data());
      place.compute().part_pairs(on_pairs.floats(), rows, width, first.floats(), second.floats());
    }
    const DType dtype = place.compute().operand_dtype();
    const auto operand = [&](const Buffer& from) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(count * bytes_of(dtype)));
      const auto lock = place.compute().lock();
      place.compute().copy_out(from.data(), std::ssize(bytes), bytes.data());
      std::vector<float> values(static_cast<std::size_t>(count));
      to_float(bytes.data(), dtype, count, values.data());
      return values;
    };
    const auto got_normed = operand(normed);
    const auto got_gated = operand(gated);
    const auto got_first = place.get(first.floats(), count);
    const auto got_second = place.get(second.floats(), count);
    for (std::int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (std::int64_t i = 0; i < width; ++i)
        squares += std::pow(x[static_cast<std::size_t>(r * width + i)], 2.0);
      const double by = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
      for (std::int64_t i = 0; i < width; ++i) {
        const auto at = static_cast<std::size_t>(r * width + i);
        const double sigmoid = 1 / (1 + std::exp(-double{gate[at]}));
        const double norm = x[at] * by * weight[static_cast<std::size_t>(i)] * gate[at] * sigmoid;
        EXPECT_NEAR(got_normed[at], norm, 2 * unit * std::abs(norm) + 1e-30);
        const double product = x[at] * sigmoid;
        EXPECT_NEAR(got_gated[at], product, 2 * unit * std::abs(product) + 1e-30);
        EXPECT_EQ(got_first[at], pairs[static_cast<std::size_t>(2 * r * width + i)]);
        EXPECT_EQ(got_second[at], pairs[static_cast<std::size_t>((2 * r + 1) * width + i)]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Gates, testing::Values("cpu", "cuda"));

}  // namespace
}  // namespace topkv
