// RoPE of a config.json: theta, the scalings of transformers 5 and what part of a head is turned.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/model/config/config_parts.h"

namespace topkv {
namespace {

using Json = nlohmann::json;
using Kind = RopeScaling::Kind;

constexpr double most = 1e9;  // of factors

double read_theta(const JsonObject& object, double missing) {
  if (object.find("rope_theta") == nullptr) return missing;
  return object.number("rope_theta", 1, 1e30);
}

/// Elements of a head that are turned, by the key of this object or the part that is meant without.
std::int64_t read_rotary_dim(const JsonObject& object, const Family& family, std::int64_t head_dim,
                             double missing) {
  constexpr const char* key = "partial_rotary_factor";
  const double part = object.find(key) == nullptr ? missing : object.number(key, 0, 1);
  if (part != 1 && !family.partial_rotary) {
    object.unsupported(key, fmt::format("RoPE over the whole head (1) in {}", family.name));
  }
  const auto dim = static_cast<std::int64_t>(static_cast<double>(head_dim) * part);
  if (dim < 2 || dim % 2 != 0) {
    object.fail(key, fmt::format("a part of the {} elements of a head that is an even number of "
                                 "them, 2 or more",
                                 head_dim));
  }
  return dim;
}

/// What reads one scaling.
class ScalingReader {
 public:
  ScalingReader(const JsonObject& root, const JsonObject& rope, const Family& family,
                std::int64_t length, const ModelConfig& config)
      : root_(root), rope_(rope), family_(family), length_(length), config_(config) {}

  RopeScaling read() {
    const char* key = rope_.contains("rope_type") ? "rope_type" : "type";
    std::string type = rope_.text(key, "default");
    if (type == "default") return scaling_;
    if (family_.longrope_only) {
      if (type == "su" || type == "yarn") type = "longrope";  // what it was called at first
      if (type != "longrope") rope_.unsupported(key, "\"default\" and \"longrope\" there");
    }
    if (type == "linear") {
      linear();
    } else if (type == "llama3") {
      llama3();
    } else if (type == "dynamic") {
      dynamic();
    } else if (type == "yarn") {
      yarn();
    } else if (type == "longrope") {
      longrope();
    } else {
      rope_.unsupported(key,
                        "\"default\", \"linear\", \"llama3\", \"dynamic\", \"yarn\" and "
                        "\"longrope\"");
    }
    return scaling_;
  }

 private:
  double factor() { return rope_.number("factor", 1 / most, most); }

  /// The length that a scaling starts from. transformers takes it from the top level when it is
  /// there, and only from there in families that have it as a key of their own.
  double original(std::int64_t least = 1) {
    constexpr const char* key = "original_max_position_embeddings";
    if (family_.original_max_position > 0) {
      return static_cast<double>(
          root_.integer(key, least, max_positions, family_.original_max_position));
    }
    const JsonObject& from = root_.find(key) != nullptr ? root_ : rope_;
    return static_cast<double>(from.integer(key, least, max_positions, config_.max_position));
  }

  /// factor, or how far max_position_embeddings is beyond the original length. null means that too.
  double factor_or_ratio() {
    if (rope_.find("factor") != nullptr) return factor();
    return static_cast<double>(config_.max_position) / scaling_.original_max_position;
  }

  std::optional<double> optional(const char* key, double low, double high) {
    if (rope_.find(key) == nullptr) return {};
    return rope_.number(key, low, high);
  }

  void linear() {
    scaling_.kind = Kind::linear;
    scaling_.factor = factor();
    scaling_.original_max_position = original();
  }

  void llama3() {
    scaling_.kind = Kind::llama3;
    scaling_.factor = factor();
    scaling_.low_freq_factor = rope_.number("low_freq_factor", 1 / most, most);
    scaling_.high_freq_factor = rope_.number("high_freq_factor", 1 / most, most);
    if (scaling_.high_freq_factor <= scaling_.low_freq_factor) {
      rope_.fail("high_freq_factor",
                 fmt::format("more than low_freq_factor ({})", scaling_.low_freq_factor));
    }
    scaling_.original_max_position = original();
  }

