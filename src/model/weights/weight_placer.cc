#include "src/model/weights/weight_placer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "src/core/math/convert.h"
#include "src/core/math/packed_product.h"
#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::size_t alignment = 256;  // of a packed block

/// Whether the elements of two matrices have one form.
bool alike(const Matrix& a, const Matrix& b) {
  return a.packing == b.packing && (a.packed() || a.dtype == b.dtype) && a.group == b.group &&
         a.has_offsets == b.has_offsets;
}

bool alike(const MatrixSource& a, const MatrixSource& b) {
  return alike(a.form, b.form) && a.order == b.order;
}

/// The rows of several matrices of one form, one behind the other.
MatrixSource joined_rows(std::vector<MatrixSource> sources) {
  MatrixSource all{sources.front().form, {}, sources.front().order};
  all.form.data = nullptr;
  all.form.out_features = 0;
  for (const MatrixSource& one : sources) all.form.out_features += one.form.out_features;
  all.make = [sources = std::move(sources)](std::int64_t first, std::int64_t count,
                                            const PackedRows& to) {
    std::int64_t before = 0;  // rows of the pieces so far
    for (const MatrixSource& one : sources) {
      const Matrix& form = one.form;
      const std::int64_t begin = std::max(first, before);
      const std::int64_t end = std::min(first + count, before + form.out_features);
      if (begin < end) {
        const std::int64_t at = begin - first;
        PackedRows rows;
        rows.codes = to.codes + at * form.row_bytes();
        if (form.packed()) {
          rows.scales = to.scales + at * form.groups();
          rows.offsets = to.offsets == nullptr ? nullptr : to.offsets + at * form.groups();
        }
        if (one.make) {
          one.make(begin - before, end - begin, rows);
        } else {
          std::copy_n(form.data + (begin - before) * form.row_bytes(),
                      (end - begin) * form.row_bytes(), rows.codes);
        }
      }
      before += form.out_features;
    }
  };
  return all;
}

/// The same values in float32. The codes of a packed one are made at once.
MatrixSource widened(MatrixSource source) {
  MatrixSource wide;
  wide.form = {nullptr, DType::f32, source.form.out_features, source.form.in_features};
  wide.make = [source = std::move(source)](std::int64_t first, std::int64_t count,
                                           const PackedRows& to) {
    Matrix form = source.form;
    auto* const out = reinterpret_cast<float*>(to.codes);
    if (!form.packed() && !source.make) {
      to_float(form.data + first * form.row_bytes(), form.dtype, count * form.in_features, out);
      return;
    }
    form.out_features = count;
    std::vector<std::byte> made(static_cast<std::size_t>(form.bytes()) + alignment);
    void* begin = made.data();
    std::size_t room = made.size();
    auto* const data = static_cast<std::byte*>(
        std::align(alignment, static_cast<std::size_t>(form.bytes()), begin, room));
    form.data = data;
    if (!form.packed()) {
      source.make(first, count, {data, nullptr, nullptr});
      to_float(data, form.dtype, count * form.in_features, out);
      return;
    }
    source.make(first, count,
                {data, reinterpret_cast<float*>(data + form.scales_at()),
                 form.has_offsets ? reinterpret_cast<float*>(data + form.offsets_at()) : nullptr});
    if (form.has_order) {
      std::memcpy(data + form.order_at(), source.order.data(),
                  source.order.size() * sizeof source.order.front());
    }
    unpack_rows(form, 0, count, out);
  };
  return wide;
}

}  // namespace

ExpertMatrices Placer::experts(const ExpertMixture& mixture, const MatrixOf& source) {
  const std::int64_t before = held_;
  ExpertMatrices all = alike_matrices(mixture.experts, source);
  idle_ += (held_ - before) / mixture.experts * (mixture.experts - mixture.per_token);
  return all;
}

ExpertMatrices Placer::alike_matrices(std::int64_t count, const MatrixOf& source) {
  std::vector<MatrixSource> sources;
  for (std::int64_t e = 0; e < count; ++e) sources.push_back(source(e));
  make_alike(sources);
  const std::int64_t bytes = bytes_here(sources.front());
  const std::int64_t stride = Pieces::rounded(bytes);
  const std::int64_t at = pieces_.place(count * stride);
  ExpertMatrices all;
  for (std::int64_t e = 0; e < count; ++e) {
    const Matrix matrix = put(sources[static_cast<std::size_t>(e)], at + e * stride);
    if (e == 0) all.form = matrix;
    all.data.push_back(matrix.data);
  }
  all.stride = bytes == 0 ? 0 : stride;
  return all;
}

std::vector<MatrixSource> Placer::sources(const std::vector<TensorRows>& pieces, std::int64_t in,
                                          WeightFormat format) const {
  std::vector<MatrixSource> sources;
  for (const TensorRows& piece : pieces)
    sources.push_back(from_.matrix(piece.tensor, piece.rows, in, format));
  return sources;
}

ExpertMatrices Placer::latent_keys(Checkpoint::LatentHead of) {
  return alike_matrices(of.heads, [&](std::int64_t head) {
    of.head = head;
    return from_.latent_keys(of, format_);
  });
}

