// Mixtures of experts and sinks as devices compute them, against plain loops in float64: on the
// host and on a CUDA device.
//
// u is float32's unit roundoff, 2^-24, and v bf16's, 2^-8.
#include "src/device/host/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "src/core/math/convert.h"
#include "tests/support/packed_case.h"
#include "tests/support/reference.h"
#include "tests/support/token_stream.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Ids = std::vector<std::int32_t>;
using ::test::Place;

constexpr double u = 1.0 / (1 << 24);
constexpr double v = 1.0 / (1 << 8);
constexpr float infinity = std::numeric_limits<float>::infinity();

TEST(SortedSlots, ThoseOfAnExpertStayInTheirOrder) {
  SortedSlots sorted;
  sorted.sort(Ids{2, 0, 2, 3, 0, 2}, 5);
  EXPECT_EQ(sorted.slots, (Ids{1, 4, 0, 2, 5, 3}));
  EXPECT_EQ(sorted.places, (Ids{2, 0, 3, 5, 1, 4}));
  EXPECT_EQ(sorted.ends, (std::vector<std::int64_t>{2, 2, 5, 6, 6}));
  sorted.sort(Ids{}, 2);
  EXPECT_TRUE(sorted.slots.empty());
  EXPECT_EQ(sorted.ends, (std::vector<std::int64_t>{0, 0}));
}

class Experts : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { TOPKV_NEEDS_DEVICE(GetParam()); }

  Buffer ids(const Place& place, const Ids& values) {
    const auto lock = place.compute().lock();
    Buffer buffer = place.room(static_cast<std::int64_t>(values.size()));
    place.compute().copy_in(values.data(), static_cast<std::int64_t>(values.size()) * 4,
                            buffer.data());
    return buffer;
  }
  static std::int32_t* ints(const Buffer& buffer) {
    return reinterpret_cast<std::int32_t*>(buffer.data());
  }
  static Ids get_ids(const Place& place, const Buffer& buffer, std::int64_t count) {
    const auto lock = place.compute().lock();
    Ids values(static_cast<std::size_t>(count));
    place.compute().copy_out(buffer.data(), count * 4, values.data());
    return values;
  }
  /// Values that are exact in bf16, as an operand.
  static Buffer operand(const Place& place, const std::vector<float>& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    const DType dtype = place.compute().operand_dtype();
    std::vector<std::byte> elements(static_cast<std::size_t>(count * bytes_of(dtype)));
    from_float(values.data(), count, dtype, elements.data());
    const auto lock = place.compute().lock();
    Buffer buffer = place.room(count);
    place.compute().copy_in(elements.data(), count * bytes_of(dtype), buffer.data());
    return buffer;
  }
  static std::vector<float> get_operand(const Place& place, const Buffer& buffer,
                                        std::int64_t count) {
    const DType dtype = place.compute().operand_dtype();
    std::vector<std::byte> elements(static_cast<std::size_t>(count * bytes_of(dtype)));
    const auto lock = place.compute().lock();
    place.compute().copy_out(buffer.data(), count * bytes_of(dtype), elements.data());
    std::vector<float> values(static_cast<std::size_t>(count));
    to_float(elements.data(), dtype, count, values.data());
    return values;
  }
};

struct Case {
  std::int64_t experts, k;
};

/// Numbers of experts by score, the highest first, of equal ones the first; NaN is lowest.
Ids in_order(const float* scores, std::int64_t experts) {
  Ids order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](std::int32_t e) { return std::isnan(scores[e]) ? -infinity : scores[e]; };
  std::ranges::stable_sort(order, [&](auto a, auto b) { return value(a) > value(b); });
  return order;
}

struct Choosing {
  std::int64_t experts, k, groups, chosen_groups;
  bool sigmoid, biased, sums_to_one;
  double scale, least_sum;
};

/// What a router's scores make of a token, in float64 and by plain sorting.
struct Chosen {
  Ids ids;
  std::vector<double> weights;
  double lead = 0;  // the least by which a choice leads over the next one
};

