// `topkv info`: a model's shape, and the memory that its contexts take.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/commands/context_info.h"
#include "src/cli/commands/device_report.h"
#include "src/cli/flags/bind.h"
#include "src/cli/flags/options.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/report.h"
#include "src/core/format/gguf_file.h"
#include "src/core/format/placeholder.h"
#include "src/core/io/files.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "src/core/text/printable.h"
#include "src/store/layer_states.h"
#include "topkv/error.h"
#include "topkv/memory_plan.h"

namespace topkv::cli {
namespace {

struct InfoFlags {
  std::string directory;
  std::string argument;  // the same, without -m
  std::string dtype;
  std::string weights;
  bool json = false;
};

/// Rows of one context length on this machine.
struct Need {
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;
  bool fits = false;
};

constexpr std::array<std::int64_t, 3> lengths = {4096, 131072, 1048576};

// Of an MLP, or of so many experts and their router.
std::int64_t mlp_parameters(const ModelConfig& config, std::int64_t layer, std::int64_t experts) {
  const ExpertMixture& mixture = config.mixture;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inputs = config.has_mlp_gate() ? 2 : 1;
  const auto of = [&](std::int64_t width, bool biases) {  // gate, up and down
    return (inputs + 1) * hidden * width + (biases ? inputs * width + hidden : 0);
  };
  if (!config.has_mlp(layer)) return 0;
  const std::int64_t mlp = of(config.intermediate_size_of(layer), config.mlp_bias);
  if (!mixture.in(layer)) return mlp;
  std::int64_t all = experts * of(mixture.intermediate_size, mixture.biases) +
                     mixture.experts * (hidden + mixture.biases + mixture.choice_bias);
  if (const std::int64_t shared = mixture.shared_intermediate_size; shared > 0)
    all += of(shared, false) + (mixture.shared_gate ? hidden : 0);
  if (mixture.own_norms) all += 4 * hidden + mixture.experts;
  return mixture.own_norms ? all + mlp : all;
}

// Weights of latent attention of one layer, without the norms of its input and output.
std::int64_t latent_parameters(const ModelConfig& config) {
  const LatentAttention& net = config.latent;
  const std::int64_t heads = config.attention.q_heads;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t row = net.kv_rank + net.rope_dim;
  const std::int64_t q_inputs = net.q_rank > 0 ? net.q_rank : hidden;
  std::int64_t layer = q_inputs * heads * net.query_dim() + hidden * row + net.kv_rank +
                       heads * (net.nope_dim + net.value_dim) * net.kv_rank +
                       heads * net.value_dim * hidden;
  if (net.q_rank > 0) layer += (hidden + 1) * net.q_rank;  // and its norm
  if (config.qkv_bias) layer += net.q_rank + row;
  if (config.o_bias) layer += hidden;
  return layer;
}

// Weights of the attention of one layer, without the norms of its input and output.
std::int64_t attention_parameters(const ModelConfig& config, std::int64_t l) {
  if (config.latent.kv_rank > 0) return latent_parameters(config);
  const AttentionShape& shape = config.attention;
  const std::int64_t dim = shape.head_dim_of(l);
  const std::int64_t q = shape.q_heads * dim;
  const std::int64_t k = shape.has_rows(l) ? shape.kv_heads_of(l) * dim : 0;
  const std::int64_t kv = config.values_from_keys && shape.window_of(l) == 0 ? k : 2 * k;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t q_outputs = config.output_gate ? 2 * q : q;
  std::int64_t layer = hidden * (q_outputs + kv) + q * hidden;  // q, k, v, output projections
  if (config.qkv_bias) layer += q_outputs + kv;
  if (config.o_bias) layer += hidden;
  if (config.attention_sinks) layer += shape.q_heads;
  if (config.qk_norm) layer += config.qk_norm_whole ? q + k : k > 0 ? 2 * dim : dim;
  return layer;
}

// Weights of one recurrent layer, without the norms of its input and output.
std::int64_t recurrent_parameters(const ModelConfig& config) {
  if (const ShortConvolution& net = config.convolution; net.width > 0)
    return config.hidden_size * (net.input_width() + net.width) + net.kernel * net.width;
  if (const Mamba2& net = config.mamba; net.heads > 0) {
    const std::int64_t biases = config.mamba_bias ? net.input_width() : 0;
    return config.hidden_size * (net.input_width() + 2 * net.width() + net.heads) +
           net.kernel * net.input_width() + biases + 3 * net.heads + net.width();
  }
  const GatedDeltaNet& net = config.delta;
  return config.hidden_size * (net.qkv_width() + 2 * net.value_width() + 2 * net.value_heads) +
         net.kernel * net.qkv_width() + 2 * net.value_heads + net.value_dim;
}

// Weights of the network. experts: the number of experts of each layer that count.
std::int64_t parameters(const ModelConfig& config, std::int64_t experts) {
  const AttentionShape& shape = config.attention;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t norms = 2 * hidden * (config.norm_inputs + config.norm_outputs);
  const std::int64_t embeddings = (config.tied_embeddings ? 1 : 2) * config.vocab_size * hidden;
  std::int64_t all = embeddings + hidden;
  if (const std::int64_t size = config.layer_inputs.size; size > 0) {
    // The table, the projection of the embedding and its norm; then those of each layer.
    all += shape.layers * size * (config.layer_inputs.vocab + hidden) + size;
    all += shape.layers * (2 * size * hidden + hidden);
  }
  if (config.layer_scale) all += shape.layers;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    all += config.has_mlp(l) ? norms : norms / 2;
    all += mlp_parameters(config, l, experts);
    all += shape.is_attention(l) ? attention_parameters(config, l) : recurrent_parameters(config);
  }
  return all;
}

// "30,532,122,624 parameters, 3,353,032,704 of them for a token"
std::string parameters_text(const ModelConfig& config) {
  const ExpertMixture& mixture = config.mixture;
  std::string text = format_grouped(parameters(config, mixture.experts)) + " parameters";
  if (mixture.experts == 0) return text;
  return text + fmt::format(", {} of them for a token",
                            format_grouped(parameters(config, mixture.per_token)));
}

// "MLP 6,144", "128 experts of 768, 8 a token", or both; and the expert that all tokens share.
std::string mlp_text(const ModelConfig& config) {
  const ExpertMixture& mixture = config.mixture;
  const std::string mlp = fmt::format("MLP {}", config.intermediate_size);
  if (mixture.experts == 0) return mlp;
  std::string experts = fmt::format("{} experts of {}, {} a token", mixture.experts,
                                    mixture.intermediate_size, mixture.per_token);
  if (const std::int64_t shared = mixture.shared_intermediate_size; shared > 0)
    experts += fmt::format(" and one of {} for all", shared);
  if (mixture.own_norms) return fmt::format("{} and {}", experts, mlp);
  for (std::int64_t l = 0; l < config.attention.layers; ++l)
    if (config.has_dense_mlp(l)) return fmt::format("{} ({} in other layers)", experts, mlp);
  return experts;
}

std::string scaling_text(const RopeScaling& scaling) {
  constexpr std::array<const char*, 6> names = {"",        "linear", "llama3",
                                                "dynamic", "yarn",   "longrope"};
  if (scaling.kind == RopeScaling::Kind::none) return {};
  if (scaling.kind == RopeScaling::Kind::frequency_factors) {
    constexpr double still = 1e29;  // a factor of pairs that are as good as not turned
    const auto& factors = scaling.pair_factors;
    const auto turned = std::ranges::count_if(factors, [](double x) { return x < still; });
    if (turned < std::ssize(factors))
      return fmt::format(", {} of {} pairs of a head turned", turned, factors.size());
    return " scaled by the factors of rope_freqs.weight";
  }
  return fmt::format(" scaled by {} from {}", names[static_cast<std::size_t>(scaling.kind)],
                     format_grouped(static_cast<std::int64_t>(scaling.original_max_position)));
}

std::string chunks_text(const DualChunk& chunks) {
  if (chunks.chunk_size == 0) return {};
  return fmt::format(", in chunks of {}", format_grouped(chunks.chunk_len()));
}

struct WeightsFound {
  bool here = false;  // false: sizes are those that the configuration describes
  std::int64_t bytes = 0;
  std::string quantised;        // as what, in the checkpoint
  std::exception_ptr unusable;  // what is wrong with them, else null
};

// Checked against the headers of the files, which must be there in full.
WeightsFound find_weights(const std::filesystem::path& directory, WeightFormat format) {
  WeightsFound found;
  found.here = Model::has_weights(directory);
  try {
    const DevicePlan plan = Model::plan(directory, Device(), {}, {}, format);
    for (const std::string& warning : plan.warnings) print_warning(warning);
    found.bytes = plan.weights_bytes;
    found.quantised = plan.quantised;
  } catch (const Error&) {
    found.unusable = std::current_exception();
  }
  return found;
}

// "weights 4.4 GiB, quantised (awq, 4 bits, groups of 128)"
std::string weights_text(const WeightsFound& weights, const std::string& format) {
  if (weights.unusable) return "no usable weights";
  return fmt::format("{}{}{}{}", weights.here ? "weights " : "no weights yet; they will take ",
                     byte_text(weights.bytes), format == "stored" ? "" : " in " + format,
                     weights.quantised.empty() ? "" : ", quantised (" + weights.quantised + ")");
}

// By the planner, with the weights and the default index. Where weights are unusable: what the
// library itself says when asked to reserve the rows alone.
Need need_of(const ModelConfig& config, const InfoFlags& flags, const WeightsFound& weights,
             std::int64_t tokens) {
  const KvDType dtype = KvDType::parse(flags.dtype);
  Need need{tokens, config.attention.context_bytes(dtype, tokens), true};
  if (!weights.unusable) {
    const PlanRequest request{.tokens = tokens,
                              .weights = parse_weight_format(flags.weights),
                              .rows = dtype,
                              .index = IndexSpec::default_for(config.attention.head_dim).text()};
    need.fits = memory_plans(flags.directory, request).front().fits();
    return need;
  }
  try {
    ContextBuilder(config.attention, {.capacity = tokens, .dtype = dtype});
  } catch (const OutOfMemory&) {
    need.fits = false;
  }
  return need;
}

std::string sliding_text(const AttentionShape& shape, KvDType dtype) {
  std::int64_t sliding = 0;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    if (shape.has_rows(layer) && shape.window_of(layer) > 0)
      sliding += shape.kv_heads_of(layer) * dtype.row_bytes(shape.head_dim_of(layer));
  }
  if (sliding == 0) return {};
  return fmt::format("; {} of it are kept for a sliding window's tokens alone", byte_text(sliding));
}

