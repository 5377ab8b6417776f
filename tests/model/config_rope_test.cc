// RoPE of a config.json: which scaling, which length it is for, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

using Json = nlohmann::json;
using RopeKind = RopeScaling::Kind;

class ConfigRope : public testing::Test {
 protected:
  ModelConfig load(const Json& changes, std::int64_t length = 0) {
    Json config = {{"model_type", "llama"},    {"vocab_size", 100},
                   {"hidden_size", 64},        {"intermediate_size", 128},
                   {"num_hidden_layers", 4},   {"num_attention_heads", 8},
                   {"num_key_value_heads", 2}, {"max_position_embeddings", 4096}};
    config.update(changes);
    temp.write("config.json", config.dump());
    return ModelConfig::load(temp.path(), length);
  }
  ModelConfig load_scaling(const Json& scaling, std::int64_t length = 0) {
    return load({{"rope_scaling", scaling}}, length);
  }
  std::string file() const { return (temp.path() / "config.json").string(); }
  TempDirectory temp;
};

Json with(Json object, const char* key, const Json& value) {
  object[key] = value;
  return object;
}
Json without(Json object, const char* key) {
  object.erase(key);
  return object;
}

const Json yarn = {
    {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 4096}};
const Json dynamic = {{"rope_type", "dynamic"}, {"factor", 4.0}};
const Json longrope = {{"rope_type", "longrope"},
                       {"original_max_position_embeddings", 1024},
                       {"short_factor", {1.0, 1.1, 1.2, 1.3}},
                       {"long_factor", {1.0, 2.0, 3.0, 4.0}}};

TEST_F(ConfigRope, YarnHasTheDefaultsOfTransformers) {
  const ModelConfig config = load_scaling(yarn);
  EXPECT_EQ(config.rope_scaling.kind, RopeKind::yarn);
  EXPECT_EQ(config.rope_scaling.factor, 4);
  EXPECT_EQ(config.rope_scaling.beta_fast, 32);
  EXPECT_EQ(config.rope_scaling.beta_slow, 1);
  EXPECT_TRUE(config.rope_scaling.truncate);
  EXPECT_DOUBLE_EQ(config.rope_scaling.attention_factor, 0.1 * std::log(4.0) + 1);
  EXPECT_EQ(config.reach(), 16384);
  EXPECT_EQ(config.length, 16384);
  EXPECT_TRUE(config.warnings.empty());
}

TEST_F(ConfigRope, YarnsAttentionFactorIsGivenOrFollowsMscale) {
  const auto factor = [&](const Json& scaling) {
    return load_scaling(scaling).rope_scaling.attention_factor;
  };
  Json both = yarn;
  both["mscale"] = 2.0;
  both["mscale_all_dim"] = 0.5;
  EXPECT_DOUBLE_EQ(factor(both), (0.2 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1));
  EXPECT_DOUBLE_EQ(factor(with(yarn, "mscale", 2.0)), 0.1 * std::log(4.0) + 1);
  EXPECT_DOUBLE_EQ(factor(with(both, "attention_factor", 1.25)), 1.25);
  EXPECT_EQ(factor(with(yarn, "factor", 0.5)), 1);
  EXPECT_TRUE(load_scaling(both).warnings.empty());
}

TEST_F(ConfigRope, YarnsFactorMayBeNullButNotMissing) {
  EXPECT_EQ(load({{"rope_scaling", with(yarn, "factor", nullptr)},
                  {"max_position_embeddings", 32768}})
                .rope_scaling.factor,
            8);
  expect_error<FileError>([&] { load_scaling(without(yarn, "factor")); }, file() + ": ",
                          {"rope_scaling.factor is missing"});
}

TEST_F(ConfigRope, LongRopeTakesItsFactorsByTheLengthThatIsMeant) {
  using Factors = std::vector<double>;
  const Factors short_ones = {1.0, 1.1, 1.2, 1.3};
  const Factors long_ones = {1, 2, 3, 4};
  struct Case {
    std::int64_t length;
    Factors factors;
    std::int64_t reach;
  };
  for (const Case& c : {Case{0, long_ones, 4096}, Case{1, short_ones, 1024},
                        Case{1024, short_ones, 1024}, Case{1025, long_ones, 4096},
                        Case{100000, long_ones, 4096}}) {
    SCOPED_TRACE(c.length);
    const ModelConfig config = load_scaling(longrope, c.length);
    EXPECT_EQ(config.rope_scaling.kind, RopeKind::longrope);
    EXPECT_EQ(config.rope_scaling.pair_factors, c.factors);
    EXPECT_EQ(config.reach(), c.reach);
    EXPECT_EQ(config.length, c.length == 0 ? 4096 : c.length);
    EXPECT_DOUBLE_EQ(config.rope_scaling.attention_factor,
                     std::sqrt(1 + std::log(4.0) / std::log(1024.0)));
    EXPECT_TRUE(config.warnings.empty());
  }
  EXPECT_NE(load_scaling(longrope, 1024).beyond_reach(1025).find("short factors"),
            std::string::npos);
  EXPECT_EQ(load_scaling(with(longrope, "factor", 16)).reach(), 16384);
}