Chosen choose(const Choosing& c, const float* scores, const float* bias) {
  std::vector<double> raw(static_cast<std::size_t>(c.experts));
  double all = 0;
  for (std::int64_t e = 0; e < c.experts; ++e) all += std::exp(double{scores[e]});
  for (std::int64_t e = 0; e < c.experts; ++e) {
    const double exponential = std::exp(double{scores[e]});
    raw[static_cast<std::size_t>(e)] =
        c.sigmoid ? exponential / (1 + exponential) : exponential / all;
  }
  // Groups are compared by sums of their best, experts of the best groups by value.
  struct Ranked {
    double value;
    std::int32_t number;
  };
  const auto rank = [](std::vector<Ranked>& list) {
    std::ranges::sort(list, [](const Ranked& a, const Ranked& b) { return a.value > b.value; });
  };
  const std::int64_t size = c.experts / c.groups;
  std::vector<std::vector<Ranked>> members(static_cast<std::size_t>(c.groups));
  for (std::int32_t e = 0; e < c.experts; ++e)
    members[static_cast<std::size_t>(e / size)].push_back(
        {raw[static_cast<std::size_t>(e)] + (c.biased ? double{bias[e]} : 0), e});
  std::vector<Ranked> groups;
  for (std::vector<Ranked>& group : members) {
    rank(group);
    const double second = c.sigmoid && c.groups > 1 ? group[1].value : 0;
    groups.push_back({group[0].value + second, static_cast<std::int32_t>(groups.size())});
  }
  rank(groups);
  Chosen chosen;
  chosen.lead = c.chosen_groups < c.groups
                    ? groups[static_cast<std::size_t>(c.chosen_groups - 1)].value -
                          groups[static_cast<std::size_t>(c.chosen_groups)].value
                    : 1;
  std::vector<Ranked> experts;
  for (std::int64_t g = 0; g < c.chosen_groups; ++g) {
    const auto& group =
        members[static_cast<std::size_t>(groups[static_cast<std::size_t>(g)].number)];
    experts.insert(experts.end(), group.begin(), group.end());
  }
  rank(experts);
  double sum = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(c.k); ++i) {
    if (i + 1 < experts.size())
      chosen.lead = std::min(chosen.lead, experts[i].value - experts[i + 1].value);
    chosen.ids.push_back(experts[i].number);
    sum += raw[static_cast<std::size_t>(experts[i].number)];
  }
  for (const std::int32_t e : chosen.ids)
    chosen.weights.push_back(c.scale * raw[static_cast<std::size_t>(e)] /
                             (c.sums_to_one ? sum + c.least_sum : 1));
  return chosen;
}

// As DeepSeek-V3, GLM-4.7, Nemotron 3, LFM2 and DeepSeek-V2 choose. A sigmoid errs by a few u of
// itself, a sum of n by n u. Where a choice leads by less than float32 can tell it is not compared.
TEST_P(Experts, RouteTakesSigmoidsWithABiasOfTheBestGroups) {
  const Place place(GetParam());
  constexpr double clear = 1e-6;
  for (const Choosing& c : {Choosing{256, 8, 8, 4, true, true, true, 2.5, 1e-20},
                            Choosing{64, 4, 1, 1, true, true, true, 1.8, 1e-20},
                            Choosing{128, 6, 1, 1, true, true, true, 2.5, 1e-20},
                            Choosing{32, 4, 1, 1, true, true, true, 1, 1e-6},
                            Choosing{32, 4, 1, 1, true, false, false, 1.5, 1e-6},
                            Choosing{160, 6, 8, 3, false, false, false, 16, 1e-20},
                            Choosing{24, 4, 12, 3, true, true, false, 1, 1e-20},
                            Choosing{24, 3, 24, 5, false, false, false, 1, 1e-20},
                            Choosing{1024, 16, 64, 40, true, true, true, 0.5, 0.25}}) {
    for (const std::int64_t tokens : {1, 3, 200}) {
      SCOPED_TRACE(testing::Message() << c.k << " of " << c.experts << ", " << c.groups
                                      << " groups, " << tokens << " tokens");
      const auto scores = reference::random_floats(tokens * c.experts, 3, 2.0F);
      const auto bias = reference::random_floats(c.experts, 4, 0.3F);
      const Buffer given = place.put(scores);
      const Buffer on_bias = place.put(bias);
      const Buffer chosen = place.room(tokens * c.k);
      const Buffer shares = place.room(tokens * c.k);
      Routing routing{.experts = c.experts, .k = c.k, .over_all = !c.sigmoid, .sigmoid = c.sigmoid};
      routing.sums_to_one = c.sums_to_one;
      routing.least_sum = static_cast<float>(c.least_sum);
      routing.scale = static_cast<float>(c.scale);
      routing.groups = c.groups;
      routing.chosen_groups = c.chosen_groups;
      routing.choice_bias = c.biased ? on_bias.floats() : nullptr;
      {
        const auto lock = place.compute().lock();
        place.compute().route(given.floats(), tokens, routing, ints(chosen), shares.floats());
      }
      const Ids ids = get_ids(place, chosen, tokens * c.k);
      const auto weights = place.get(shares.floats(), tokens * c.k);
      std::int64_t compared = 0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        const Chosen want =
            choose(c, &scores[static_cast<std::size_t>(t * c.experts)], bias.data());
        if (want.lead < clear) continue;
        ++compared;
        for (std::int64_t i = 0; i < c.k; ++i) {
          const auto at = static_cast<std::size_t>(t * c.k + i);
          ASSERT_EQ(ids[at], want.ids[static_cast<std::size_t>(i)])
              << "token " << t << ", place " << i;
          const double weight = want.weights[static_cast<std::size_t>(i)];
          ASSERT_NEAR(weights[at], weight, (static_cast<double>(c.experts) + 60) * u * weight);
        }
      }
      EXPECT_GE(2 * compared, tokens);
    }
  }
}