  // transformers grows theta for the longest text that it has seen, from max_position_embeddings
  // on; here that text is `length` long.
  void dynamic() {
    scaling_.kind = Kind::dynamic;
    scaling_.factor = rope_.number("factor", 1, most);
    scaling_.original_max_position = static_cast<double>(config_.max_position);
    if (config_.rotary_dim <= 2) {
      rope_.unsupported(rope_.contains("rope_type") ? "rope_type" : "type",
                        "\"dynamic\" if it rotates more than 2 elements of a head");
    }
    const double d = static_cast<double>(config_.rotary_dim);
    const double longest = length_ > 0 ? static_cast<double>(length_)
                                       : scaling_.original_max_position * scaling_.factor;
    const double stretch = std::max(1.0, longest / scaling_.original_max_position);
    scaling_.theta_factor =
        std::pow(scaling_.factor * stretch - (scaling_.factor - 1), d / (d - 2));
  }

  void yarn() {
    scaling_.kind = Kind::yarn;
    scaling_.original_max_position = original();
    if (!rope_.contains("factor")) scaling_.factor = factor();  // to be missed
    scaling_.factor = factor_or_ratio();
    const auto mscale = [&](double m) {
      return scaling_.factor <= 1 ? 1.0 : 0.1 * m * std::log(scaling_.factor) + 1;
    };
    const double one = optional("mscale", 0, most).value_or(0);
    const double all = optional("mscale_all_dim", 0, most).value_or(0);
    scaling_.attention_factor =
        optional("attention_factor", 1 / most, most)
            .value_or(one != 0 && all != 0 ? mscale(one) / mscale(all) : mscale(1));
    const auto turns = [&](const char* key, double missing) {
      const double value = optional(key, 0, most).value_or(0);
      return value == 0 ? missing : value;  // 0 means that too, in transformers
    };
    scaling_.beta_fast = turns("beta_fast", 32);
    scaling_.beta_slow = turns("beta_slow", 1);
    scaling_.truncate = rope_.flag("truncate", true);
    if (config_.rope_theta <= 1) rope_.fail("rope_theta", "more than 1, for yarn");
  }

  void longrope() {
    scaling_.kind = Kind::longrope;
    scaling_.original_max_position = original(2);  // its logarithm is divided by
    scaling_.factor = factor_or_ratio();
    const double by_length =
        scaling_.factor <= 1
            ? 1
            : std::sqrt(1 + std::log(scaling_.factor) / std::log(scaling_.original_max_position));
    scaling_.attention_factor = optional("attention_factor", 1 / most, most).value_or(by_length);
    const std::vector<double> short_factors = pair_factors("short_factor");
    const std::vector<double> long_factors = pair_factors("long_factor");
    const double reach = std::max(static_cast<double>(config_.max_position),
                                  scaling_.original_max_position * scaling_.factor);
    const double longest = length_ > 0 ? static_cast<double>(length_) : reach;
    const bool is_long = longest > scaling_.original_max_position;
    scaling_.pair_factors = is_long ? long_factors : short_factors;
    if (!is_long) scaling_.factor = 1;  // what it is stretched to
  }

  std::vector<double> pair_factors(const char* key) {
    const std::int64_t pairs = config_.rotary_dim / 2;
    const Json* list = rope_.find(key);
    const auto is_factor = [](const Json& x) {
      return x.is_number() && x.get<double>() >= 1 / most && x.get<double>() <= most;
    };
    if (list == nullptr || !list->is_array() || list->size() != static_cast<std::size_t>(pairs) ||
        !std::all_of(list->begin(), list->end(), is_factor)) {
      rope_.fail(key, fmt::format("an array of {} numbers from {} to {}, one for each rotated pair",
                                  pairs, 1 / most, most));
    }
    return list->get<std::vector<double>>();
  }

