// An attention problem with random operands, its way to the device, and its answer in float64.
#pragma once

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "gpu/attention/attention.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/support/reference.h"
#include "topkv/types.h"

namespace test {

using topkv::gpu::DeviceArray;

inline std::vector<__nv_bfloat16> to_bf16(const std::vector<float>& values) {
  std::vector<__nv_bfloat16> out;
  out.reserve(values.size());
  for (const float x : values) out.push_back(__float2bfloat16(x));
  return out;
}

/// What overwrite must not read.
inline std::vector<float> not_numbers(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count), NAN);
}

struct Shape {
  std::int64_t head_dim = 64;
  bool keys_are_values = false;  ///< the device is given no values
  std::int64_t kv_heads = 2;
  std::int64_t group = 3;
  std::int64_t tokens = 1;
  std::int64_t rows = 65;  ///< there are, at positions first_row and on
  std::int64_t first_token = 0;
  std::int64_t first_row = 0;
  std::int64_t ring = 0;   ///< slots of which a row has that of its position; 0: row i has slot i
  std::int64_t split = 0;  ///< rows from this one on lie in memory of their own; 0: none
  topkv::gpu::DeviceVisibility visible = {};
  float key_size = 1.0F;
  float softcap = 0.0F;
};

struct Answer {
  std::vector<float> out, lse;
};

class AttentionCase {
 public:
  explicit AttentionCase(const Shape& shape, unsigned seed = 1)
      : shape_(shape),
        queries_(reference::random_bf16(heads() * shape.head_dim, seed)),
        keys_(reference::random_bf16(row_elements(), seed + 1, shape.key_size)),
        values_(shape.keys_are_values ? keys_ : reference::random_bf16(row_elements(), seed + 2)),
        device_queries_(to_bf16(queries_)),
        device_keys_(to_bf16(slotted(keys_))),
        device_values_(to_bf16(slotted(values_))),
        keys_behind_(to_bf16(slotted(keys_, shape.split))),
        values_behind_(to_bf16(slotted(values_, shape.split))),
        out_(not_numbers(heads() * shape.head_dim)),
        lse_(not_numbers(heads())) {}