// The first of equal groups and experts are chosen. NaN is lowest, and makes its group lowest, too.
TEST_P(Experts, RouteTakesTheFirstOfEqualGroupsAndNamesExpertsWhateverScoresAre) {
  const Place place(GetParam());
  const float nan = std::nanf("");
  const std::vector<float> scores = {
      0,   0,   0,   0,   0,   0,   0,   0,    // all alike
      1,   2,   2,   1,   0,   3,   3,   0,    // the first two groups alike, and above the others
      1,   2,   4,   4,   nan, 9,   nan, nan,  // one number in a group, and none
      nan, nan, nan, nan, nan, nan, nan, nan   // none at all
  };
  const std::vector<Ids> want = {{0, 1, 2}, {1, 2, 0}, {2, 3, 1}, {0, 1, 2}};
  const Buffer given = place.put(scores);
  const Buffer chosen = place.room(12);
  const Buffer shares = place.room(12);
  const Routing routing{.experts = 8, .k = 3, .sigmoid = true, .groups = 4, .chosen_groups = 2};
  {
    const auto lock = place.compute().lock();
    place.compute().route(given.floats(), 4, routing, ints(chosen), shares.floats());
  }
  const Ids ids = get_ids(place, chosen, 12);
  for (std::size_t t = 0; t < want.size(); ++t)
    EXPECT_EQ(Ids(ids.begin() + 3 * t, ids.begin() + 3 * t + 3), want[t]) << "token " << t;
}

TEST_P(Experts, RunsAreCopiedWhereTheyBelong) {
  const Place place(GetParam());
  const RunsCopy runs{.rows = 5,
                      .columns = 3,
                      .width = 7,
                      .from_row = 40,
                      .from_column = 11,
                      .to_row = 8,
                      .to_column = 50};
  const auto from = reference::random_floats(5 * 40, 1);
  const Buffer on_from = place.put(from);
  const Buffer to = place.put(std::vector<float>(150, -1.0F));
  {
    const auto lock = place.compute().lock();
    place.compute().copy_runs(on_from.floats(), runs, to.floats());
  }
  std::vector<float> want(150, -1.0F);
  for (std::int64_t r = 0; r < runs.rows; ++r)
    for (std::int64_t c = 0; c < runs.columns; ++c)
      for (std::int64_t i = 0; i < runs.width; ++i)
        want[static_cast<std::size_t>(r * 8 + c * 50 + i)] =
            from[static_cast<std::size_t>(r * 40 + c * 11 + i)];
  EXPECT_EQ(place.get(to.floats(), 150), want);
}

