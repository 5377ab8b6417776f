#include "src/model/weights/gguf_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/core/format/gguf_file.h"
#include "src/core/math/convert.h"
#include "src/core/text/printable.h"
#include "src/core/threads/threads.h"
#include "src/model/families/gguf_architecture.h"
#include "src/model/weights/check_finite.h"
#include "src/model/weights/gguf_blocks.h"
#include "src/model/weights/safetensors_file.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Tensor = GgufFile::Tensor;

constexpr std::array<GgufName, 8> whole_names = {
    {{"model.embed_tokens", "token_embd"},
     {"model.norm", "output_norm"},
     {"model.norm_f", "output_norm"},
     {"model.embedding_norm", "token_embd_norm"},
     {"lm_head", "output"},
     {"model.embed_tokens_per_layer", "per_layer_token_embd"},
     {"model.per_layer_model_projection", "per_layer_model_proj"},
     {"model.per_layer_projection_norm", "per_layer_proj_norm"}}};
/// Granite's gate and up, which are one matrix there and two in a file.
constexpr std::string_view fused_mlp = "shared_mlp.input_linear.weight";

/// Empty: it is not among the names.
std::string_view renamed(std::span<const GgufName> names, std::string_view name) {
  const auto found = std::ranges::find(names, name, &GgufName::first);
  return found == names.end() ? std::string_view() : found->second;
}

/// "model.layers.3.mlp.up_proj.weight": layer "3", part "mlp.up_proj.weight".
struct LayerPart {
  std::string_view layer;
  std::string_view part;
};

std::optional<LayerPart> layer_part(std::string_view name) {
  constexpr std::string_view layers = "model.layers.";
  if (!name.starts_with(layers)) return {};
  name.remove_prefix(layers.size());
  const std::size_t dot = name.find('.');
  return LayerPart{name.substr(0, dot), name.substr(dot + 1)};
}

/// Of a matrix of an MLP ("ffn_up.weight"): as a shared expert it is called otherwise.
std::string beside_experts(const GgufArchitecture& architecture, std::string_view name) {
  const std::size_t dot = name.find('.');
  const bool beside = architecture.experts && architecture.family().mixture.shared_is_mlp;
  if (!beside || !name.starts_with("ffn_")) return std::string(name);
  return fmt::format("{}_shexp{}", name.substr(0, dot), name.substr(dot));
}

/// "model.layers.3.mlp.up_proj.weight" to "blk.3.ffn_up.weight".
std::string gguf_name(const GgufArchitecture& architecture, std::string_view name) {
  const auto in_layer = layer_part(name);
  const std::string_view part = in_layer ? in_layer->part : name;
  if (in_layer && part == "self_attn.sinks")
    return fmt::format("blk.{}.{}.weight", in_layer->layer, gguf_sinks);
  if (const auto delta = renamed(gguf_delta(), part); in_layer && !delta.empty())
    return fmt::format("blk.{}.{}", in_layer->layer, delta);
  if (const auto own = renamed(architecture.parts, part); in_layer && !own.empty())
    return fmt::format("blk.{}.{}", in_layer->layer, beside_experts(architecture, own));
  if (const std::string_view whole = renamed(architecture.scales, part); in_layer && !whole.empty())
    return fmt::format("blk.{}.{}", in_layer->layer, whole);
  if (in_layer && part == architecture.family().mixture.choice_bias)
    return fmt::format("blk.{}.{}", in_layer->layer, gguf_choice_bias);
  const std::size_t last = part.rfind('.');
  const std::string_view module = part.substr(0, last);
  const std::string_view kind = part.substr(last);
  if (!in_layer) return fmt::format("{}{}", renamed(whole_names, module), kind);
  std::string_view found = renamed(gguf_projections(), module);
  if (found.empty()) found = renamed(gguf_latent_projections(), module);
  if (found.empty()) found = renamed(architecture.norms, module);
  if (found.empty()) found = renamed(gguf_shared_expert(), module);
  if (architecture.experts && module == architecture.family().mixture.router) found = gguf_router;
  return fmt::format("blk.{}.{}{}", in_layer->layer, found, kind);
}

/// A projection of an expert, as FamilyMixture names it.
struct ExpertPart {
  std::string layer;
  std::size_t projection = 0;  // of FamilyMixture::projections
  std::int64_t expert = 0;
};