ExpertMatrices Placer::latent_values(Checkpoint::LatentHead of) {
  return alike_matrices(of.heads, [&](std::int64_t head) {
    of.head = head;
    return from_.latent_values(of, format_);
  });
}

MatrixSource Placer::join(const std::vector<TensorRows>& pieces, std::int64_t in,
                          WeightFormat format) const {
  std::vector<MatrixSource> all = sources(pieces, in, format);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (alike(all[i], all.front())) continue;
    throw Unsupported(
        fmt::format("{}: tensors {} and {} differ in type or in how they are quantised; topkv "
                    "multiplies them together: convert them to one type",
                    path_text(from_.source()), pieces.front().tensor, pieces[i].tensor));
  }
  return joined_rows(std::move(all));
}

Matrix Placer::unrounded_joined(const std::vector<TensorRows>& pieces, std::int64_t in) {
  std::vector<MatrixSource> all = sources(pieces, in, WeightFormat::stored);
  const bool differ =
      std::ranges::any_of(all, [&](const MatrixSource& one) { return !alike(one, all.front()); });
  if (differ) {
    for (MatrixSource& one : all) one = widened(std::move(one));
  }
  return place(joined_rows(std::move(all)));
}

ExpertMatrices Placer::named_experts(const std::string& at, std::string_view projection,
                                     const ExpertMixture& mixture, std::int64_t out,
                                     std::int64_t in) {
  return experts(mixture, [&](std::int64_t e) {
    return from_.matrix(fmt::format("{}{}.{}.weight", at, e, projection), {0, out, out}, in,
                        format_);
  });
}

ExpertMatrices Placer::fused_experts(const std::string& name, const ExpertMixture& mixture,
                                     std::int64_t out, std::int64_t in, std::int64_t first,
                                     std::int64_t step) {
  return experts(mixture, [&](std::int64_t e) {
    return from_.fused_expert(name, {e, mixture.experts, first, step}, out, in, format_);
  });
}

ExpertMatrices Placer::stacked_experts(const std::string& name, const ExpertMixture& mixture,
                                       std::int64_t out, std::int64_t in, std::int64_t part,
                                       std::int64_t parts) {
  return experts(mixture, [&](std::int64_t e) {
    return from_.stacked_expert(name, {e, mixture.experts, part, parts}, out, in, format_);
  });
}

Vector Placer::expert_biases(const std::string& name, std::int64_t experts, std::int64_t count,
                             std::int64_t first, std::int64_t step) {
  const std::span<float> all = room_for(experts * count * step);
  const std::int64_t bytes = from_.fused_biases(name, experts, all) / step;
  const std::span<float> some = all.first(static_cast<std::size_t>(experts * count));
  if (device_ != nullptr) {
    for (std::size_t i = 0; i < some.size(); ++i)  // never from before where it is put
      some[i] = all[static_cast<std::size_t>(first) + i * static_cast<std::size_t>(step)];
  }
  return put(some, bytes);
}

Matrix Placer::table(const std::string& name, const ModelConfig& config) {
  const WeightFormat format = format_ == WeightFormat::int4 ? WeightFormat::int8 : format_;
  const std::int64_t rows = config.vocab_size;
  return place(from_.matrix(name, {0, rows, rows}, config.hidden_size, format));
}

Matrix Placer::layer_inputs(const std::string& name, const ModelConfig& config) {
  const std::int64_t layers = config.attention.layers;
  const std::int64_t size = config.layer_inputs.size;
  const auto cut = [&](Matrix matrix) {
    matrix.out_features *= layers;
    matrix.in_features = size;
    return matrix;
  };
  const MatrixRows rows{0, config.vocab_size, config.layer_inputs.vocab};
  const MatrixSource source = from_.matrix(name, rows, layers * size, WeightFormat::stored);
  const Matrix& form = source.form;
  if (!form.packed() && !source.make) {
    const WeightFormat format = format_ == WeightFormat::int4 ? WeightFormat::int8 : format_;
    return place(plain_matrix(cut(form), format,
                              fmt::format("{}: tensor {}", path_text(from_.source()), name), 0));
  }
  const bool fits = !form.packed() || (!form.has_order && size % form.group == 0 &&
                                       cut(form).row_bytes() * layers == form.row_bytes());
  if (!fits) {
    throw Unsupported(
        fmt::format("{}: tensor {} has scales for groups of {} values, and {} values of a layer; "
                    "topkv runs groups that lie within a layer: convert it to another type",
                    path_text(from_.source()), name, form.group, size));
  }
  return cut(place(source));
}

Vector Placer::constant(std::int64_t size, float value) {
  const std::span<float> values = room_for(size);
  std::ranges::fill(values, value);
  return put(values, 0);
}

float Placer::number(const std::string& name) {
  float value = 1;
  count(from_.vector(name, {&value, 1}));
  return value;
}

Matrix Placer::embedding(const ModelConfig& config) {
  const bool as_head = config.tied_embeddings && !from_.has(embedding_name) && from_.has(head_name);
  const std::int64_t before = held_;
  Matrix matrix = table(as_head ? head_name : embedding_name, config);
  embedding_ = held_ - before;
  return matrix;
}

