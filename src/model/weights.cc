#include "src/model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "src/core/convert.h"
#include "src/core/printable.h"
#include "src/device/pieces.h"
#include "src/model/families.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr const char* embedding_name = "model.embed_tokens.weight";
constexpr const char* head_name = "lm_head.weight";

/// Rows of a matrix as float32, wherever they are.
void rows_of(const MatrixSource& source, std::int64_t first, std::int64_t rows,
             std::vector<float>& out) {
  const Matrix& form = source.form;
  out.resize(static_cast<std::size_t>(rows * form.in_features));
  to_float(form.data + first * form.row_bytes(), form.dtype, rows * form.in_features, out.data());
}

bool same_values(const MatrixSource& a, const MatrixSource& b) {
  if (a.form.packed() || b.form.packed()) return false;
  const std::int64_t count = a.form.out_features;
  if (a.form.dtype == b.form.dtype &&
      std::memcmp(a.form.data, b.form.data, static_cast<std::size_t>(a.form.bytes())) == 0) {
    return true;
  }
  std::vector<float> left;
  std::vector<float> right;
  constexpr std::int64_t block = 16;
  for (std::int64_t at = 0; at < count; at += block) {
    const std::int64_t rows = std::min(block, count - at);
    rows_of(a, at, rows, left);
    rows_of(b, at, rows, right);
    if (left != right) return false;
  }
  return true;
}

/// Lays weights out behind each other and, when there is storage, puts them there.
class Placer {
 public:
  Placer(const Checkpoint& from, const DeviceSizes& measure, WeightFormat format)
      : from_(from), measure_(measure), format_(format) {}
  /// size: what a Placer without storage found.
  Placer(const Checkpoint& from, ComputeDevice& device, const LoadOptions& options,
         const WeightsSize& size, std::byte* storage)
      : from_(from),
        measure_(device),
        format_(options.weights),
        device_(&device),
        storage_(storage),
        progress_(options.progress),
        total_(size.held) {}

  WeightsSize size() const { return {pieces_.used(), held_, packed_, embedding_}; }

  Matrix matrix(const std::string& name, std::int64_t out, std::int64_t in) {
    return rows(name, 0, out, out, in);
  }

  /// Rows first .. first + out of a matrix of `of` rows: several lie in one tensor behind each
  /// other.
  Matrix rows(const std::string& name, std::int64_t first, std::int64_t out, std::int64_t of,
              std::int64_t in) {
    return place(from_.matrix(name, {first, out, of}, in, format_));
  }

  /// The embedding or the output layer: int8 where other matrices are int4.
  Matrix table(const std::string& name, const ModelConfig& config) {
    const WeightFormat format = format_ == WeightFormat::int4 ? WeightFormat::int8 : format_;
    const std::int64_t rows = config.vocab_size;
    return place(from_.matrix(name, {0, rows, rows}, config.hidden_size, format));
  }

  /// A tied one may be in the file as the output layer alone.
  Matrix embedding(const ModelConfig& config) {
    const bool as_head =
        config.tied_embeddings && !from_.has(embedding_name) && from_.has(head_name);
    const std::int64_t before = held_;
    Matrix matrix = table(as_head ? head_name : embedding_name, config);
    embedding_ = held_ - before;
    return matrix;
  }

  /// offset: added to each value.
  Vector vector(const std::string& name, std::int64_t size, float offset = 0) {
    values_.resize(static_cast<std::size_t>(size));
    count(from_.vector(name, values_));
    const std::int64_t bytes = size * bytes_of(DType::f32);
    const std::int64_t at = pieces_.place(bytes);
    if (device_ == nullptr) return {nullptr, size};
    for (float& value : values_) value += offset;
    device_->copy_in(values_.data(), bytes, storage_ + at);
    return {reinterpret_cast<const float*>(storage_ + at), size};
  }