/// Of the name of one expert's matrix: "model.layers.3.mlp.experts.5.up_proj.weight".
std::optional<ExpertPart> expert_part(const GgufArchitecture& architecture, std::string_view name) {
  const auto in_layer = layer_part(name);
  if (!architecture.experts || !in_layer) return {};
  const FamilyMixture& mixture = architecture.family().mixture;
  const std::string before = fmt::format("{}.", mixture.experts_at);
  if (!in_layer->part.starts_with(before)) return {};
  const std::string_view rest = in_layer->part.substr(before.size());
  const std::size_t dot = rest.find('.');
  ExpertPart found{std::string(in_layer->layer)};
  std::from_chars(rest.data(), rest.data() + dot, found.expert);
  for (const std::string_view projection : mixture.projections) {
    if (rest.substr(dot + 1) == fmt::format("{}.weight", projection)) return found;
    ++found.projection;
  }
  return {};
}

std::optional<DType> plain_type(const GgmlType& type) {
  if (type.name == "f32") return DType::f32;
  if (type.name == "f16") return DType::f16;
  if (type.name == "bf16") return DType::bf16;
  return {};
}

/// Rows of blocks, packed.
struct Unpack {
  const BlockFormat* format;
  const GgmlType* type;
  const std::byte* blocks;  // of the first row of the matrix
  Matrix form;
  std::string what;
  std::int64_t first_row;  // of the matrix, in the tensor
  float scale;             // of all values

  void check(std::int64_t row, std::int64_t input, float factor) const {
    if (std::abs(factor) <= 1e30F) return;
    throw FileError(
        fmt::format("{} has scale or offset {} at [{}, {}]; expected finite numbers of at most "
                    "1e30: the file is damaged, or its source model is",
                    what, factor, first_row + row, input));
  }

  void operator()(std::int64_t first, std::int64_t count, const PackedRows& to) const {
    const std::int64_t blocks_of_row = form.in_features / type->inputs;
    const std::int64_t groups_of_block = type->inputs / form.group;
    parallel_for_alone(count, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::int8_t> codes(static_cast<std::size_t>(form.in_features));
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t row = first + r;
        float* const scales = to.scales + r * form.groups();
        float* const offsets = to.offsets == nullptr ? nullptr : to.offsets + r * form.groups();
        for (std::int64_t b = 0; b < blocks_of_row; ++b) {
          const std::int64_t g = b * groups_of_block;
          format->read(blocks + (row * blocks_of_row + b) * type->bytes,
                       codes.data() + b * type->inputs, scales + g,
                       offsets == nullptr ? nullptr : offsets + g);
        }
        for (std::int64_t g = 0; g < form.groups(); ++g) {
          scales[g] *= scale;
          check(row, g * form.group, scales[g]);
          if (offsets == nullptr) continue;
          offsets[g] *= scale;
          check(row, g * form.group, offsets[g]);
        }
        std::byte* const out = to.codes + r * form.row_bytes();
        if (form.packing == Packing::int4) {
          pack_int4(codes.data(), form.in_features, out);
        } else if (form.packing == Packing::fp4) {
          pack_nibbles(reinterpret_cast<const std::uint8_t*>(codes.data()), form.in_features, out);
        } else {
          std::copy_n(reinterpret_cast<const std::byte*>(codes.data()), form.in_features, out);
        }
      }
    });
  }
};

class GgufCheckpoint : public Checkpoint {
 public:
  explicit GgufCheckpoint(const std::filesystem::path& file)
      : file_(GgufFile::open(file)), architecture_(architecture_of(file_)) {}

  const std::filesystem::path& source() const override { return file_.path(); }

  std::string quantised() const override {
    std::map<std::string_view, std::size_t> bytes;  // of matrices, by type
    for (const auto& [name, tensor] : file_.tensors()) {
      if (tensor.shape.size() >= 2 && !plain_type(*tensor.type)) {
        bytes[tensor.type->name] += tensor.bytes.size();
      }
    }
    std::vector<std::pair<std::size_t, std::string_view>> order;
    for (const auto& [name, size] : bytes) order.emplace_back(size, name);
    std::ranges::sort(order, std::greater<>());
    std::vector<std::string_view> names;
    for (const auto& [size, name] : order) names.push_back(name);
    return names.empty() ? std::string() : fmt::format("gguf, {}", fmt::join(names, ", "));
  }

  bool has(const std::string& name) const override {
    return file_.tensors().find(gguf_name(architecture_, name)) != file_.tensors().end();
  }