  const JsonObject& root_;
  const JsonObject& rope_;
  const Family& family_;
  std::int64_t length_;
  const ModelConfig& config_;
  RopeScaling scaling_;
};

/// transformers does not run such a model without beta. The length is the scaling's, if there is
/// one.
QueryGrowth read_query_growth(const JsonObject& rope, const RopeScaling& scaling) {
  const double beta = rope.number("llama_4_scaling_beta", 0, most);
  if (beta == 0) return {};
  if (scaling.kind == Kind::yarn) {
    return {beta, static_cast<std::int64_t>(scaling.original_max_position)};
  }
  return {beta, rope.integer("original_max_position_embeddings", 1, max_positions)};
}

/// The first pairs of a head are turned as they are in a head that is turned whole, the others not
/// at all. False: the type is another one.
bool read_proportional(const JsonObject& rope, ModelConfig& config) {
  if (rope.text(rope.contains("rope_type") ? "rope_type" : "type", "default") != "proportional")
    return false;
  config.rope_theta = read_theta(rope, config.rope_theta);
  const double part = rope.number("partial_rotary_factor", 0, 1, 1);
  const double factor = rope.number("factor", 1 / most, most, 1);
  const std::int64_t dim = config.attention.head_dim;
  const auto turned = static_cast<std::int64_t>(part * static_cast<double>(dim)) / 2;
  RopeScaling& scaling = config.rope_scaling;
  scaling.kind = Kind::frequency_factors;
  scaling.pair_factors.assign(static_cast<std::size_t>(dim / 2),
                              std::numeric_limits<double>::infinity());
  std::fill_n(scaling.pair_factors.begin(), turned, factor);
  return true;
}

/// Of families whose windowed layers have a theta of their own: rope_theta, rope_local_base_freq
/// and rope_scaling (of the others) as transformers wrote them before version 5, or rope_parameters
/// with an object for each kind of layer.
void read_rope_by_kind(const JsonObject& root, const std::filesystem::path& file,
                       const Family& family, std::int64_t length, ModelConfig& config) {
  config.rope_theta = read_theta(root, family.rope_theta);
  config.sliding_rope_theta = family.sliding_rope_theta;
  if (root.find("rope_local_base_freq") != nullptr) {
    config.sliding_rope_theta = root.number("rope_local_base_freq", 1, 1e30);
  }
  const auto says_something = [&](const char* key) {
    const Json* value = root.find(key);
    return value != nullptr && !(value->is_object() && value->empty());
  };
  const auto check_whole = [&](const JsonObject& rope) {
    read_rotary_dim(rope, family, config.attention.head_dim, 1);
  };
  const auto read_scaling = [&](const JsonObject& rope) {
    if (family.proportional_rope && read_proportional(rope, config)) return;
    check_whole(rope);
    config.rope_theta = read_theta(rope, config.rope_theta);
    config.rope_scaling = ScalingReader(root, rope, family, length, config).read();
    if (config.rope_scaling.kind == Kind::none) return;
    if (config.rope_scaling.kind != Kind::linear) {
      rope.unsupported(
          rope.contains("rope_type") ? "rope_type" : "type",
          fmt::format("{} in {}",
                      family.proportional_rope ? "\"default\", \"linear\" and \"proportional\""
                                               : "\"default\" and \"linear\"",
                      family.name));
    }
    // max_position_embeddings is what such a file says of the stretched model.
    config.rope_scaling.original_max_position =
        static_cast<double>(config.max_position) / config.rope_scaling.factor;
  };
  constexpr const char* by_kind = "rope_parameters";
  const bool given = says_something(by_kind);
  if (given || !family.rope_parameters.empty()) {
    const Json all = given ? *root.find(by_kind) : Json::parse(family.rope_parameters);
    const JsonObject kinds(all, file, "rope_parameters.");
    for (const auto& [name, inner] : all.items()) {
      if (name == "full_attention" || name == "sliding_attention") continue;
      root.unsupported(by_kind, "\"full_attention\" and \"sliding_attention\" with an object each");
    }
    if (const Json* full = kinds.find("full_attention"); full != nullptr) {
      read_scaling(JsonObject(*full, file, "rope_parameters.full_attention."));
    }
    if (const Json* sliding = kinds.find("sliding_attention"); sliding != nullptr) {
      const JsonObject rope(*sliding, file, "rope_parameters.sliding_attention.");
      check_whole(rope);
      config.sliding_rope_theta = read_theta(rope, config.sliding_rope_theta);
      const char* type = rope.contains("rope_type") ? "rope_type" : "type";
      if (rope.text(type, "default") != "default") {
        rope.unsupported(type, "\"default\" in layers with a window");
      }
    }
  }
  if (says_something("rope_scaling")) {
    read_scaling(JsonObject(*root.find("rope_scaling"), file, "rope_scaling."));
  }
  if (config.attention.sliding_window.empty()) {
    config.sliding_rope_theta = 0;
    return;
  }
  for (const std::int64_t window : config.attention.sliding_window)
    config.layer_rope.push_back(window > 0 ? LayerRope::sliding : LayerRope::model);
}

/// Of families with one set for all layers. The keys are those that transformers wrote before
/// version 5 (rope_theta, rope_scaling) or since (rope_parameters).
void read_one_rope(const JsonObject& root, const std::filesystem::path& file, const Family& family,
                   std::int64_t length, ModelConfig& config) {
  config.rope_theta = read_theta(root, family.rope_theta);
  const auto read = [&](const JsonObject& rope) {
    config.rope_theta = read_theta(rope, config.rope_theta);
    config.rope_scaling = ScalingReader(root, rope, family, length, config).read();
    if (config.rope_scaling.kind != Kind::none) scale_latent(rope, config);
    if (family.query_growth) config.query_growth = read_query_growth(rope, config.rope_scaling);
  };
  // When both are there, a rope_scaling that says something wins.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = root.find(key);
    if (value == nullptr || (value->is_object() && value->empty())) continue;
    const JsonObject rope(*value, file, std::string(key) + ".");
    for (const auto& [name, inner] : value->items()) {
      if (inner.is_object()) root.unsupported(key, "one set of RoPE parameters for all layers");
    }
    if (rope.find("partial_rotary_factor") != nullptr) {
      config.rotary_dim = read_rotary_dim(rope, family, config.attention.head_dim, 1);
    }
    return read(rope);
  }
  if (!family.rope_parameters.empty()) {
    const Json missing = Json::parse(family.rope_parameters);
    read(JsonObject(missing, file, "rope_parameters."));
  }
}

}  // namespace