Vector Placer::vector(const std::string& name, std::int64_t size, float offset, float factor) {
  const std::span<float> values = room_for(size);
  const std::int64_t bytes = from_.vector(name, values);
  if (device_ != nullptr)
    for (float& value : values) value = (value + offset) * factor;
  return put(values, bytes);
}

Vector Placer::convolution(const std::string& name, std::int64_t channels, std::int64_t kernel) {
  const std::int64_t count = channels * kernel;
  const std::span<float> all = room_for(2 * count);
  const std::span<float> stored = all.first(static_cast<std::size_t>(count));
  const std::span<float> turned = all.last(static_cast<std::size_t>(count));
  const std::int64_t bytes = from_.convolution(name, channels, kernel, stored);
  if (device_ != nullptr) {
    for (std::int64_t i = 0; i < count; ++i)
      turned[static_cast<std::size_t>(i % kernel * channels + i / kernel)] =
          stored[static_cast<std::size_t>(i)];
  }
  return put(turned, bytes);
}

Vector Placer::fading(const std::string& name, std::int64_t size) {
  const std::span<float> values = room_for(size);
  const std::int64_t bytes = from_.vector(name, values);
  if (device_ == nullptr) return put(values, bytes);
  if (!from_.has_whole_vectors()) {
    for (float& value : values) value = -std::exp(value);
  }
  const auto grows = std::ranges::find_if(values, [](float value) { return value > 0; });
  if (grows != values.end()) {
    throw FileError(fmt::format(
        "{}: decay {} of {} is {}; expected numbers of at most 0 (-exp of A_log), because states "
        "would grow without bound",
        path_text(from_.source()), grows - values.begin(), name, *grows));
  }
  return put(values, bytes);
}

std::span<float> Placer::room_for(std::int64_t values) {
  const auto count = static_cast<std::size_t>(values);
  if (values_.size() < count) values_.resize(count);
  return std::span(values_).first(count);
}

Vector Placer::put(std::span<const float> values, std::int64_t held) {
  count(held);
  const auto size = static_cast<std::int64_t>(values.size());
  const std::int64_t bytes = size * bytes_of(DType::f32);
  const std::int64_t at = pieces_.place(bytes);
  if (device_ == nullptr) return {nullptr, size};
  device_->copy_in(values.data(), bytes, storage_ + at);
  return {reinterpret_cast<const float*>(storage_ + at), size};
}

void Placer::make_alike(std::vector<MatrixSource>& sources) const {
  const bool ordered = std::ranges::any_of(
      sources, [](const MatrixSource& source) { return source.form.has_order; });
  for (std::size_t e = 0; e < sources.size(); ++e) {
    MatrixSource& source = sources[e];
    if (ordered && !source.form.has_order) {
      source.form.has_order = true;
      source.order.resize(static_cast<std::size_t>(source.form.in_features));
      std::iota(source.order.begin(), source.order.end(), 0);
    }
    const Matrix& first = sources.front().form;
    const Matrix& form = source.form;
    if (alike(form, first)) continue;
    throw Unsupported(
        fmt::format("{}: experts or heads of one layer differ in type or in how they are quantised "
                    "(the first and "
                    "number {}); topkv runs experts that are alike",
                    path_text(from_.source()), e));
  }
}

std::int64_t Placer::bytes_here(const MatrixSource& source) const {
  if (source.form.packed()) return source.form.bytes();
  const std::int64_t uploaded = measure_.upload_bytes(source.form);
  return uploaded == 0 && source.make ? source.form.bytes() : uploaded;
}

Matrix Placer::put(const MatrixSource& source, std::int64_t at) {
  Matrix matrix = source.form;
  packed_ = packed_ || matrix.packed();
  if (device_ == nullptr) {
    count(matrix.bytes());
    return matrix;
  }
  if (!matrix.packed()) {
    if (source.make) return make_plain(source, storage_ + at);
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

Matrix Placer::make_plain(const MatrixSource& source, std::byte* to) {
  const Matrix& form = source.form;
  const std::int64_t uploaded = measure_.upload_bytes(form);
  const std::int64_t row_bytes = uploaded == 0 ? form.row_bytes() : uploaded / form.out_features;
  const std::int64_t most = std::max<std::int64_t>(1, piece_bytes / form.row_bytes());
  Matrix made = form;
  for (std::int64_t first = 0; first < form.out_features; first += most) {
    const std::int64_t rows = std::min(most, form.out_features - first);
    codes_.resize(static_cast<std::size_t>(rows * form.row_bytes()));
    source.make(first, rows, {codes_.data(), nullptr, nullptr});
    const Matrix piece{codes_.data(), form.dtype, rows, form.in_features};
    if (uploaded == 0) {
      device_->copy_in(codes_.data(), piece.bytes(), to + first * row_bytes);
    } else {
      made.dtype = device_->upload(piece, to + first * row_bytes).dtype;
    }
    count(piece.bytes());
  }
  made.data = to;
  return made;
}

void Placer::make(const MatrixSource& source, std::byte* to) {
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

}  // namespace topkv