  MatrixSource matrix(const std::string& name, MatrixRows rows, std::int64_t in,
                      WeightFormat format) const override {
    if (const auto expert = expert_part(architecture_, name))
      return expert_matrix(*expert, experts(), rows.of, in, format);
    if (const auto in_layer = layer_part(name); in_layer && in_layer->part == fused_mlp) {
      const char* half = rows.first == 0 ? "ffn_gate.weight" : "ffn_up.weight";
      const std::string stored =
          fmt::format("blk.{}.{}", in_layer->layer, beside_experts(architecture_, half));
      return matrix_of(get(stored, {rows.count, in}), 0, {0, rows.count, rows.count}, in, format,
                       what_of(stored), scale_of(stored));
    }
    const std::string stored = gguf_name(architecture_, name);
    if (const auto fused = rows_in_qkv(stored, rows.of)) {
      const std::string all = in_qkv(stored);
      return matrix_of(get(all, {fused->of, in}), 0, *fused, in, format, what_of(all),
                       scale_of(all));
    }
    return matrix_of(get(stored, {rows.of, in}), 0, rows, in, format, what_of(stored),
                     scale_of(stored));
  }

  MatrixSource fused_expert(const std::string& name, const FusedExpert& which, std::int64_t out,
                            std::int64_t in, WeightFormat format) const override {
    // Gate and up, whose outputs take turns in transformers' tensor, are tensors of their own here.
    const std::size_t projection = which.step == 2 ? static_cast<std::size_t>(which.first) : 2;
    return expert_matrix({std::string(layer_part(name)->layer), projection, which.expert},
                         which.experts, out, in, format);
  }

  MatrixSource stacked_expert(const std::string& name, const StackedExpert& which, std::int64_t out,
                              std::int64_t in, WeightFormat format) const override {
    const auto projection = static_cast<std::size_t>(which.parts == 2 ? which.part : 2);
    return expert_matrix({std::string(layer_part(name)->layer), projection, which.expert},
                         which.experts, out, in, format);
  }
  MatrixSource latent_keys(const LatentHead& of, WeightFormat format) const override {
    return head_matrix(gguf_latent_keys, of, of.kv_rank, of.nope_dim, format);
  }
  MatrixSource latent_values(const LatentHead& of, WeightFormat format) const override {
    return head_matrix(gguf_latent_values, of, of.value_dim, of.kv_rank, format);
  }

  std::int64_t fused_biases(const std::string& name, std::int64_t experts,
                            std::span<float> to) const override {
    const std::string at = fmt::format("blk.{}.", layer_part(name)->layer);
    const auto count = static_cast<std::int64_t>(to.size());
    const auto read = [&](std::string_view part, std::int64_t width, std::span<float> values) {
      return widened(fmt::format("{}{}.bias", at, part), {experts, width}, values);
    };
    if (name.ends_with("down_proj_bias")) return read(gguf_experts()[2], count / experts, to);
    const std::int64_t width = count / experts / 2;
    std::vector<float> values(to.size());
    std::int64_t bytes = 0;
    std::int64_t stride = width;  // from an expert to the next, in values
    if (has_stored(fmt::format("{}{}.bias", at, gguf_gate_up_experts))) {
      stride = 2 * width;
      bytes = read(gguf_gate_up_experts, stride, values);
    } else {
      const std::span<float> all(values);
      bytes = read(gguf_experts()[0], width, all.first(to.size() / 2));
      bytes += read(gguf_experts()[1], width, all.last(to.size() / 2));
    }
    const std::int64_t up_at = stride == width ? count / 2 : width;
    for (std::int64_t i = 0; i < count / 2; ++i) {
      const std::int64_t from = i / width * stride + i % width;
      to[static_cast<std::size_t>(2 * i)] = values[static_cast<std::size_t>(from)];
      to[static_cast<std::size_t>(2 * i + 1)] = values[static_cast<std::size_t>(from + up_at)];
    }
    return bytes;
  }

  bool has_whole_vectors() const override { return true; }

  std::int64_t vector(const std::string& name, std::span<float> to) const override {
    const std::string stored = gguf_name(architecture_, name);
    const auto size = static_cast<std::int64_t>(to.size());
    if (const auto fused = rows_in_qkv(stored, size)) {
      std::vector<float> all(static_cast<std::size_t>(fused->of));
      const std::int64_t bytes = widened(in_qkv(stored), {fused->of}, all);
      std::copy_n(all.begin() + fused->first, size, to.begin());
      return bytes / fused->of * size;
    }
    return widened(stored, shape_of_vector(stored, size), to);
  }

  std::int64_t convolution(const std::string& name, std::int64_t channels, std::int64_t kernel,
                           std::span<float> to) const override {
    return widened(gguf_name(architecture_, name), {channels, kernel}, to);
  }

  void check_finite() const override {
    const std::int64_t layers = blocks_of(file_, architecture_).layers;
    for (const auto& [name, tensor] : file_.tensors()) {
      if (block_of(name).value_or(0) >= layers) continue;  // is not read
      if (const auto dtype = plain_type(*tensor.type))
        topkv::check_finite(tensor.bytes.data(), *dtype, tensor.shape, what_of(name));
    }
  }

