#include "src/cli/flags/bench_shape.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <string_view>
#include <vector>

#include "src/cli/flags/suggest.h"
#include "src/cli/terminal/parse_numbers.h"
#include "topkv/model.h"

namespace topkv::cli {
namespace {

struct Named {
  std::string_view name;
  std::int64_t layers;
  std::int64_t q_heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
};

// As their config.json files on Hugging Face have it (Qwen2.5-7B-Instruct-1M, Meta-Llama-3-8B).
constexpr std::array<Named, 3> known = {{{"llama3-8b", 32, 32, 8, 128},
                                         {"qwen2.5-7b-1m", 28, 28, 4, 128},
                                         {"needle-14m", 8, 6, 2, 64}}};

}  // namespace

AttentionShape bench_shape(const std::string& text) {
  std::vector<std::string> names;
  for (const Named& shape : known) {
    if (text == shape.name) return {shape.layers, shape.q_heads, shape.kv_heads, shape.head_dim};
    names.emplace_back(shape.name);
  }
  const std::filesystem::path path(text);
  if (path.filename() != "config.json") {
    const std::string near = nearest(text, names);
    throw UsageError(
        fmt::format("--shape: found '{}'; expected llama3-8b, qwen2.5-7b-1m, needle-14m or the "
                    "path of a config.json{}",
                    text, did_you_mean(near)));
  }
  return ModelConfig::load(path.has_parent_path() ? path.parent_path() : ".").attention;
}

AttentionShape first_layers(AttentionShape shape, std::int64_t layers) {
  if (layers > shape.layers) {
    throw UsageError(fmt::format("--layers: expected 1 to {}, the layers of the shape; found {}",
                                 shape.layers, layers));
  }
  shape.layers = layers;
  if (!shape.sliding_window.empty()) {
    shape.sliding_window.resize(static_cast<std::size_t>(layers));
  }
  return shape;
}

}  // namespace topkv::cli