// An exponential errs by a few u of itself (its argument, a difference, by u of at most 20), the
// sum of n by n u.
TEST_P(Experts, RouteChoosesThoseThatScoreHighestAndWeighsThemBySoftmax) {
  const Place place(GetParam());
  for (const Case& c : {Case{1, 1}, Case{4, 2}, Case{8, 8}, Case{32, 4}, Case{33, 3}, Case{128, 8},
                        Case{1000, 17}, Case{1024, 1024}}) {
    for (const std::int64_t tokens : {1, 5, 300}) {
      if (c.k > 100 && tokens > 5) continue;
      const auto scores = reference::random_floats(tokens * c.experts, 7, 2.0F);
      const Buffer given = place.put(scores);
      const Buffer chosen = place.room(tokens * c.k);
      const Buffer weights = place.room(tokens * c.k);
      for (const bool over_all : {false, true}) {
        SCOPED_TRACE(testing::Message() << c.k << " of " << c.experts << ", " << tokens << " tokens"
                                        << (over_all ? ", over all" : ""));
        {
          const auto lock = place.compute().lock();
          place.compute().route(given.floats(), tokens, {c.experts, c.k, over_all}, ints(chosen),
                                weights.floats());
        }
        const Ids got = get_ids(place, chosen, tokens * c.k);
        const auto got_weights = place.get(weights.floats(), tokens * c.k);
        for (std::int64_t t = 0; t < tokens; ++t) {
          const float* of = scores.data() + t * c.experts;
          const Ids order = in_order(of, c.experts);
          double sum = 0;
          for (std::int64_t j = 0; j < (over_all ? c.experts : c.k); ++j)
            sum += std::exp(double{of[order[j]]} - of[order[0]]);
          for (std::int64_t j = 0; j < c.k; ++j) {
            ASSERT_EQ(got[t * c.k + j], order[j]) << "token " << t << ", choice " << j;
            const double want = std::exp(double{of[order[j]]} - of[order[0]]) / sum;
            ASSERT_NEAR(got_weights[t * c.k + j], want,
                        (static_cast<double>(c.experts) + 40) * u * want);
          }
        }
      }
    }
  }
}

TEST_P(Experts, RouteTakesTheFirstOfEqualScoresAndNamesExpertsWhateverScoresAre) {
  const Place place(GetParam());
  const float nan = std::nanf("");
  const std::vector<std::vector<float>> all = {
      {1, 1, 1, 1, 1},
      {0, 2, 2, 0, 2},
      {-infinity, -infinity, -infinity, -infinity, -infinity},
      {nan, nan, nan, nan, nan},
      {nan, -infinity, 3, nan, 3},
      {infinity, 0, infinity, nan, 1}};
  for (const auto& scores : all) {
    const Buffer given = place.put(scores);
    const Buffer chosen = place.room(4);
    const Buffer weights = place.room(4);
    {
      const auto lock = place.compute().lock();
      place.compute().route(given.floats(), 1, {5, 4, false}, ints(chosen), weights.floats());
    }
    Ids want = in_order(scores.data(), 5);
    want.resize(4);
    EXPECT_EQ(get_ids(place, chosen, 4), want) << scores[0] << ", " << scores[1];
  }
}

TEST_P(Experts, WeightsAreMultipliedByTheScalesOfTheirExperts) {
  const Place place(GetParam());
  constexpr std::int64_t experts = 7;
  for (const std::int64_t slots : {1, 8, 1000}) {
    const auto scales = reference::random_floats(experts, 3, 2.0F);
    const auto before = reference::random_floats(slots, 4);
    const auto scores = reference::random_floats(slots * experts, 5);
    const Buffer given = place.put(scores), factors = place.put(scales);
    const Buffer chosen = place.room(slots), ones = place.room(slots);
    const Buffer weights = place.put(before);
    {
      const auto lock = place.compute().lock();
      place.compute().route(given.floats(), slots, {experts, 1, false}, ints(chosen),
                            ones.floats());
      place.compute().scale_by_expert(factors.floats(), ints(chosen), slots, weights.floats());
    }
    const Ids ids = get_ids(place, chosen, slots);
    const auto got = place.get(weights.floats(), slots);
    for (std::int64_t i = 0; i < slots; ++i)
      ASSERT_EQ(got[i], before[i] * scales[static_cast<std::size_t>(ids[i])]) << i;
  }
}