 private:
  Matrix place(const MatrixSource& source) {
    Matrix matrix = source.form;
    packed_ = packed_ || matrix.packed();
    const std::int64_t at =
        pieces_.place(matrix.packed() ? matrix.bytes() : measure_.upload_bytes(matrix));
    if (device_ == nullptr) {
      count(matrix.bytes());
      return matrix;
    }
    if (!matrix.packed()) {
      matrix = device_->upload(matrix, storage_ + at);
      count(source.form.bytes());
      return matrix;
    }
    make(source, storage_ + at);
    if (matrix.has_order) {
      device_->copy_in(source.order.data(), matrix.in_features * std::int64_t{4},
                       storage_ + at + matrix.order_at());
    }
    matrix.data = storage_ + at;
    return matrix;
  }

  /// Makes a packed matrix at `to`, a piece of its rows at a time.
  void make(const MatrixSource& source, std::byte* to) {
    const Matrix& form = source.form;
    const std::int64_t groups = form.groups();
    const std::int64_t most = std::max<std::int64_t>(1, piece_bytes / form.row_bytes());
    for (std::int64_t first = 0; first < form.out_features; first += most) {
      const std::int64_t rows = std::min(most, form.out_features - first);
      codes_.assign(static_cast<std::size_t>(rows * form.row_bytes()), std::byte{0});
      scales_.resize(static_cast<std::size_t>(rows * groups));
      offsets_.resize(form.has_offsets ? scales_.size() : 0);
      source.make(first, rows,
                  {codes_.data(), scales_.data(), form.has_offsets ? offsets_.data() : nullptr});
      const std::int64_t factor_bytes = rows * groups * bytes_of(DType::f32);
      const std::int64_t factors_before = first * groups * bytes_of(DType::f32);
      device_->copy_in(codes_.data(), rows * form.row_bytes(), to + first * form.row_bytes());
      device_->copy_in(scales_.data(), factor_bytes, to + form.scales_at() + factors_before);
      if (form.has_offsets)
        device_->copy_in(offsets_.data(), factor_bytes, to + form.offsets_at() + factors_before);
      count(form.bytes() * (first + rows) / form.out_features -
            form.bytes() * first / form.out_features);
    }
  }

  void count(std::int64_t bytes) {
    held_ += bytes;
    if (progress_) progress_({"weights", "bytes", held_, total_});
  }

  static constexpr std::int64_t piece_bytes = std::int64_t{16} << 20;  // of codes

  const Checkpoint& from_;
  const DeviceSizes& measure_;
  const WeightFormat format_;
  ComputeDevice* device_ = nullptr;  // null: only measure
  std::byte* storage_ = nullptr;
  ProgressFn progress_;
  std::int64_t total_ = 0;
  Pieces pieces_;
  std::int64_t held_ = 0;
  bool packed_ = false;
  std::int64_t embedding_ = 0;
  std::vector<std::byte> codes_;
  std::vector<float> scales_, offsets_, values_;
};

