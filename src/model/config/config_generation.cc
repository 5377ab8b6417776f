// How a model's makers would have text generated: the tokens that begin and end it, and sampling.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/io/mapped_file.h"
#include "src/core/text/printable.h"
#include "src/model/config/config_parts.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

std::int64_t last_token(std::int64_t vocab_size) { return vocab_size - 1; }

Token read_bos(const JsonObject& object, std::int64_t vocab_size, Token missing) {
  if (!object.contains("bos_token_id")) return missing;
  if (object.find("bos_token_id") == nullptr) return -1;
  return static_cast<Token>(object.integer("bos_token_id", 0, last_token(vocab_size)));
}

/// One token, a list of them or null.
std::vector<Token> read_eos(const JsonObject& object, std::int64_t vocab_size,
                            std::vector<Token> missing) {
  constexpr const char* key = "eos_token_id";
  if (!object.contains(key)) return missing;
  const Json* value = object.find(key);
  if (value == nullptr) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  std::vector<Token> tokens;
  for (const Json& token : list) {
    if (!token.is_number_unsigned() ||
        token.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab_size)) {
      object.fail(key, fmt::format("token ids from 0 to {}", last_token(vocab_size)));
    }
    tokens.push_back(token.get<Token>());
  }
  return tokens;
}

/// What changes how transformers would sample and topkv's sampler does not have, with the value
/// that means: nothing of the kind.
struct OtherSampling {
  std::string_view key;
  double without;
};
constexpr std::array<OtherSampling, 6> other_sampling = {{{"typical_p", 1},
                                                          {"epsilon_cutoff", 0},
                                                          {"eta_cutoff", 0},
                                                          {"no_repeat_ngram_size", 0},
                                                          {"penalty_alpha", 0},
                                                          {"num_beams", 1}}};

/// As transformers 5: greedy unless do_sample; then a missing temperature is 1, a missing top_k 50.
void read_sampling(const JsonObject& generation, const std::filesystem::path& file,
                   ModelConfig& config) {
  std::vector<std::string> unread;
  for (const OtherSampling& other : other_sampling) {
    const Json* value = generation.find(other.key);
    if (value == nullptr || (value->is_number() && value->get<double>() == other.without)) continue;
    unread.push_back(fmt::format("{} is {}", other.key, shown(*value)));
  }
  if (!unread.empty()) {
    config.sampling_warning = fmt::format(
        "{}: {}: topkv does not sample with it (only with temperature, top_k, top_p, min_p, "
        "repetition_penalty); answers may differ from what the model's makers intended",
        path_text(file), fmt::join(unread, ", "));
  }
  const auto number = [&](const char* key, double low, double high, double missing) {
    return generation.find(key) == nullptr ? missing : generation.number(key, low, high);
  };
  // Those that are greedy are penalised, too.
  config.sampling.repetition_penalty = number("repetition_penalty", 0, 100, 1);
  if (config.sampling.repetition_penalty == 0) generation.fail("repetition_penalty", "above 0");
  if (generation.find("do_sample") == nullptr || !generation.flag("do_sample")) return;
  config.sampling.temperature = number("temperature", 0, 100, 1);
  config.sampling.top_p = number("top_p", 0, 1, 1);
  config.sampling.top_k =
      generation.find("top_k") == nullptr ? 50 : generation.integer("top_k", 0, max_positions);
  config.sampling.min_p = number("min_p", 0, 1, 0);
  if (config.sampling.top_p > 0) return;
  // Nothing but the likeliest.
  config.sampling = {.repetition_penalty = config.sampling.repetition_penalty};
}

}  // namespace

void read_generation(const JsonObject& root, const Family& family,
                     const std::filesystem::path& generation_file, ModelConfig& config) {
  config.bos = read_bos(root, config.vocab_size, family.bos);
  config.eos = read_eos(root, config.vocab_size, family.eos);
  if (generation_file.empty() || !file_exists(generation_file)) return;
  // What generation_config.json says holds for generation.
  const Json json = read_json_file(generation_file);
  const JsonObject generation(json, generation_file);
  if (generation.find("bos_token_id") != nullptr) {
    config.bos = read_bos(generation, config.vocab_size, -1);
  }
  if (generation.find("eos_token_id") != nullptr) {
    config.eos = read_eos(generation, config.vocab_size, {});
  }
  read_sampling(generation, generation_file, config);
}

}  // namespace topkv