TEST_P(Experts, ValuesAreAddedAndCleared) {
  const Place place(GetParam());
  for (const std::int64_t count : {1, 31, 4096, 100003}) {
    const auto a = reference::random_floats(count, 6), b = reference::random_floats(count, 7);
    const Buffer x = place.put(a), from = place.put(b);
    {
      const auto lock = place.compute().lock();
      place.compute().add(from.floats(), count, x.floats());
    }
    const auto sum = place.get(x.floats(), count);
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(sum[i], a[i] + b[i]) << i;
    if (count < 2) continue;
    {
      const auto lock = place.compute().lock();
      place.compute().clear(count - 1, x.floats());
    }
    const auto cleared = place.get(x.floats(), count);
    for (std::int64_t i = 0; i < count - 1; ++i) ASSERT_EQ(cleared[i], 0) << i;
    EXPECT_EQ(cleared.back(), sum.back());
  }
}

/// Experts of one form in a device's memory, with their values.
struct Group {
  Buffer memory;
  ExpertMatrices matrices;
  std::vector<std::vector<double>> values, sizes;  // of each, [out, in]
};

Group packed_experts(const Place& place, const packed_case::Case& of, std::int64_t count) {
  Group group;
  const auto lock = place.compute().lock();
  for (std::int64_t e = 0; e < count; ++e) {
    packed_case::Packed packed = packed_case::random_packed(of, static_cast<unsigned>(100 + e));
    const auto bytes = static_cast<std::int64_t>(packed.block.size());
    if (e == 0) {
      group.matrices.stride = (bytes + 255) / 256 * 256;
      group.memory = place.compute().allocate(count * group.matrices.stride, "test");
    }
    std::byte* const at = group.memory.data() + e * group.matrices.stride;
    place.compute().copy_in(packed.block.data(), bytes, at);
    if (e == 0) {
      group.matrices.form = packed.matrix;
      group.matrices.form.data = at;
    }
    group.matrices.data.push_back(at);
    group.values.push_back(packed.values);
    group.sizes.push_back(packed.sizes);
  }
  return group;
}

Group plain_experts(const Place& place, std::int64_t out, std::int64_t in, std::int64_t count) {
  Group group;
  const auto lock = place.compute().lock();
  const std::int64_t bytes = out * in * 2;
  group.matrices.stride = (bytes + 255) / 256 * 256;
  group.memory = place.compute().allocate(count * group.matrices.stride, "test");
  group.matrices.form = {group.memory.data(), DType::bf16, out, in};
  for (std::int64_t e = 0; e < count; ++e) {
    const auto values = reference::random_bf16(out * in, static_cast<unsigned>(200 + e), 0.1F);
    std::vector<std::byte> elements(static_cast<std::size_t>(bytes));
    from_float(values.data(), out * in, DType::bf16, elements.data());
    std::byte* const at = group.memory.data() + e * group.matrices.stride;
    place.compute().copy_in(elements.data(), bytes, at);
    group.matrices.data.push_back(at);
    group.values.emplace_back(values.begin(), values.end());
    group.sizes.emplace_back();
    for (const float x : values) group.sizes.back().push_back(std::abs(double{x}));
  }
  return group;
}

