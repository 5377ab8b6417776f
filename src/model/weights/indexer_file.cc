#include "src/model/weights/indexer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "src/core/format/json_file.h"
#include "src/core/math/convert.h"
#include "src/core/text/printable.h"
#include "src/model/weights/check_finite.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t most_index_size = 1 << 20;  // of IndexerShape::dim and heads
constexpr std::string_view queries_name = "wq.weight";
constexpr std::string_view keys_name = "wk.weight";
constexpr std::string_view weights_name = "weights_proj.weight";
constexpr std::string_view norm_name = "k_norm.weight";
constexpr std::string_view norm_bias_name = "k_norm.bias";
constexpr std::string_view indexer_advice =
    "give the file that was trained for this model, or train one with "
    "examples/python/train_indexer.py";

}  // namespace

/// Reads metadata and tensors. Counts the tensors that were asked for.
class IndexerFile::Reader {
 public:
  Reader(const SafeTensorsFile& file, const ModelConfig& config)
      : file_(file), config_(config), path_(path_text(file.path())) {}

  [[noreturn]] void fail(const std::string& found, const std::string& expected) const {
    throw FileError(fmt::format("{}: {}; expected {}", path_, found, expected));
  }

  void check_kind() const {
    const auto found = file_.metadata().find("topkv_indexer");
    if (found == file_.metadata().end())
      fail("is no indexer: its metadata has no topkv_indexer",
           fmt::format("\"1\"; {}", indexer_advice));
    if (found->second != "1")
      fail(fmt::format("metadata topkv_indexer is {}", shown_bytes(found->second)),
           "\"1\", the version that this topkv reads");
  }

  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const {
    const std::string& text = this->text(key);
    std::int64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || at != end || value < low || value > high)
      fail(fmt::format("metadata {} is {}", key, shown_bytes(text)),
           fmt::format("an integer from {} to {}", low, high));
    return value;
  }

  double positive(const char* key) const {
    const std::string& text = this->text(key);
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || at != end || !(value > 0) || !std::isfinite(value))
      fail(fmt::format("metadata {} is {}", key, shown_bytes(text)), "a number above 0");
    return value;
  }

  /// Returns the number of one of these words.
  std::size_t word(const char* key, const std::array<std::string_view, 2>& words) const {
    const std::string& text = this->text(key);
    const auto found = std::ranges::find(words, text);
    if (found == words.end())
      fail(fmt::format("metadata {} is {}", key, shown_bytes(text)),
           fmt::format("{} or {}", words[0], words[1]));
    return static_cast<std::size_t>(found - words.begin());
  }

  bool has(std::int64_t layer, std::string_view name) const {
    return file_.entries().contains(full(layer, name));
  }

  Matrix matrix(std::int64_t layer, std::string_view name, std::int64_t out, std::int64_t in) {
    const SafeTensorsFile::Entry& entry = tensor(full(layer, name), std::array{out, in});
    return {entry.bytes.data(), *entry.dtype.dtype, out, in};
  }

  std::vector<float> vector(std::int64_t layer, std::string_view name, std::int64_t size) {
    const SafeTensorsFile::Entry& entry = tensor(full(layer, name), std::array{size});
    std::vector<float> values(static_cast<std::size_t>(size));
    to_float(entry.bytes.data(), *entry.dtype.dtype, size, values.data());
    return values;
  }

  void check_all_read() const {
    for (const auto& [name, entry] : file_.entries()) {
      if (read_.contains(name)) continue;
      fail(fmt::format("has tensor {}, which no layer of this model has", shown_bytes(name)),
           fmt::format("layers.N.{}, {}, {}, {} or {}, with N from 0 to {}; {}", queries_name,
                       keys_name, weights_name, norm_name, norm_bias_name,
                       config_.attention.layers - 1, indexer_advice));
    }
  }

 private:
  static std::string full(std::int64_t layer, std::string_view name) {
    return fmt::format("layers.{}.{}", layer, name);
  }

  const std::string& text(const char* key) const {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end())
      fail(fmt::format("metadata has no {}", key), "the keys of docs/reference/indexer-files.md");
    return found->second;
  }

  const SafeTensorsFile::Entry& tensor(const std::string& name,
                                       std::span<const std::int64_t> shape) {
    const auto found = file_.entries().find(name);
    if (found == file_.entries().end())
      fail(fmt::format("has no tensor {}", name),
           fmt::format("one of shape {}", shown_shape(shape)));
    const SafeTensorsFile::Entry& entry = found->second;
    if (!entry.dtype.dtype)
      fail(fmt::format("tensor {} has dtype {}", name, entry.dtype.name), "F32, F16 or BF16");
    if (!std::ranges::equal(entry.shape, shape))
      fail(fmt::format("tensor {} has shape {}", name, shown_shape(entry.shape)),
           fmt::format("{}, for this model and the metadata of the file; {}", shown_shape(shape),
                       indexer_advice));
    check_finite(entry.bytes.data(), *entry.dtype.dtype, shape,
                 fmt::format("{}: tensor {}", path_, name));
    read_.insert(name);
    return entry;
  }

  const SafeTensorsFile& file_;
  const ModelConfig& config_;
  std::string path_;
  std::set<std::string, std::less<>> read_;
};