  std::int64_t q_heads() const { return shape_.kv_heads * shape_.group; }
  std::int64_t heads() const { return shape_.tokens * q_heads(); }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)); }
  topkv::PartialView partial() const { return {out_.data(), lse_.data()}; }

  topkv::gpu::LayerHeads layer_heads() const {
    return {.kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .scale = scale(),
            .softcap = shape_.softcap,
            .keys_are_values = shape_.keys_are_values};
  }
  topkv::QueryView<__nv_bfloat16> queries() const {
    return {.data = device_queries_.data(),
            .tokens = shape_.tokens,
            .heads = q_heads(),
            .head_dim = shape_.head_dim,
            .first = shape_.first_token};
  }
  /// Rows [begin, end) of the case's.
  topkv::gpu::DeviceRows rows(std::int64_t begin, std::int64_t end) const {
    const std::int64_t d = shape_.head_dim;
    const std::int64_t first = shape_.first_row + begin;
    const std::int64_t slot = shape_.ring > 0 ? first % shape_.ring : begin;
    topkv::gpu::DeviceRows rows{.keys = device_keys_.data() + slot * d,
                                .values = device_values_.data() + slot * d,
                                .head_stride = slots() * d,
                                .first = first,
                                .count = end - begin};
    if (shape_.ring > 0) {
      rows.split = shape_.ring - slot;
      rows.keys_behind = device_keys_.data();
      rows.values_behind = device_values_.data();
      rows.stride_behind = slots() * d;
    } else if (shape_.split > 0) {
      const std::int64_t skip = std::max<std::int64_t>(0, begin - shape_.split);
      rows.split = std::max<std::int64_t>(0, shape_.split - begin);
      rows.keys_behind = keys_behind_.data() + skip * d;
      rows.values_behind = values_behind_.data() + skip * d;
      rows.stride_behind = (shape_.rows - shape_.split) * d;
    }
    if (shape_.keys_are_values) rows.values = rows.values_behind = nullptr;
    return rows;
  }

  void attend(std::int64_t begin, std::int64_t end, topkv::gpu::Into into) {
    topkv::gpu::attend(layer_heads(), queries(), rows(begin, end), shape_.visible, partial(), into,
                       nullptr);
  }
  Answer answer() const { return {out_.read(), lse_.read()}; }

  /// Against float64, element by element.
  ///
  /// Products of bf16 are exact in float32; a sum of head_dim of them loses at most
  /// e = scale * head_dim * 2^-23 * sum |q k| in a score (tensor cores cut off instead of
  /// rounding). A weight e off in its logarithm, against a sum of weights as far off, is 2 e off
  /// relatively; bf16 rounding of the weights adds 2^-9, exp2 and the float32 sums less than 2^-16
  /// for a thousand rows, and for thousands that blocks split; an element of out is a mean of
  /// values with these weights.
  /// Capping brings a score that is e off as much nearer as its two ends, and is itself off by up
  /// to softcap * 2^-20.
  /// out_extra: relative to the largest value, for outputs that were themselves rounded.
  void expect_close(const Answer& got, double out_extra = 0) const {
    const std::int64_t dim = shape_.head_dim;
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      reference::Rows rows;
      rows.dim = dim;
      const auto begin = keys_.begin() + head * shape_.rows * dim;
      rows.keys.assign(begin, begin + shape_.rows * dim);
      const auto value = values_.begin() + head * shape_.rows * dim;
      rows.values.assign(value, value + shape_.rows * dim);
      double value_size = 0;
      for (const double x : rows.values) value_size = std::max(value_size, std::abs(x));
      for (std::int64_t at = 0; at < shape_.tokens * shape_.group; ++at) {
        const std::int64_t token = at / shape_.group;
        const std::int64_t index = token * q_heads() + head * shape_.group + at % shape_.group;
        const float* query = queries_.data() + index * dim;
        const auto visible = [&](std::int64_t row) { return sees(token, row); };
        const reference::Result want =
            reference::attend(rows, query, scale(), visible, shape_.softcap);
        if (std::isinf(want.lse)) {
          ASSERT_EQ(got.lse[index], want.lse) << "lse of token " << token << ", head " << index;
          for (std::int64_t j = 0; j < dim; ++j) ASSERT_EQ(got.out[index * dim + j], 0.0F);
          continue;
        }
        const double error = score_error(rows, query, visible);
        const double lse_error = error + 0x1p-22 * std::abs(want.lse) + 0x1p-16;
        const double out_error = value_size * (0x1p-9 + 2 * error + 0x1p-16 + out_extra);
        ASSERT_NEAR(got.lse[index], want.lse, lse_error) << "token " << token << ", head " << index;
        for (std::int64_t j = 0; j < dim; ++j) {
          ASSERT_NEAR(got.out[index * dim + j], want.out[j], out_error)
              << "token " << token << ", head " << index << ", element " << j;
        }
      }
    }
  }

  bool sees(std::int64_t token, std::int64_t row) const {
    const std::int64_t at = shape_.first_token + token;
    const std::int64_t position = shape_.first_row + row;
    const topkv::gpu::DeviceVisibility& v = shape_.visible;
    if (v.causal && position > at) return false;
    return v.window == 0 || position < v.sinks || position > at - v.window;
  }

 private:
  std::int64_t slots() const {
    return shape_.ring > 0 ? shape_.ring : shape_.split > 0 ? shape_.split : shape_.rows;
  }
  std::int64_t row_elements() const { return shape_.kv_heads * shape_.rows * shape_.head_dim; }

  /// As the device holds them; slots without a row are NaN, which must never be seen.
  std::vector<float> slotted(const std::vector<float>& rows) const {
    return slotted(rows, {0, shape_.split > 0 ? shape_.split : shape_.rows}, slots());
  }
  /// Those from row `split` on.
  std::vector<float> slotted(const std::vector<float>& rows, std::int64_t split) const {
    if (split == 0) return {};
    return slotted(rows, {split, shape_.rows}, shape_.rows - split);
  }
  std::vector<float> slotted(const std::vector<float>& rows, topkv::PositionRange range,
                             std::int64_t count) const {
    const std::int64_t dim = shape_.head_dim;
    std::vector<float> out(static_cast<std::size_t>(shape_.kv_heads * count * dim), NAN);
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        const std::int64_t slot =
            shape_.ring > 0 ? (shape_.first_row + row) % shape_.ring : row - range.begin;
        std::copy_n(rows.begin() + (head * shape_.rows + row) * dim, dim,
                    out.begin() + (head * count + slot) * dim);
      }
    }
    return out;
  }

  double capped(double score) const {
    return shape_.softcap == 0 ? score : shape_.softcap * std::tanh(score / shape_.softcap);
  }

  /// How far off the score of a visible row may be.
  template <class Visible>
  double score_error(const reference::Rows& rows, const float* query,
                     const Visible& visible) const {
    double largest = 0;
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      if (!visible(row)) continue;
      double size = 0;
      for (std::int64_t j = 0; j < rows.dim; ++j)
        size += std::abs(query[j] * rows.keys[row * rows.dim + j]);
      const double score = scale() * reference::score(rows, query, row);
      const double error = scale() * static_cast<double>(rows.dim) * 0x1p-23 * size;
      largest = std::max(
          {largest, capped(score + error) - capped(score), capped(score) - capped(score - error)});
    }
    return largest + shape_.softcap * 0x1p-20;
  }

  Shape shape_;
  std::vector<float> queries_, keys_, values_;
  DeviceArray<__nv_bfloat16> device_queries_, device_keys_, device_values_;
  DeviceArray<__nv_bfloat16> keys_behind_, values_behind_;
  DeviceArray<float> out_, lse_;
};

}  // namespace test
