// Mamba-2 layers as devices compute them, against plain loops in float64: on the host and on a CUDA
// device.
#include "src/device/mamba2.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "src/core/math/convert.h"
#include "src/device/compute_device.h"
#include "tests/support/token_stream.h"

namespace topkv {
namespace {

using ::test::Place;

struct MambaCase {
  std::string device;
  std::string name;
  Mamba2 net;
  bool bias;
};
void PrintTo(const MambaCase& c, std::ostream* out) { *out << c.device << " " << c.name; }

/// What a layer reads, and its weights.
struct MambaText {
  std::vector<float> xbc, dt, kernel, bias, fading, time_bias, skip;
};

MambaText draw_mamba(const MambaCase& c, std::int64_t tokens) {
  const Mamba2& net = c.net;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto values = [&](std::int64_t count, float mean, float spread) {
    std::vector<float> all(static_cast<std::size_t>(count));
    for (float& value : all) value = mean + spread * normal(random);
    return all;
  };
  MambaText text;
  text.xbc = values(tokens * net.input_width(), 0, 1);
  text.dt = values(tokens * net.heads, -1, 2);
  text.kernel = values(net.kernel * net.input_width(), 0, 0.5F);
  if (c.bias) text.bias = values(net.input_width(), 0, 0.5F);
  text.fading = values(net.heads, -0.7F, 0.5F);
  for (float& fading : text.fading) fading = std::min(fading, -0.05F);
  text.time_bias = values(net.heads, 0, 0.5F);
  text.skip = values(net.heads, 1, 0.5F);
  return text;
}

/// The definition of topkv/recurrence.h, token by token.
struct MambaReference {
  std::vector<double> out, state;
};

MambaReference run_mamba_reference(const Mamba2& net, const MambaText& text, std::int64_t tokens) {
  const auto at = [](const auto& values, std::int64_t i) -> double {
    return double{values[static_cast<std::size_t>(i)]};
  };
  const std::int64_t width = net.input_width();
  MambaReference result;
  std::vector<double> matrices(static_cast<std::size_t>(net.state_size() - net.matrices_at()));
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<double> mixed(static_cast<std::size_t>(width));
    for (std::int64_t c = 0; c < width; ++c) {
      double sum = text.bias.empty() ? 0 : at(text.bias, c);
      for (std::int64_t j = 0; j < net.kernel; ++j) {
        const std::int64_t from = t - net.kernel + 1 + j;
        if (from >= 0) sum += at(text.kernel, j * width + c) * at(text.xbc, from * width + c);
      }
      mixed[static_cast<std::size_t>(c)] = sum / (1 + std::exp(-sum));
    }
    for (std::int64_t h = 0; h < net.heads; ++h) {
      const std::int64_t group = h / (net.heads / net.groups);
      const std::int64_t b = net.heads * net.head_dim + group * net.state_dim;
      const std::int64_t c = b + net.groups * net.state_dim;
      const double dt = std::log1p(std::exp(at(text.dt, t * net.heads + h) + at(text.time_bias, h)));
      const double decay = std::exp(dt * at(text.fading, h));
      double* const matrix = matrices.data() + h * net.state_dim * net.head_dim;
      for (std::int64_t i = 0; i < net.head_dim; ++i) {
        const double x = at(mixed, h * net.head_dim + i);
        double out = at(text.skip, h) * x;
        for (std::int64_t n = 0; n < net.state_dim; ++n) {
          double& s = matrix[n * net.head_dim + i];
          s = decay * s + dt * at(mixed, b + n) * x;
          out += at(mixed, c + n) * s;
        }
        result.out.push_back(out);
      }
    }
  }
  for (std::int64_t j = 0; j < net.kernel - 1; ++j) {
    const std::int64_t from = tokens - net.kernel + 1 + j;
    for (std::int64_t c = 0; c < width; ++c)
      result.state.push_back(from < 0 ? 0 : at(text.xbc, from * width + c));
  }
  result.state.insert(result.state.end(), matrices.begin(), matrices.end());
  return result;
}

class Mamba : public testing::TestWithParam<MambaCase> {
 protected:
  void SetUp() override { TOPKV_NEEDS_DEVICE(GetParam().device); }

  struct Given {
    std::vector<float> out, state;
  };