void read_rope(const JsonObject& root, const std::filesystem::path& file, const Family& family,
               std::int64_t length, ModelConfig& config) {
  config.rope_interleaved = family.rope_interleaved;
  config.rotary_dim =
      read_rotary_dim(root, family, config.attention.head_dim, family.partial_rotary_factor);
  if (family.sliding_rope_theta > 0) {
    read_rope_by_kind(root, file, family, length, config);
  } else {
    read_one_rope(root, file, family, length, config);
  }
  config.length = length > 0 ? length : config.reach();
}

double QueryGrowth::at(std::int64_t position) const {
  if (beta == 0) return 1;
  return 1 + beta * std::log1p(static_cast<double>(position / length));
}

std::int64_t ModelConfig::reach() const {
  const double stretched = rope_scaling.original_max_position * rope_scaling.factor;
  const auto capped =
      static_cast<std::int64_t>(std::min(stretched, static_cast<double>(max_positions)));
  switch (rope_scaling.kind) {
    case RopeScaling::Kind::none:
    case RopeScaling::Kind::llama3:
    case RopeScaling::Kind::frequency_factors:
      return max_position;
    case RopeScaling::Kind::linear:
    case RopeScaling::Kind::yarn:
      return std::max(max_position, capped);
    case RopeScaling::Kind::dynamic:
      return length > 0 ? std::max(length, max_position) : capped;
    case RopeScaling::Kind::longrope:
      return rope_scaling.factor > 1 ? std::max(max_position, capped)
                                     : std::min(max_position, capped);
  }
  return max_position;
}

std::string ModelConfig::beyond_reach(std::int64_t tokens) const {
  if (tokens <= reach()) return {};
  const char* where = reach() == max_position  ? "max_position_embeddings"
                      : reach() < max_position ? "LongRoPE's short factors, for the length that it "
                                                 "was loaded for"
                                               : "max_position_embeddings and rope_scaling";
  return fmt::format(
      "{} tokens are more than the {} positions that the model was made for ({}); answers beyond "
      "them may be worthless",
      tokens, reach(), where);
}

}  // namespace topkv
