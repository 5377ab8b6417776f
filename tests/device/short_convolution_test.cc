// Short convolution layers as devices compute them, against plain loops in float64: on the host and
// on a CUDA device.
#include "src/device/short_convolution.h"

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

struct ConvolutionCase {
  std::string device;
  std::string name;
  ShortConvolution net;
};
void PrintTo(const ConvolutionCase& c, std::ostream* out) { *out << c.device << " " << c.name; }

class ShortConvolutions : public testing::TestWithParam<ConvolutionCase> {
 protected:
  void SetUp() override { TOPKV_NEEDS_DEVICE(GetParam().device); }

  /// What a layer reads, and its weights.
  struct Text {
    std::vector<float> bcx, kernel;
  };
  static Text draw(std::int64_t tokens) {
    const ShortConvolution& net = GetParam().net;
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    Text text;
    text.bcx.resize(static_cast<std::size_t>(tokens * net.input_width()));
    text.kernel.resize(static_cast<std::size_t>(net.kernel * net.width));
    for (auto* values : {&text.bcx, &text.kernel})
      for (float& value : *values) value = normal(random);
    return text;
  }

  /// out: [tokens, width]; state: of the end.
  struct Expected {
    std::vector<double> out, largest, state;
  };
  /// The definition of topkv/recurrence.h. largest: of each output, the sum of what is summed,
  /// without signs, for the bound on rounding errors.
  static Expected run_reference(const Text& text, std::int64_t tokens) {
    const ShortConvolution& net = GetParam().net;
    const auto given = [&](std::int64_t token, std::int64_t part, std::int64_t channel) -> double {
      if (token < 0) return 0;
      return double{text.bcx[static_cast<std::size_t>((3 * token + part) * net.width + channel)]};
    };
    Expected expected;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t c = 0; c < net.width; ++c) {
        double sum = 0;
        double largest = 0;
        for (std::int64_t j = 0; j < net.kernel; ++j) {
          const std::int64_t from = t - net.kernel + 1 + j;
          const double one = double{text.kernel[static_cast<std::size_t>(j * net.width + c)]} *
                             given(from, 0, c) * given(from, 2, c);
          sum += one;
          largest += std::abs(one);
        }
        expected.out.push_back(given(t, 1, c) * sum);
        expected.largest.push_back(std::abs(given(t, 1, c)) * largest);
      }
    }
    for (std::int64_t j = 0; j < net.kernel - 1; ++j) {
      for (std::int64_t c = 0; c < net.width; ++c) {
        const std::int64_t from = tokens - net.kernel + 1 + j;
        expected.state.push_back(given(from, 0, c) * given(from, 2, c));
      }
    }
    return expected;
  }

  struct Given {
    std::vector<float> out, state;
  };
  /// Gives the text in steps of so many tokens, in turn. recorded: the places of the states are
  /// given by a table in the device's memory, as of a step that is replayed.
  static Given run(const Text& text, std::int64_t tokens, const std::vector<std::int64_t>& steps,
                   bool recorded = false) {
    const Place place(GetParam().device);
    const ShortConvolution& net = GetParam().net;
    const Buffer kernel = place.put(text.kernel);
    const Buffer states[2] = {place.room(net.state_size()), place.room(net.state_size())};
    const Buffer table = place.room(4);
    const DType dtype = place.compute().operand_dtype();
    Given given;
    std::int64_t turn = 0;
    for (std::int64_t first = 0; first < tokens; ++turn) {
      const std::int64_t count =
          std::min(steps[static_cast<std::size_t>(turn % std::ssize(steps))], tokens - first);
      const auto* from = text.bcx.data() + first * net.input_width();
      const Buffer bcx = place.put(std::vector<float>(from, from + count * net.input_width()));
      const Buffer out = place.room(count * net.width);
      ShortConvolutionStep step;
      step.tokens = count;
      step.bcx = bcx.floats();
      step.kernel = kernel.floats();
      step.state = turn == 0 ? nullptr : states[turn % 2].floats();
      step.next_state = states[(turn + 1) % 2].floats();
      step.out = out.data();
      std::vector<std::byte> bytes(static_cast<std::size_t>(count * net.width * bytes_of(dtype)));
      {
        const auto lock = place.compute().lock();
        if (recorded) {
          const float* const both[2] = {step.state, step.next_state};
          place.compute().copy_in(both, sizeof both, table.data());
          step.states = reinterpret_cast<const float* const*>(table.data());
          step.state = nullptr;
          step.next_state = nullptr;
        }
        place.compute().short_convolution(net, step);
        place.compute().copy_out(out.data(), std::ssize(bytes), bytes.data());
      }
      std::vector<float> outs(static_cast<std::size_t>(count * net.width));
      to_float(bytes.data(), dtype, std::ssize(outs), outs.data());
      given.out.insert(given.out.end(), outs.begin(), outs.end());
      first += count;
    }
    given.state = place.get(states[turn % 2].floats(), net.state_size());
    return given;
  }

  static void expect_near(const Given& given, const Expected& expected) {
    const bool cuda = GetParam().device == "cuda";
    constexpr double f32 = 1.0 / (1 << 24);
    const double stored = cuda ? 1.0 / (1 << 8) : f32;  // of an operand
    ASSERT_EQ(given.out.size(), expected.out.size());
    const auto terms = static_cast<double>(GetParam().net.kernel + 3);
    for (std::size_t i = 0; i < given.out.size(); ++i) {
      const double bound =
          terms * f32 * expected.largest[i] + stored * std::abs(expected.out[i]) + 1e-30;
      ASSERT_NEAR(given.out[i], expected.out[i], 1.01 * bound) << i;
    }
    ASSERT_EQ(given.state.size(), expected.state.size());
    for (std::size_t i = 0; i < given.state.size(); ++i)
      ASSERT_NEAR(given.state[i], expected.state[i], 1.01 * f32 * std::abs(expected.state[i])) << i;
  }
};

TEST_P(ShortConvolutions, AreTheirDefinitionInFloat64HoweverTokensAreCut) {
  constexpr std::int64_t tokens = 75;
  const Text text = draw(tokens);
  const Expected expected = run_reference(text, tokens);
  for (const auto& steps :
       std::vector<std::vector<std::int64_t>>{{tokens}, {1}, {2, 1}, {16}, {17, 31}, {40, 1, 3}})
    expect_near(run(text, tokens, steps), expected);
}

TEST_P(ShortConvolutions, AStepShorterThanTheConvolutionKeepsWhatWasBefore) {
  for (const std::int64_t tokens : {1, 2, 3, 5}) {
    const Text text = draw(tokens);
    expect_near(run(text, tokens, {1}), run_reference(text, tokens));
    expect_near(run(text, tokens, {1}, true), run_reference(text, tokens));
  }
}

std::vector<ConvolutionCase> convolution_cases() {
  std::vector<ConvolutionCase> all;
  for (const char* device : {"cpu", "cuda"}) {
    all.push_back({device, "lfm2", {.width = 2048, .kernel = 3}});
    all.push_back({device, "odd", {.width = 45, .kernel = 2}});
    all.push_back({device, "long", {.width = 300, .kernel = 7}});
    all.push_back({device, "one", {.width = 1, .kernel = 3}});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Everywhere, ShortConvolutions, testing::ValuesIn(convolution_cases()),
                         [](const auto& one) { return one.param.device + "_" + one.param.name; });

}  // namespace
}  // namespace topkv