// Empty: no layer has a recurrent state.
std::string states_text(const AttentionShape& shape) {
  const auto layers = std::ranges::count_if(shape.state_size, [](auto size) { return size > 0; });
  if (layers == 0) return {};
  return fmt::format("states      {} in {} of {} layers, however long the text is\n",
                     byte_text(state_values(shape) * bytes_of(DType::f32)), layers, shape.layers);
}

void print_json(const ModelConfig& config, const InfoFlags& flags, KvDType dtype,
                const WeightsFound& weights) {
  Json json;
  json["model_type"] = config.model_type;
  json["parameters"] = parameters(config, config.mixture.experts);
  json["parameters_per_token"] = parameters(config, config.mixture.per_token);
  json["experts"] = config.mixture.experts;
  json["experts_per_token"] = config.mixture.per_token;
  json["weights"] = flags.weights;
  json["weights_here"] = weights.here && !weights.unusable;
  json["weights_bytes"] = weights.bytes;
  json["quantised"] = weights.quantised;
  json["layers"] = config.attention.layers;
  json["q_heads"] = config.attention.q_heads;
  json["kv_heads"] = config.attention.kv_heads;
  json["head_dim"] = config.attention.head_dim;
  if (config.attention.has_two_widths()) {
    json["sliding_kv_heads"] = config.attention.sliding_kv_heads;
    json["sliding_head_dim"] = config.attention.sliding_head_dim;
  }
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["vocab_size"] = config.vocab_size;
  json["max_position"] = config.max_position;
  json["reach"] = config.reach();
  json["rope_theta"] = config.rope_theta;
  json["rotary_dim"] = config.rotary_dim;
  json["chunk_len"] = config.attention.chunk_len;
  json["temperature"] = config.sampling.temperature;
  json["top_k"] = config.sampling.top_k;
  json["top_p"] = config.sampling.top_p;
  json["kv_dtype"] = flags.dtype;
  json["kv_bytes_per_token"] = config.kv_bytes_per_token(dtype);
  json["states_bytes"] = state_values(config.attention) * bytes_of(DType::f32);
  json["kv_index"] = IndexSpec::default_for(config.attention.head_dim).text();
  for (const std::int64_t tokens : lengths) {
    const Need need = need_of(config, flags, weights, tokens);
    json["contexts"].push_back(
        {{"tokens", need.tokens}, {"rows_bytes", need.bytes}, {"fits", need.fits}});
  }
  json["version"] = version();
  fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void print_text(const ModelConfig& config, const InfoFlags& flags, KvDType dtype,
                const WeightsFound& weights) {
  const AttentionShape& shape = config.attention;
  fmt::print("model       {}: {}, {}, {}\n", printable(flags.directory), config.model_type,
             parameters_text(config), weights_text(weights, flags.weights));
  fmt::print("network     {} layers, hidden {}, {}, vocabulary {}\n", shape.layers,
             config.hidden_size, mlp_text(config), format_grouped(config.vocab_size));
  fmt::print("attention   {} query heads, {} KV heads, head dim {}\n", shape.q_heads,
             shape.kv_heads, shape.head_dim);
  if (shape.has_two_widths()) {
    fmt::print("            {} KV heads, head dim {} in layers with a sliding window\n",
               shape.sliding_kv_heads, shape.sliding_head_dim);
  }
  fmt::print("positions   made for {}, RoPE theta {:g}{}{}\n", format_grouped(config.reach()),
             config.rope_theta, scaling_text(config.rope_scaling), chunks_text(config.dual_chunk));
  fmt::print("sampling    {} unless flags change it\n", sampling_text(config.sampling));
  fmt::print("rows        {}, {} per token{}\n", flags.dtype,
             byte_text(config.kv_bytes_per_token(dtype)), sliding_text(shape, dtype));
  fmt::print("{}", states_text(shape));
  fmt::print("index       {} unless --kv-index names another\n\n",
             IndexSpec::default_for(shape.head_dim).text());
  std::vector<std::vector<std::string>> rows;
  for (const std::int64_t tokens : lengths) {
    const Need need = need_of(config, flags, weights, tokens);
    rows.push_back({format_count(tokens), byte_text(need.bytes), need.fits ? "yes" : "no"});
  }
  fmt::print("{}", format_table({{"context", "KV rows", "fits here"}, rows, {true, true, false}}));
  for (const std::int64_t tokens : lengths) {
    const std::string beyond = config.beyond_reach(tokens);
    if (beyond.empty()) continue;
    fmt::print("\n{}\n", beyond);
    break;  // the shortest of them says enough
  }
}

int run_info(const InfoFlags& flags) {
  const ModelConfig config = described_model(flags.directory);
  for (const std::string& warning : config.warnings) print_warning(warning);
  const KvDType dtype = KvDType::parse(flags.dtype);
  const WeightsFound weights = find_weights(flags.directory, parse_weight_format(flags.weights));
  if (flags.json) {
    print_json(config, flags, dtype, weights);
  } else {
    print_text(config, flags, dtype, weights);
  }
  if (weights.unusable) std::rethrow_exception(weights.unusable);
  return 0;
}

/// Throws FileError for a file that is neither a model nor a context.
void check_kind(const std::string& model) {
  std::error_code error;
  if (std::filesystem::path(model).extension() == ".tkv" &&
      !std::filesystem::exists(model, error)) {
    throw FileError(fmt::format(
        "{}: there is no such file; expected a file that topkv prefill wrote", printable(model)));
  }
  if (!std::filesystem::is_regular_file(model, error)) return;
  check_readable(model);
  if (begins_as_gguf(model)) return;
  refuse_placeholder(model);
  throw FileError(
      fmt::format("{}: is neither a model nor a context; expected the directory of a model, a GGUF "
                  "file, or a file that topkv prefill wrote (FILE.tkv)",
                  printable(model)));
}

}  // namespace

Run add_info(CLI::App& app) {
  const auto flags = std::make_shared<InfoFlags>();
  FlagBinder bind(*add_command(app, "info"));
  bind.operand(flags->argument);
  bind("--model", flags->directory);
  bind("--kv-dtype", flags->dtype);
  bind("--weights", flags->weights);
  bind("--json", flags->json);
  return [flags] {
    resolve_model_flag(flags->directory, flags->argument, "info");
    if (is_context_file(flags->directory)) {
      print_context_info(flags->directory, flags->json);
      return 0;
    }
    check_kind(flags->directory);
    return run_info(*flags);
  };
}

}  // namespace topkv::cli