TEST_F(ConfigRope, DynamicNtkGrowsThetaForTheLengthThatIsMeant) {
  const auto grown = [](double stretch) { return std::pow(4 * stretch - 3, 8.0 / 6.0); };
  ModelConfig config = load_scaling(dynamic);
  EXPECT_DOUBLE_EQ(config.rope_scaling.theta_factor, grown(4));
  EXPECT_EQ(config.reach(), 16384);
  config = load_scaling(dynamic, 8192);
  EXPECT_DOUBLE_EQ(config.rope_scaling.theta_factor, grown(2));
  EXPECT_EQ(config.reach(), 8192);
  config = load_scaling(dynamic, 100);
  EXPECT_EQ(config.rope_scaling.theta_factor, 1);
  EXPECT_EQ(config.reach(), 4096);
}

TEST_F(ConfigRope, OtherScalingsDoNotDependOnTheLength) {
  for (const char* type : {"default", "linear", "yarn"}) {
    const Json scaling = {{"rope_type", type}, {"factor", 2}};
    const ModelConfig one = load_scaling(scaling);
    const ModelConfig other = load_scaling(scaling, 77);
    EXPECT_EQ(one.rope_scaling.factor, other.rope_scaling.factor);
    EXPECT_EQ(one.reach(), other.reach());
  }
}

TEST_F(ConfigRope, AbsurdScalingsAreRefused) {
  struct Case {
    Json scaling;
    std::vector<std::string_view> says;
  };
  const Json numbers = Json::array_t(4, 1.0);
  const std::vector<Case> cases = {
      {with(yarn, "factor", 0), {"rope_scaling.factor is 0"}},
      {with(yarn, "factor", 1e300), {"rope_scaling.factor is 1e+300"}},
      {with(yarn, "attention_factor", 0), {"attention_factor is 0"}},
      {with(yarn, "attention_factor", -1), {"attention_factor is -1"}},
      {with(yarn, "mscale", "1"), {"mscale is \"1\""}},
      {with(yarn, "beta_fast", -32), {"beta_fast is -32"}},
      {with(yarn, "beta_slow", 1e10), {"beta_slow is 1"}},
      {with(yarn, "truncate", 1), {"truncate is 1", "true or false"}},
      {with(yarn, "original_max_position_embeddings", 0), {"is 0", "from 1"}},
      {with(yarn, "rope_theta", 1), {"rope_scaling.rope_theta is 1", "more than 1"}},
      {with(dynamic, "factor", 0.5), {"factor is 0.5", "from 1"}},
      {without(dynamic, "factor"), {"factor is missing"}},
      {without(longrope, "long_factor"), {"long_factor is missing", "4 numbers"}},
      {with(longrope, "short_factor", 1.5), {"short_factor is 1.5"}},
      {with(longrope, "short_factor", Json::array_t(3, 1.0)), {"short_factor is [1.0,1.0,1.0]"}},
      {with(longrope, "long_factor", Json::array_t(99999, 1.0)),
       {"long_factor is an", "4 numbers"}},
      {with(longrope, "long_factor", {1, 1, 1, 0}), {"long_factor is [1,1,1,0]"}},
      {with(longrope, "long_factor", {1, 1, 1, -2}), {"long_factor is [1,1,1,-2]"}},
      {with(longrope, "long_factor", {1, 1, 1, "2"}), {"long_factor is [1,1,1,\"2\"]"}},
      {with(longrope, "long_factor", {1, 1, 1, 1e300}), {"long_factor is [1,1,1,1e+300]"}},
      {with(longrope, "original_max_position_embeddings", 1), {"is 1", "from 2"}},
      {with(longrope, "attention_factor", 1e300), {"attention_factor is 1e+300"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.scaling.dump().substr(0, 200));
    expect_error<FileError>([&] { load_scaling(c.scaling); }, file() + ": ", c.says);
  }
  expect_error<Unsupported>(
      [&] {
        load({{"rope_scaling", dynamic}, {"head_dim", 2}});
      },
      file() + ": ", {"rope_scaling.rope_type is \"dynamic\""});
  EXPECT_THROW(load(Json::object(), -1), InvalidArgument);
  EXPECT_THROW(load(Json::object(), INT64_MAX), InvalidArgument);
}

}  // namespace
}  // namespace topkv