class ExpertProducts : public Experts {
 protected:
  /// Rows one by one, and sorted, of `tokens` tokens, k experts each.
  void expect_products(const Place& place, const Group& group, std::int64_t tokens,
                       std::int64_t k) {
    const Matrix& form = group.matrices.form;
    const std::int64_t count = group.matrices.count();
    const std::int64_t out = form.out_features;
    const std::int64_t in = form.in_features;
    const std::int64_t slots = tokens * k;
    std::mt19937 random(5);
    Ids chosen(static_cast<std::size_t>(slots));
    for (auto& id : chosen) id = static_cast<std::int32_t>(random() % (count - 1));  // not the last
    const auto x = reference::random_bf16(tokens * in, 6);
    const auto biases = reference::random_floats(count * out, 8);
    const Buffer inputs = operand(place, x);
    const Buffer of_slots = ids(place, chosen);
    const Buffer biases_there = place.put(biases);
    SortedSlots sorted;
    sorted.sort(chosen, count);
    const Buffer order = ids(place, sorted.slots);
    const Buffer gathered =
        operand(place, std::vector<float>(static_cast<std::size_t>(slots * in)));
    for (const bool biased : {false, true}) {
      for (const bool in_order : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << tokens << " tokens, " << k << " experts each, [" << out << ", " << in
                     << "] " << packed_case::name_of(form.packing) << (in_order ? ", sorted" : "")
                     << (biased ? ", biased" : ""));
        const Buffer result =
            place.put(std::vector<float>(static_cast<std::size_t>(slots * out), 9.0F));
        {
          const auto lock = place.compute().lock();
          const ExpertProduct product{&group.matrices, biased ? biases_there.floats() : nullptr,
                                      result.floats()};
          if (in_order) {
            place.compute().gather(inputs.data(), ints(order), slots, k, in, gathered.data());
            place.compute().expert_products({&product, 1}, gathered.data(), 1,
                                            {nullptr, slots, sorted.ends});
          } else {
            place.compute().expert_products({&product, 1}, inputs.data(), k,
                                            {ints(of_slots), slots, {}});
          }
        }
        const auto got = place.get(result.floats(), slots * out);
        // As of other products (packed_test.cc): products are exact on a device, sums err by u, or
        // twice that in tensor cores; unpacked weights are rounded.
        const bool unpacked = place.is_cuda() && in_order && form.packed();
        const double each = 2 * static_cast<double>(in + 16) * u + (unpacked ? v : 0);
        for (std::int64_t slot = 0; slot < slots; ++slot) {
          const std::int64_t row = in_order ? sorted.places[slot] : slot;
          const auto& values = group.values[chosen[slot]];
          const auto& sizes = group.sizes[chosen[slot]];
          for (std::int64_t o = 0; o < out; ++o) {
            double sum = biased ? biases[chosen[slot] * out + o] : 0.0;
            double size = std::abs(sum);
            for (std::int64_t i = 0; i < in; ++i) {
              sum += x[slot / k * in + i] * values[o * in + i];
              size += std::abs(x[slot / k * in + i]) * sizes[o * in + i];
            }
            ASSERT_NEAR(got[row * out + o], sum, each * size)
                << "slot " << slot << ", output " << o;
          }
        }
      }
    }
  }
};

