#include "src/model/weights/checkpoint.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "src/core/format/gguf_file.h"
#include "src/core/math/packed_product.h"
#include "src/core/text/printable.h"
#include "src/model/weights/described_checkpoint.h"
#include "src/model/weights/gguf_checkpoint.h"
#include "src/model/weights/safetensors_checkpoint.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Rows of each head: keys, then values.
constexpr const char* expansion = "self_attn.kv_b_proj.weight";

[[noreturn]] void refuse(const Checkpoint& checkpoint, const std::string& name) {
  throw Unsupported(fmt::format(
      "{}: has experts in one tensor ({}); topkv reads such tensors from safetensors only",
      path_text(checkpoint.source()), name));
}

/// Makes all of a packed matrix in host memory, and returns its elements as float32.
std::vector<float> unpacked(const MatrixSource& source) {
  Matrix form = source.form;
  std::vector<std::byte> block(static_cast<std::size_t>(form.bytes()) + 64);
  void* at = block.data();
  std::size_t room = block.size();
  auto* const data =
      static_cast<std::byte*>(std::align(64, static_cast<std::size_t>(form.bytes()), at, room));
  const PackedRows rows{
      data, reinterpret_cast<float*>(data + form.scales_at()),
      form.has_offsets ? reinterpret_cast<float*>(data + form.offsets_at()) : nullptr};
  source.make(0, form.out_features, rows);
  if (form.has_order)
    std::memcpy(data + form.order_at(), source.order.data(), source.order.size() * 4);
  form.data = data;
  std::vector<float> values(static_cast<std::size_t>(form.out_features * form.in_features));
  unpack_rows(form, 0, form.out_features, values.data());
  return values;
}

/// The transpose [in, rows.count] of rows of a tensor.
MatrixSource transposed(const Checkpoint& from, const std::string& name, MatrixRows rows,
                        std::int64_t in, WeightFormat format) {
  const MatrixSource whole = from.matrix(name, rows, in, WeightFormat::stored);
  const std::string what = fmt::format("{}: tensor {}", path_text(from.source()), name);
  if (!whole.form.packed() && !whole.make) {
    return stepped_matrix({.data = whole.form.data,
                           .dtype = whole.form.dtype,
                           .out_features = in,
                           .in_features = rows.count,
                           .row_step = 1,
                           .input_step = in},
                          format, what);
  }
  if (!whole.form.packed() || format != WeightFormat::stored)
    throw Unsupported(what +
                      " cannot be transposed; expected plain elements, or codes that are "
                      "kept as they are stored");
  const Matrix form{nullptr, DType::f32, in, rows.count};
  const auto make = [whole](std::int64_t first, std::int64_t count, const PackedRows& to) {
    const std::vector<float> values = unpacked(whole);
    const std::int64_t width = whole.form.in_features;
    const SteppedMatrix turned{.data = reinterpret_cast<const std::byte*>(values.data()),
                               .dtype = DType::f32,
                               .out_features = width,
                               .in_features = whole.form.out_features,
                               .row_step = 1,
                               .input_step = width};
    turned.read(first, count, to.codes);
  };
  return {form, make, {}};
}

}  // namespace

MatrixSource Checkpoint::latent_keys(const LatentHead& of, WeightFormat format) const {
  const std::int64_t rows = of.nope_dim + of.value_dim;
  return transposed(*this, of.layer + expansion, {of.head * rows, of.nope_dim, of.heads * rows},
                    of.kv_rank, format);
}

MatrixSource Checkpoint::latent_values(const LatentHead& of, WeightFormat format) const {
  const std::int64_t rows = of.nope_dim + of.value_dim;
  const MatrixRows of_head{of.head * rows + of.nope_dim, of.value_dim, of.heads * rows};
  return matrix(of.layer + expansion, of_head, of.kv_rank, format);
}

MatrixSource Checkpoint::fused_expert(const std::string& name, const FusedExpert& /*which*/,
                                      std::int64_t /*out*/, std::int64_t /*in*/,
                                      WeightFormat /*format*/) const {
  refuse(*this, name);
}

MatrixSource Checkpoint::stacked_expert(const std::string& name, const StackedExpert& /*which*/,
                                        std::int64_t /*out*/, std::int64_t /*in*/,
                                        WeightFormat /*format*/) const {
  refuse(*this, name);
}

std::int64_t Checkpoint::fused_biases(const std::string& name, std::int64_t /*experts*/,
                                      std::span<float> /*to*/) const {
  refuse(*this, name);
}

std::unique_ptr<Checkpoint> Checkpoint::open(const std::filesystem::path& model) {
  return is_model_file(model) ? open_gguf(model) : open_safetensors(model);
}

std::unique_ptr<Checkpoint> Checkpoint::open_or_describe(const std::filesystem::path& model) {
  return Model::has_weights(model) ? open(model) : describe_checkpoint(model);
}

std::string unread_warning(const Checkpoint& checkpoint) {
  std::vector<std::string> names = checkpoint.unread();
  if (names.empty()) return {};
  for (std::string& name : names) name = printable_beginning(name);
  const bool one = names.size() == 1;
  return fmt::format(
      "{}: {} not used: {}; if the network has a use for {}, config.json does not describe these "
      "weights",
      path_text(checkpoint.source()),
      one ? "a tensor is" : fmt::format("{} tensors are", names.size()), listed(names, 3),
      one ? "it" : "them");
}

}  // namespace topkv