 private:
  std::string what_of(std::string_view name) const {
    return fmt::format("{}: tensor {}", path_text(path_of(name)), printable_beginning(name));
  }
  /// The file that has the tensor; the first if none has it.
  const std::filesystem::path& path_of(std::string_view name) const {
    const auto found = file_.tensors().find(name);
    return found == file_.tensors().end() ? file_.path() : file_.path_of(found->second);
  }

  /// Vectors of Mamba-2 layers have a second dimension: [heads, 1], [groups, width of a group].
  std::vector<std::int64_t> shape_of_vector(std::string_view stored, std::int64_t size) const {
    const auto found = file_.tensors().find(stored);
    if (architecture_.family().mamba.sizes.heads > 0 && found != file_.tensors().end()) {
      const std::vector<std::int64_t>& shape = found->second.shape;
      if (shape.size() == 2 && shape[1] > 0 && size % shape[1] == 0 && shape[0] == size / shape[1])
        return shape;
    }
    return {size};
  }

  bool has_stored(std::string_view name) const {
    return file_.tensors().find(name) != file_.tensors().end();
  }

  /// What all values of a matrix are multiplied by, "blk.3.ffn_up.scale" for "blk.3.ffn_up.weight":
  /// nvfp4's second scale. Stacked experts have one each.
  float scale_of(std::string_view stored, std::int64_t expert = 0, std::int64_t experts = 1) const {
    const std::string name = fmt::format("{}.scale", stored.substr(0, stored.rfind('.')));
    if (!has_stored(name)) return 1;
    // Gemma 4's router and experts have scales of this name that the network reads by itself.
    const std::string_view in_layer = std::string_view(name).substr(name.find('.', 4) + 1);
    if (std::ranges::find(architecture_.scales, in_layer, &GgufName::second) !=
        architecture_.scales.end())
      return 1;
    std::vector<float> scales(static_cast<std::size_t>(experts));
    widened(name, {experts}, scales);
    return scales[static_cast<std::size_t>(expert)];
  }

  std::int64_t experts() const {
    return file_.integer(fmt::format("{}.expert_count", architecture_.name), 1, INT32_MAX);
  }

  /// "blk.3.attn_q.bias" to "blk.3.attn_qkv.bias".
  static std::string in_qkv(std::string_view stored) {
    return fmt::format("{}.{}{}", stored.substr(0, stored.find('.', 4)), gguf_qkv,
                       stored.substr(stored.rfind('.')));
  }

  /// Of q, k or v that is not there by itself and whose layer has all three in one tensor: its rows
  /// in that. count: its own.
  std::optional<MatrixRows> rows_in_qkv(std::string_view stored, std::int64_t count) const {
    const std::size_t attention = stored.find(".attn_");
    if (attention == stored.npos || has_stored(stored) || !has_stored(in_qkv(stored))) return {};
    const std::string_view part = stored.substr(attention + 6);
    const std::string at = fmt::format("{}.attention.head_count", architecture_.name);
    const std::int64_t heads = file_.integer(at, 1, INT32_MAX);
    const std::int64_t kv_heads = file_.integer(at + "_kv", 1, INT32_MAX, heads);
    const std::int64_t in_q = architecture_.family().output_gate ? 2 : 1;  // q and its gate
    if (part.starts_with("q.")) {
      return MatrixRows{0, count, count + 2 * (count / (in_q * heads) * kv_heads)};
    }
    const std::int64_t q_rows = count / kv_heads * heads * in_q;
    if (part.starts_with("k.")) return MatrixRows{q_rows, count, q_rows + 2 * count};
    if (part.starts_with("v.")) return MatrixRows{q_rows + count, count, q_rows + 2 * count};
    return {};
  }

  /// A head's matrix of a tensor [heads, out, in].
  MatrixSource head_matrix(std::string_view name, const LatentHead& of, std::int64_t out,
                           std::int64_t in, WeightFormat format) const {
    const std::string stored = fmt::format("blk.{}.{}.weight", layer_part(of.layer)->layer, name);
    return matrix_of(get(stored, {of.heads, out, in}), of.head * out, {0, out, out}, in, format,
                     fmt::format("{}: head {} of tensor {}", path_text(path_of(stored)), of.head,
                                 printable_beginning(stored)),
                     scale_of(stored));
  }