TEST_P(ExpertProducts, MatchFloat64ForEveryPackingAndSize) {
  const Place place(GetParam());
  {
    const auto lock = place.compute().lock();
    place.compute().prepare_packed();
  }
  for (const packed_case::Case& of : packed_case::cases()) {
    const Group group = packed_experts(place, of, 5);
    for (const auto& [tokens, k] : {std::pair{1, 1}, {1, 4}, {3, 2}, {20, 3}}) {
      expect_products(place, group, tokens, k);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(ExpertProducts, OfPlainWeightsMatchFloat64) {
  const Place place(GetParam());
  for (const auto& [out, in] : {std::pair{1, 1}, {7, 13}, {33, 40}, {24, 300}, {100, 768}}) {
    const Group group = plain_experts(place, out, in, 6);
    for (const auto& [tokens, k] : {std::pair{1, 1}, {1, 4}, {5, 2}, {40, 3}}) {
      expect_products(place, group, tokens, k);
      if (HasFatalFailure()) return;
    }
  }
}

// Gate and up meet the same inputs, and may have forms of their own.
TEST_P(ExpertProducts, OfSeveralWeightsAreThoseOfEach) {
  const Place place(GetParam());
  const packed_case::Case four{Packing::int4, 40, 384, 128, true};
  for (const packed_case::Case& other : {four, packed_case::Case{Packing::int4, 72, 384, 128, true},
                                         packed_case::Case{Packing::int4, 40, 384, 128, true, true},
                                         packed_case::Case{Packing::fp8, 33, 384, 128, false}}) {
    const Group groups[] = {packed_experts(place, four, 5), packed_experts(place, other, 5)};
    const auto biases = reference::random_floats(5 * other.out, 8);
    const Buffer biases_there = place.put(biases);
    const Buffer inputs = operand(place, reference::random_bf16(3 * 384, 3));
    const Buffer chosen = ids(place, {0, 1, 4, 4, 2, 3});
    const std::int64_t sizes[] = {6 * four.out, 6 * other.out};
    const Buffer alone[] = {place.room(sizes[0]), place.room(sizes[1])};
    const Buffer together[] = {place.room(sizes[0]), place.room(sizes[1])};
    const auto products = [&](const Buffer(&to)[2]) {
      return std::array{ExpertProduct{&groups[0].matrices, nullptr, to[0].floats()},
                        ExpertProduct{&groups[1].matrices, biases_there.floats(), to[1].floats()}};
    };
    const ExpertRows rows{ints(chosen), 6, {}};
    {
      const auto lock = place.compute().lock();
      for (const ExpertProduct& one : products(alone))
        place.compute().expert_products({&one, 1}, inputs.data(), 2, rows);
      place.compute().expert_products(products(together), inputs.data(), 2, rows);
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(place.get(together[i].floats(), sizes[i]), place.get(alone[i].floats(), sizes[i]))
          << packed_case::name_of(other.packing) << ", product " << i;
    }
  }
}

// More slots than a launch takes, of one token and of several.
TEST_P(ExpertProducts, OfManySlotsMatchFloat64) {
  const Place place(GetParam());
  {
    const auto lock = place.compute().lock();
    place.compute().prepare_packed();
  }
  for (const packed_case::Case& of : {packed_case::Case{Packing::int4, 20, 128, 64, true},
                                      {Packing::fp4, 20, 128, 32, false},
                                      {Packing::int4, 20, 128, 64, true, true}}) {
    const Group group = packed_experts(place, of, 5);
    for (const auto& [tokens, k] : {std::pair{1, 150}, {3, 70}, {7, 40}, {150, 1}}) {
      expect_products(place, group, tokens, k);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(ExpertProducts, ARecordedOneReadsTheExpertsThatAreChosenWhenItIsReplayed) {
  const Place place(GetParam());
  const Group group = packed_experts(place, {Packing::fp4, 40, 96, 32, false}, 4);
  const auto x = reference::random_bf16(96, 3);
  const Buffer inputs = operand(place, x);
  const Buffer chosen = ids(place, {0, 1});
  const Buffer result = place.room(2 * 40);
  std::unique_ptr<Recording> recording;
  for (const Ids& now : {Ids{0, 1}, Ids{3, 2}, Ids{2, 2}, Ids{1, 3}}) {
    {
      const auto lock = place.compute().lock();
      place.compute().copy_in(now.data(), 8, chosen.data());
      place.compute().replay(recording, [&] {
        const ExpertProduct product{&group.matrices, nullptr, result.floats()};
        place.compute().expert_products({&product, 1}, inputs.data(), 2, {ints(chosen), 2, {}});
      });
    }
    const auto got = place.get(result.floats(), 2 * 40);
    for (std::int64_t slot = 0; slot < 2; ++slot) {
      for (std::int64_t o = 0; o < 40; ++o) {
        double sum = 0;
        for (std::int64_t i = 0; i < 96; ++i) sum += x[i] * group.values[now[slot]][o * 96 + i];
        ASSERT_NEAR(got[slot * 40 + o], sum, 1e-4) << now[slot] << ", output " << o;
      }
    }
  }
}

TEST_P(Experts, GatherGivesEachSlotTheRowOfItsToken) {
  const Place place(GetParam());
  for (const std::int64_t width : {1, 8, 13, 128, 1000}) {
    const auto x = reference::random_bf16(4 * width, 1);
    const Ids slots = {7, 0, 3, 11, 3, 8};
    const Buffer from = operand(place, x);
    const Buffer order = ids(place, slots);
    const Buffer to =
        operand(place, std::vector<float>(slots.size() * static_cast<std::size_t>(width)));
    {
      const auto lock = place.compute().lock();
      place.compute().gather(from.data(), ints(order), 6, 3, width, to.data());
    }
    const auto got = get_operand(place, to, 6 * width);
    for (std::int64_t i = 0; i < 6 * width; ++i)
      ASSERT_EQ(got[i], x[slots[i / width] / 3 * width + i % width]) << i << " of " << width;
  }
}

// Each of k products and sums errs by u.
TEST_P(Experts, AddWeightedAddsWhatEachExpertGave) {
  const Place place(GetParam());
  for (const std::int64_t k : {1, 2, 8}) {
    for (const std::int64_t tokens : {1, 3, 50}) {
      for (const std::int64_t width : {1, 100, 2880}) {
        const std::int64_t slots = tokens * k;
        const auto from = reference::random_floats(slots * width, 1);
        const auto weights = reference::random_floats(slots, 2);
        const auto before = reference::random_floats(tokens * width, 3);
        Ids places(static_cast<std::size_t>(slots));
        std::iota(places.begin(), places.end(), 0);
        std::ranges::shuffle(places, std::mt19937(4));
        const Buffer from_there = place.put(from);
        const Buffer weights_there = place.put(weights);
        const Buffer places_there = ids(place, places);
        for (const bool moved : {false, true}) {
          const Buffer x = place.put(before);
          {
            const auto lock = place.compute().lock();
            place.compute().add_weighted(from_there.floats(), weights_there.floats(),
                                         moved ? ints(places_there) : nullptr, tokens, k, width,
                                         x.floats());
          }
          const auto got = place.get(x.floats(), tokens * width);
          for (std::int64_t i = 0; i < tokens * width; ++i) {
            double sum = before[i];
            double size = std::abs(sum);
            for (std::int64_t slot = i / width * k; slot < (i / width + 1) * k; ++slot) {
              const std::int64_t row = moved ? places[slot] : slot;
              sum += double{weights[slot]} * from[row * width + i % width];
              size += std::abs(double{weights[slot]} * from[row * width + i % width]);
            }
            ASSERT_NEAR(got[i], sum, static_cast<double>(2 * k) * u * size) << i;
          }
        }
      }
    }
  }
}

// g, u and their clamps are exact; the exponential's argument errs by 2 u of itself, at most 12 or,
// below, where the result is next to nothing, 88.
TEST_P(Experts, ClampedSiluHoldsGateAndUpWithinTheLimit) {
  const Place place(GetParam());
  auto gate = reference::random_floats(5000, 1, 6.0F);
  auto up = reference::random_floats(5000, 2, 6.0F);
  const std::vector<float> edges = {7, 7.5F, -7, -7.5F, 0, 1e30F, -1e30F, -100, infinity, -60};
  for (std::size_t i = 0; i < edges.size() * edges.size(); ++i) {
    gate[i] = edges[i / edges.size()];
    up[i] = edges[i % edges.size()];
  }
  for (const std::int64_t count : {1, 3, 100, 4999, 5000}) {
    const Buffer gate_there = place.put(gate);
    const Buffer up_there = place.put(up);
    const Buffer out = place.room(count);
    {
      const auto lock = place.compute().lock();
      place.compute().clamped_silu_multiply(gate_there.floats(), up_there.floats(), 7, count,
                                            out.data());
    }
    const auto got = get_operand(place, out, count);
    for (std::int64_t i = 0; i < count; ++i) {
      const double g = std::min(double{gate[i]}, 7.0);
      const double want =
          g / (1 + std::exp(-1.702 * g)) * (std::clamp(double{up[i]}, -7.0, 7.0) + 1);
      ASSERT_NEAR(got[i], want, (place.is_cuda() ? v : 60 * u) * std::abs(want) + 1e-6)
          << gate[i] << ", " << up[i];
    }
  }
}

TEST_P(Experts, SinksTakeTheirShareOfEveryHead) {
  const Place place(GetParam());
  for (const auto& [tokens, heads, dim] :
       {std::tuple{1, 1, 1}, {1, 6, 64}, {70, 4, 128}, {3, 5, 80}}) {
    const auto sinks = reference::random_floats(heads, 1, 3.0F);
    auto lse = reference::random_floats(tokens * heads, 2, 5.0F);
    const auto before = reference::random_floats(tokens * heads * dim, 3);
    lse[0] = -infinity;  // no key was seen
    const Buffer sinks_there = place.put(sinks);
    const Buffer lse_there = place.put(lse);
    const Buffer x = place.put(before);
    {
      const auto lock = place.compute().lock();
      place.compute().attend_sinks(sinks_there.floats(), lse_there.floats(), tokens, heads, dim,
                                   x.floats());
    }
    const auto got = place.get(x.floats(), tokens * heads * dim);
    for (std::int64_t i = 0; i < tokens * heads * dim; ++i) {
      // The softmax over the keys, whose exponentials sum to exp(lse), and the sink.
      const double keys = std::exp(double{lse[i / dim]});
      const double share = keys / (keys + std::exp(double{sinks[i / dim % heads]}));
      ASSERT_NEAR(got[i], share * before[i], 60 * u * std::abs(share * before[i])) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Experts, testing::Values("cpu", "cuda"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Devices, ExpertProducts, testing::Values("cpu", "cuda"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace topkv