Weights place(Placer& placer, const ModelConfig& config) {
  const Family& family = family_of(config);
  const auto optional_vector = [&](bool wanted, const std::string& name, std::int64_t size) {
    return wanted ? placer.vector(name, size) : Vector();
  };
  const auto norm = [&](std::string_view at, std::string_view name, std::int64_t size) {
    if (name.empty()) return Vector();
    return placer.vector(fmt::format("{}{}.weight", at, name), size,
                         static_cast<float>(family.norm_offset));
  };

  const std::int64_t hidden = config.hidden_size;
  const std::int64_t mlp = config.intermediate_size;
  const std::int64_t head = config.attention.head_dim;
  const std::int64_t q_size = config.attention.q_heads * head;
  const std::int64_t kv_size = config.attention.kv_heads * head;

  Weights weights;
  weights.embedding = placer.embedding(config);
  for (std::int64_t l = 0; l < config.attention.layers; ++l) {
    const std::string at = fmt::format("model.layers.{}.", l);
    const std::string attn = at + "self_attn.";
    LayerWeights layer;
    layer.input_norm = norm(at, family.norms.before_attention, hidden);
    layer.attention_norm = norm(at, family.norms.after_attention, hidden);
    layer.mlp_norm = norm(at, family.norms.before_mlp, hidden);
    layer.mlp_output_norm = norm(at, family.norms.after_mlp, hidden);
    if (family.fused_qkv) {
      const std::int64_t all = q_size + 2 * kv_size;
      const std::string name = attn + "qkv_proj.weight";
      layer.q = placer.rows(name, 0, q_size, all, hidden);
      layer.k = placer.rows(name, q_size, kv_size, all, hidden);
      layer.v = placer.rows(name, q_size + kv_size, kv_size, all, hidden);
    } else {
      layer.q = placer.matrix(attn + "q_proj.weight", q_size, hidden);
      layer.k = placer.matrix(attn + "k_proj.weight", kv_size, hidden);
      layer.v = placer.matrix(attn + "v_proj.weight", kv_size, hidden);
    }
    layer.o = placer.matrix(attn + "o_proj.weight", hidden, q_size);
    layer.q_bias = optional_vector(config.qkv_bias, attn + "q_proj.bias", q_size);
    layer.k_bias = optional_vector(config.qkv_bias, attn + "k_proj.bias", kv_size);
    layer.v_bias = optional_vector(config.qkv_bias, attn + "v_proj.bias", kv_size);
    layer.o_bias = optional_vector(config.o_bias, attn + "o_proj.bias", hidden);
    if (config.qk_norm) {
      layer.q_norm = norm(attn, "q_norm", config.qk_norm_whole ? q_size : head);
      layer.k_norm = norm(attn, "k_norm", config.qk_norm_whole ? kv_size : head);
    }
    if (family.fused_gate_up) {
      layer.gate = placer.rows(at + "mlp.gate_up_proj.weight", 0, mlp, 2 * mlp, hidden);
      layer.up = placer.rows(at + "mlp.gate_up_proj.weight", mlp, mlp, 2 * mlp, hidden);
    } else {
      layer.gate = placer.matrix(at + "mlp.gate_proj.weight", mlp, hidden);
      layer.up = placer.matrix(at + "mlp.up_proj.weight", mlp, hidden);
    }
    layer.down = placer.matrix(at + "mlp.down_proj.weight", hidden, mlp);
    layer.gate_bias = optional_vector(config.mlp_bias, at + "mlp.gate_proj.bias", mlp);
    layer.up_bias = optional_vector(config.mlp_bias, at + "mlp.up_proj.bias", mlp);
    layer.down_bias = optional_vector(config.mlp_bias, at + "mlp.down_proj.bias", hidden);
    weights.layers.push_back(std::move(layer));
  }
  weights.final_norm = norm("model.", "norm", hidden);
  weights.lm_head = config.tied_embeddings ? weights.embedding : placer.table(head_name, config);
  return weights;
}

}  // namespace

std::string Weights::settle_tie(const Checkpoint& from, ModelConfig& config) {
  if (!config.tied_embeddings) return {};
  if (!from.has(embedding_name) || !from.has(head_name)) return {};
  const MatrixRows all{0, config.vocab_size, config.vocab_size};
  const auto stored = [&](const char* name) {
    return from.matrix(name, all, config.hidden_size, WeightFormat::stored);
  };
  if (same_values(stored(embedding_name), stored(head_name))) return {};
  config.tied_embeddings = false;
  return fmt::format(
      "{}: tensors {} and {} differ, though config.json ties them (tie_word_embeddings); each is "
      "used as it is, as in transformers: set tie_word_embeddings to false if that is right",
      path_text(from.source()), embedding_name, head_name);
}

WeightsSize Weights::size(const Checkpoint& from, const ModelConfig& config,
                          const DeviceSizes& device, WeightFormat format) {
  if (format != WeightFormat::stored && !from.quantised().empty()) {
    throw Unsupported(fmt::format(
        "{}: the weights are quantised already ({}) and are not rounded once more to {}; load them "
        "as they are stored (--weights stored), or a checkpoint of this model in bf16",
        path_text(from.source()), from.quantised(), name_of(format)));
  }
  Placer placer(from, device, format);
  place(placer, config);
  return placer.size();
}

Weights Weights::load(const Checkpoint& from, const ModelConfig& config, ComputeDevice& device,
                      const LoadOptions& options) {
  const WeightsSize all = size(from, config, device, options.weights);
  if (all.packed) device.prepare_packed();
  Buffer storage = device.allocate(all.device, "weights");
  Placer placer(from, device, options, all, storage.data());
  Weights weights = place(placer, config);
  weights.storage = std::move(storage);
  return weights;
}

}  // namespace topkv