  MatrixSource expert_matrix(const ExpertPart& part, std::int64_t experts, std::int64_t out,
                             std::int64_t in, WeightFormat format) const {
    const std::string at = fmt::format("blk.{}.", part.layer);
    const auto stacked = [&](std::string_view name, std::int64_t rows, std::int64_t first) {
      const std::string stored = fmt::format("{}{}.weight", at, name);
      return matrix_of(get(stored, {experts, rows, in}), part.expert * rows, {first, out, rows}, in,
                       format,
                       fmt::format("{}: expert {} of tensor {}", path_text(path_of(stored)),
                                   part.expert, printable_beginning(stored)),
                       scale_of(stored, part.expert, experts));
    };
    const std::string_view own = gguf_experts()[part.projection];
    if (!has_stored(fmt::format("{}{}.weight", at, own))) {
      if (part.projection < 2 && has_stored(fmt::format("{}{}.weight", at, gguf_gate_up_experts))) {
        return stacked(gguf_gate_up_experts, 2 * out,
                       part.projection * static_cast<std::size_t>(out));
      }
      constexpr std::array<std::string_view, 3> alone = {"ffn_gate", "ffn_up", "ffn_down"};
      const std::string stored =
          fmt::format("{}{}.weight", at, gguf_expert(alone[part.projection], part.expert));
      if (has_stored(stored))
        return matrix_of(get(stored, {out, in}), 0, {0, out, out}, in, format, what_of(stored),
                         scale_of(stored));
    }
    return stacked(own, out, 0);
  }

  /// Rows of one of the matrices of a tensor, each [rows.of, in]; before: rows of those in front.
  static MatrixSource matrix_of(const Tensor& tensor, std::int64_t before, MatrixRows rows,
                                std::int64_t in, WeightFormat format, const std::string& what,
                                float scale) {
    const GgmlType& type = *tensor.type;
    const std::byte* const data =
        tensor.bytes.data() + (before + rows.first) * (in / type.inputs * type.bytes);
    if (const auto dtype = plain_type(type)) {
      if (scale == 1) return plain_matrix({data, *dtype, rows.count, in}, format, what, rows.first);
      throw Unsupported(fmt::format(
          "{} is of type {} and has a scale ({}) in a tensor of its own; topkv reads such scales "
          "of quantised matrices",
          what, type.name, scale));
    }
    const BlockFormat* blocks = find_block_format(type);
    if (blocks == nullptr) {
      throw Unsupported(fmt::format(
          "{} is of type {}, which is not implemented; topkv reads f32, f16, bf16, q4_0, q4_1, "
          "q5_0, q5_1, q8_0, q2_K to q6_K, the types iq1 to iq4, tq1_0, tq2_0, mxfp4 and nvfp4: "
          "convert the model to one of them",
          what, type.name));
    }
    Matrix form{nullptr,         DType::f32,    rows.count,         in,
                blocks->packing, blocks->group, blocks->has_offsets};
    return {form, Unpack{blocks, &type, data, form, what, rows.first, scale}, {}};
  }

  /// Values of a plain tensor of this shape. Returns its bytes in the file.
  std::int64_t widened(const std::string& stored, const std::vector<std::int64_t>& shape,
                       std::span<float> to) const {
    const Tensor& tensor = get(stored, shape);
    const auto dtype = plain_type(*tensor.type);
    if (!dtype) {
      throw Unsupported(fmt::format(
          "{}: tensor {} is of type {}; topkv reads norms and biases in f32, f16 and bf16",
          path_text(path_of(stored)), stored, tensor.type->name));
    }
    topkv::check_finite(tensor.bytes.data(), *dtype, tensor.shape, what_of(stored));
    to_float(tensor.bytes.data(), *dtype, std::ssize(to), to.data());
    return static_cast<std::int64_t>(tensor.bytes.size());
  }

  const Tensor& get(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const auto found = file_.tensors().find(name);
    if (found == file_.tensors().end()) {
      throw FileError(fmt::format("{}: has no tensor {}; expected one of shape {}",
                                  path_text(source()), name, shown_shape(shape)));
    }
    // llama.cpp takes a matrix of one row for a vector.
    const bool one_row =
        shape.size() == 2 && shape.front() == 1 && found->second.shape == std::vector{shape.back()};
    if (found->second.shape != shape && !one_row) {
      throw FileError(fmt::format("{}: tensor {} has shape {}; expected {}",
                                  path_text(path_of(name)), name, shown_shape(found->second.shape),
                                  shown_shape(shape)));
    }
    return found->second;
  }

  GgufFile file_;
  const GgufArchitecture& architecture_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_gguf(const std::filesystem::path& file) {
  return std::make_unique<GgufCheckpoint>(file);
}

}  // namespace topkv