IndexerFile::IndexerFile(const std::filesystem::path& path, const ModelConfig& config)
    : file_(SafeTensorsFile::open(path)) {
  Reader reader(file_, config);
  reader.check_kind();
  const AttentionShape& model = config.attention;
  shape_.dim = reader.integer("dim", 1, most_index_size);
  shape_.heads = reader.integer("heads", 1, most_index_size);
  shape_.choices = reader.integer("choices", 1, model.kv_heads);
  if (shape_.choices != 1 && shape_.choices != model.kv_heads)
    reader.fail(fmt::format("metadata choices is {}", shape_.choices),
                fmt::format("1, or {}, the KV heads of this model", model.kv_heads));
  if (shape_.heads % shape_.choices != 0)
    reader.fail(fmt::format("metadata heads is {}", shape_.heads),
                fmt::format("a multiple of the {} choices", shape_.choices));
  shape_.score = reader.word("score", {"dot", "relu"}) == 0 ? IndexScore::dot : IndexScore::relu;
  shape_.dtype = reader.word("key_dtype", {"f32", "bf16"}) == 0 ? DType::f32 : DType::bf16;
  shape_.top = reader.integer("top", 1, every_index_block);
  shape_.local_blocks = reader.integer("local", 0, shape_.top);
  rope_dim_ = reader.integer("rope_dim", 0, shape_.dim);
  if (rope_dim_ % 2 != 0)
    reader.fail(fmt::format("metadata rope_dim is {}", rope_dim_), "an even number");
  if (rope_dim_ > 0) rope_theta_ = reader.positive("rope_theta");
  if (model.chunk_len > 0) {
    throw Unsupported(fmt::format(
        "{}: an indexer for a model with dual chunk attention; topkv runs indexers for models "
        "without: leave the indexer out",
        path_text(path)));
  }
  layers_.resize(static_cast<std::size_t>(model.layers));
  const std::int64_t hidden = config.hidden_size;
  for (std::int64_t l = 0; l < model.layers; ++l) {
    if (!reader.has(l, queries_name)) continue;
    if (!model.attends_all(l))
      reader.fail(fmt::format("has tensors of layer {}, which has a {} in this model", l,
                              model.is_attention(l) ? "sliding window" : "recurrent state"),
                  "tensors of layers that attend all tokens; leave the layer out of the file");
    IndexerLayer& layer = layers_[static_cast<std::size_t>(l)];
    layer.queries = reader.matrix(l, queries_name, shape_.heads * shape_.dim, hidden);
    layer.keys = reader.matrix(l, keys_name, shape_.dim, hidden);
    if (reader.has(l, weights_name))
      layer.weights = reader.matrix(l, weights_name, shape_.heads, hidden);
    if (!reader.has(l, norm_name)) continue;
    layer.norm = reader.vector(l, norm_name, shape_.dim);
    layer.norm_bias = reader.vector(l, norm_bias_name, shape_.dim);
  }
  reader.check_all_read();
  if (std::ranges::all_of(layers_, &IndexerLayer::empty))
    reader.fail("has no tensors", fmt::format("layers.N.{} of one layer or more", queries_name));
}

std::vector<std::int64_t> IndexerFile::indexer_layer() const {
  std::vector<std::int64_t> of;
  for (std::int64_t l = 0; l < std::ssize(layers_); ++l) of.push_back(layer(l).empty() ? -1 : l);
  return of;
}

}  // namespace topkv