  /// Gives the text in steps of so many tokens, in turn. recorded: the places of the states are
  /// given by a table in the device's memory, as of a step that is replayed.
  static Given run(const MambaText& text, std::int64_t tokens,
                   const std::vector<std::int64_t>& steps, bool recorded = false) {
    const Place place(GetParam().device);
    const Mamba2& net = GetParam().net;
    const Buffer kernel = place.put(text.kernel);
    const Buffer bias = place.put(text.bias.empty() ? std::vector<float>{0} : text.bias);
    const Buffer fading = place.put(text.fading);
    const Buffer time_bias = place.put(text.time_bias);
    const Buffer skip = place.put(text.skip);
    const Buffer states[2] = {place.room(net.state_size()), place.room(net.state_size())};
    const Buffer table = place.room(4);
    Given given;
    std::int64_t turn = 0;
    for (std::int64_t first = 0; first < tokens; ++turn) {
      const std::int64_t count =
          std::min(steps[static_cast<std::size_t>(turn % std::ssize(steps))], tokens - first);
      const auto part = [&](const std::vector<float>& all, std::int64_t width) {
        const auto* from = all.data() + first * width;
        return place.put(std::vector<float>(from, from + count * width));
      };
      const Buffer xbc = part(text.xbc, net.input_width());
      const Buffer dt = part(text.dt, net.heads);
      const Buffer room = place.room(mamba2_room(net, count));
      const Buffer out = place.room(count * net.width());
      Mamba2Step step = {.tokens = count,
                         .xbc = xbc.floats(),
                         .dt = dt.floats(),
                         .kernel = kernel.floats(),
                         .bias = text.bias.empty() ? nullptr : bias.floats(),
                         .fading = fading.floats(),
                         .time_bias = time_bias.floats(),
                         .skip = skip.floats(),
                         .state = turn == 0 ? nullptr : states[turn % 2].floats(),
                         .next_state = states[(turn + 1) % 2].floats(),
                         .room = room.floats(),
                         .out = out.floats()};
      {
        const auto lock = place.compute().lock();
        if (recorded) {
          const float* const both[2] = {step.state, step.next_state};
          place.compute().copy_in(both, sizeof both, table.data());
          step.states = reinterpret_cast<const float* const*>(table.data());
          step.state = nullptr;
          step.next_state = nullptr;
        }
        place.compute().mamba2(net, step);
      }
      const auto outs = place.get(out.floats(), count * net.width());
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
constexpr double near_mamba = 5e-6;

TEST_P(Mamba, IsTheDefinitionInFloat64HoweverTokensAreCut) {
  const Mamba2& net = GetParam().net;
  constexpr std::int64_t tokens = 90;
  const MambaText text = draw_mamba(GetParam(), tokens);
  const MambaReference expected = run_mamba_reference(net, text, tokens);
  for (const auto& steps :
       std::vector<std::vector<std::int64_t>>{{tokens}, {1}, {2, 1}, {16}, {17, 31}, {40, 1, 3}}) {
    const Given given = run(text, tokens, steps);
    EXPECT_LE(distance(given.out, expected.out), near_mamba) << steps.front();
    EXPECT_LE(distance(given.state, expected.state), near_mamba) << steps.front();
  }
}

TEST_P(Mamba, AStepShorterThanTheConvolutionKeepsWhatWasBefore) {
  const Mamba2& net = GetParam().net;
  for (const std::int64_t tokens : {1, 2, 3, 5}) {
    const MambaText text = draw_mamba(GetParam(), tokens);
    const MambaReference expected = run_mamba_reference(net, text, tokens);
    for (const bool recorded : {false, true}) {
      const Given given = run(text, tokens, {1}, recorded);
      EXPECT_LE(distance(given.out, expected.out), near_mamba) << tokens;
      EXPECT_LE(distance(given.state, expected.state), near_mamba) << tokens;
    }
  }
}

// Twice the unit roundoff of an operand, and of the sum in float32.
TEST_P(Mamba, TheGatedNormIsItsDefinitionInFloat64) {
  const Place place(GetParam().device);
  const Mamba2& net = GetParam().net;
  constexpr std::int64_t rows = 21;
  constexpr double epsilon = 1e-2;
  const std::int64_t width = net.width();
  const std::int64_t run = width / net.groups;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> x(static_cast<std::size_t>(rows * width)), gate(x);
  std::vector<float> weight(static_cast<std::size_t>(width));
  for (auto* values : {&x, &gate, &weight})
    for (float& value : *values) value = normal(random);
  gate[0] = -200;  // whose exponential is infinite
  const Buffer on_x = place.put(x);
  const Buffer on_gate = place.put(gate);
  const Buffer on_weight = place.put(weight);
  const Buffer out = place.room(rows * width);
  const DType dtype = place.compute().operand_dtype();
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * width * bytes_of(dtype)));
  {
    const auto lock = place.compute().lock();
    place.compute().norm_gated(on_x.floats(), on_gate.floats(), on_weight.floats(), rows, width,
                               net.groups, static_cast<float>(epsilon), out.data());
    place.compute().copy_out(out.data(), std::ssize(bytes), bytes.data());
  }
  std::vector<float> got(x.size());
  to_float(bytes.data(), dtype, rows * width, got.data());
  const double unit = place.is_cuda() ? 1.0 / (1 << 8) : 2e-6;
  for (std::int64_t r = 0; r < rows * net.groups; ++r) {
    const auto first = static_cast<std::size_t>(r * run);
    std::vector<double> gated;
    double squares = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(run); ++i) {
      const double g = gate[first + i];
      gated.push_back(x[first + i] * g / (1 + std::exp(-g)));
      squares += gated.back() * gated.back();
    }
    const double by = 1 / std::sqrt(squares / static_cast<double>(run) + epsilon);
    for (std::size_t i = 0; i < static_cast<std::size_t>(run); ++i) {
      const double expected = gated[i] * by * weight[(first + i) % static_cast<std::size_t>(width)];
      ASSERT_NEAR(got[first + i], expected, unit * std::abs(expected) + 1e-30);
    }
  }
}

std::vector<MambaCase> mamba_cases() {
  std::vector<MambaCase> all;
  for (const char* device : {"cpu", "cuda"}) {
    const auto add = [&](const char* name, const Mamba2& net, bool bias) {
      all.push_back({device, name, net, bias});
    };
    add("granite", {.heads = 4, .head_dim = 64, .groups = 1, .state_dim = 128, .kernel = 4}, true);
    add("nemotron", {.heads = 8, .head_dim = 80, .groups = 4, .state_dim = 128, .kernel = 4}, true);
    add("small", {.heads = 4, .head_dim = 16, .groups = 2, .state_dim = 24, .kernel = 4}, false);
    add("odd", {.heads = 3, .head_dim = 45, .groups = 3, .state_dim = 33, .kernel = 2}, true);
    add("wide", {.heads = 2, .head_dim = 72, .groups = 1, .state_dim = 256, .kernel = 6}, false);
    add("one", {.heads = 1, .head_dim = 1, .groups = 1, .state_dim = 1, .kernel = 3}, true);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Mamba, testing::ValuesIn(mamba_cases()),
                         [](const auto& one) { return one.param.device + "_" + one.param.name; });

}  // namespace
}  // namespace topkv
