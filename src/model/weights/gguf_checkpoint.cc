#include "src/model/weights/gguf_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
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

constexpr std::array<GgufName, 3> whole_names = {
    {{"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}}};

/// Empty: it is not among the names.
std::string_view renamed(std::span<const GgufName> names, std::string_view name) {
  const auto found = std::ranges::find(names, name, &GgufName::first);
  return found == names.end() ? std::string_view() : found->second;
}

/// "model.layers.3.mlp.up_proj.weight" to "blk.3.ffn_up.weight".
std::string gguf_name(const GgufArchitecture& architecture, std::string_view name) {
  constexpr std::string_view layers = "model.layers.";
  const std::size_t last = name.rfind('.');
  const std::string_view kind = name.substr(last);
  std::string_view rest = name.substr(0, last);
  if (!rest.starts_with(layers)) return fmt::format("{}{}", renamed(whole_names, rest), kind);
  rest.remove_prefix(layers.size());
  const std::size_t dot = rest.find('.');
  const std::string_view part = rest.substr(dot + 1);
  std::string_view renamed_part = renamed(gguf_projections(), part);
  if (renamed_part.empty()) renamed_part = renamed(architecture.norms, part);
  return fmt::format("blk.{}.{}{}", rest.substr(0, dot), renamed_part, kind);
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
          check(row, g * form.group, scales[g]);
          if (offsets != nullptr) check(row, g * form.group, offsets[g]);
        }
        std::byte* const out = to.codes + r * form.row_bytes();
        if (form.packing == Packing::int4) {
          pack_int4(codes.data(), form.in_features, out);
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
      if (tensor.shape.size() == 2 && !plain_type(*tensor.type)) {
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
    const std::string stored = gguf_name(architecture_, name);
    const Tensor& tensor = get(stored, {rows.of, in});
    const std::string what = what_of(stored);
    if (const auto dtype = plain_type(*tensor.type)) {
      const Matrix plain{tensor.bytes.data() + rows.first * in * bytes_of(*dtype), *dtype,
                         rows.count, in};
      return plain_matrix(plain, format, what, rows.first);
    }
    const BlockFormat* blocks = find_block_format(*tensor.type);
    if (blocks == nullptr) {
      throw Unsupported(fmt::format(
          "{} is of type {}, which is not implemented; topkv reads f32, f16, bf16, q8_0, q4_0, "
          "q4_1, q5_0, q5_1, q2_K to q6_K, iq4_nl and iq4_xs: convert the model to one of them",
          what, tensor.type->name));
    }
    Matrix form{nullptr,         DType::f32,    rows.count,         in,
                blocks->packing, blocks->group, blocks->has_offsets};
    const std::int64_t row_bytes = in / tensor.type->inputs * tensor.type->bytes;
    return {form,
            Unpack{blocks, tensor.type, tensor.bytes.data() + rows.first * row_bytes, form, what,
                   rows.first},
            {}};
  }

  bool has_whole_norms() const override { return true; }

  std::int64_t vector(const std::string& name, std::span<float> to) const override {
    const std::string stored = gguf_name(architecture_, name);
    const auto size = static_cast<std::int64_t>(to.size());
    const Tensor& tensor = get(stored, {size});
    const auto dtype = plain_type(*tensor.type);
    if (!dtype) {
      throw Unsupported(fmt::format(
          "{}: tensor {} is of type {}; topkv reads norms and biases in f32, f16 and bf16",
          path_text(source()), stored, tensor.type->name));
    }
    topkv::check_finite(tensor.bytes.data(), *dtype, tensor.shape, what_of(stored));
    to_float(tensor.bytes.data(), *dtype, size, to.data());
    return static_cast<std::int64_t>(tensor.bytes.size());
  }

  void check_finite() const override {
    for (const auto& [name, tensor] : file_.tensors()) {
      if (const auto dtype = plain_type(*tensor.type))
        topkv::check_finite(tensor.bytes.data(), *dtype, tensor.shape, what_of(name));
    }
  }

 private:
  std::string what_of(std::string_view name) const {
    return fmt::format("{}: tensor {}", path_text(source()), printable_beginning(name));
  }

  const Tensor& get(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const auto found = file_.tensors().find(name);
    if (found == file_.tensors().end()) {
      throw FileError(fmt::format("{}: has no tensor {}; expected one of shape {}",
                                  path_text(source()), name, shown_shape(shape)));
    }
    if (found->second.shape != shape) {
      throw FileError(fmt::format("{}: tensor {} has shape {}; expected {}", path_text(source()),
                                  name, shown_shape(found->second.shape), shown_shape(shape)));
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
