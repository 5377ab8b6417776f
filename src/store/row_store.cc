#include "src/store/row_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "src/core/io/faults.h"
#include "src/core/math/convert.h"
#include "src/core/math/key_bias.h"
#include "src/core/math/row_format.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t append_grain = 512;          // rows a thread converts at a time
constexpr std::int64_t copy_grain = 8 * huge_page;  // bytes a thread copies at a time

/// a * b, or InvalidArgument when that is beyond 64 bits.
std::int64_t checked_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw InvalidArgument(fmt::format("{} x {} bytes of rows are beyond 64 bits", a, b));
  }
  return product;
}

std::int64_t round_up(std::int64_t bytes, std::int64_t unit) {
  if (bytes > std::numeric_limits<std::int64_t>::max() - unit) return checked_product(bytes, 2);
  return (bytes + unit - 1) / unit * unit;
}

void check_tensor(const TensorView& tensor, const char* name, std::int64_t tokens,
                  std::int64_t heads, std::int64_t head_dim) {
  if (tokens < 0)
    throw InvalidArgument(fmt::format("{} of {} tokens; expected 0 or more", name, tokens));
  if (tensor.tokens != tokens || tensor.heads != heads || tensor.head_dim != head_dim) {
    throw InvalidArgument(fmt::format("{} is [{} tokens, {} heads, {}]; expected [{}, {}, {}]",
                                      name, tensor.tokens, tensor.heads, tensor.head_dim, tokens,
                                      heads, head_dim));
  }
  if (in_blocks(tensor.dtype)) {
    throw InvalidArgument(
        fmt::format("{} is given in {}; rows are stored so, but taken in f32, f16 or bf16", name,
                    name_of(tensor.dtype)));
  }
  if (tensor.data == nullptr && tokens > 0) {
    throw InvalidArgument(fmt::format("{} has no data for {} tokens", name, tokens));
  }
}

/// One half row: widened, checked, rounded. Gives the index of the first value that cannot be
/// stored, or -1.
std::int64_t store_half(const std::byte* in, DType in_dtype, const KeyView& half,
                        std::int64_t position, float* scratch) {
  to_float(in, in_dtype, half.dim, scratch);
  std::int64_t bad = first_not_finite(scratch, half.dim);
  if (bad >= 0) return bad;
  encode(scratch, half.dim, half.dtype, half.channels, const_cast<std::byte*>(half.key(position)),
         bias_at(half, position));
  if (half.dtype == DType::f32) return -1;
  decode(half, position,
         scratch);  // values beyond the type's largest became infinite, or no number
  return first_not_finite(scratch, half.dim);
}

}  // namespace

std::int64_t RowStore::bytes_per_token(const AttentionShape& shape, KvDType dtype) {
  checked_product(shape.head_dim, 8);  // more than an element takes
  return checked_product(checked_product(shape.row_layers(), shape.kv_heads),
                         dtype.row_bytes(shape.head_dim));
}

std::vector<RowStore::Place> RowStore::places(const AttentionShape& shape) {
  std::vector<Place> places;
  std::int64_t arrays = 0;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::int64_t of = shape.row_layer_of(layer);
    if (shape.has_rows(layer)) {
      places.push_back({layer, arrays++});
    } else {
      places.push_back({of, of < layer ? places[static_cast<std::size_t>(of)].arrays : -1});
    }
  }
  return places;
}

RowStore::RowStore(const AttentionShape& shape, KvDType dtype, std::int64_t capacity,
                   std::int64_t budget, std::string owner)
    : places_(places(shape)),
      kv_heads_(shape.kv_heads),
      head_dim_(shape.head_dim),
      dtype_(dtype),
      capacity_(capacity),
      owner_(std::move(owner)),
      half_bytes_{vector_bytes(dtype.keys, shape.head_dim),
                  vector_bytes(dtype.values, shape.head_dim)},
      chunk_len_(shape.chunk_len),
      sizes_(static_cast<std::size_t>(shape.layers)) {
  if (capacity < 0) {
    throw InvalidArgument(
        fmt::format("{}: room for {} tokens; it must not be negative", owner_, capacity));
  }
  const std::int64_t wanted = checked_product(bytes_per_token(shape, dtype), capacity);
  const std::int64_t available = budget > 0 ? budget : available_host_memory();
  if (wanted > available) {
    throw OutOfMemory(
        fmt::format("host memory for the KV rows of {} tokens ({})", capacity, owner_), wanted,
        available,
        budget > 0 ? "raise the memory budget or ask for fewer tokens"
                   : "free memory or ask for fewer tokens");
  }
  for (const int half : {0, 1}) {
    const std::int64_t array = checked_product(half_bytes_[half], capacity);
    array_bytes_[half] = round_up(array, array >= huge_page ? huge_page : small_page);
  }
  region_ = Region(checked_product(array_bytes_[0] + array_bytes_[1],
                                   checked_product(shape.row_layers(), shape.kv_heads)));
  arrays_ = region_.data();
  if (in_blocks(dtype.keys)) {
    channels_.assign(static_cast<std::size_t>(shape.layers * shape.kv_heads * shape.head_dim),
                     1.0F);
  }
}

RowStore::RowStore(const AttentionShape& shape, KvDType dtype, std::int64_t tokens,
                   const std::byte* arrays, std::shared_ptr<void> owner)
    : places_(places(shape)),
      kv_heads_(shape.kv_heads),
      head_dim_(shape.head_dim),
      dtype_(dtype),
      capacity_(tokens),
      owner_("context"),
      half_bytes_{vector_bytes(dtype.keys, shape.head_dim),
                  vector_bytes(dtype.values, shape.head_dim)},
      array_bytes_{round_up(checked_product(half_bytes_[0], tokens), small_page),
                   round_up(checked_product(half_bytes_[1], tokens), small_page)},
      arrays_(const_cast<std::byte*>(arrays)),  // the store is full: nothing is written
      lender_(std::move(owner)),
      huge_pages_(true),
      chunk_len_(shape.chunk_len),
      sizes_(static_cast<std::size_t>(shape.layers)) {
  if (in_blocks(dtype.keys)) {
    channels_.assign(static_cast<std::size_t>(shape.layers * shape.kv_heads * shape.head_dim),
                     1.0F);
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) set_size(layer, tokens);
}

std::byte* RowStore::array(std::int64_t layer, std::int64_t kv_head, Half half) const {
  return arrays_ +
         (place(layer).arrays * kv_heads_ + kv_head) * (array_bytes_[0] + array_bytes_[1]) +
         (half == Half::values ? array_bytes_[0] : 0);
}

KeyView RowStore::view(std::int64_t layer, std::int64_t kv_head, Half half) const {
  const bool keys = half == Half::keys;
  const float* channels =
      keys && !channels_.empty() ? this->channels(layer) + kv_head * head_dim_ : nullptr;
  return {array(layer, kv_head, half),
          keys ? dtype_.keys : dtype_.values,
          size(layer),
          head_dim_,
          half_bytes_[keys ? 0 : 1],
          channels,
          keys && bias_ ? bias(layer) + kv_head * 3 * head_dim_ : nullptr,
          first_position_,
          chunk_len_};
}

float* RowStore::channels(std::int64_t layer) const {
  if (channels_.empty()) return nullptr;
  return const_cast<float*>(channels_.data()) + row_layer(layer) * kv_heads_ * head_dim_;
}

void RowStore::set_bias(std::shared_ptr<const std::vector<float>> bias,
                        std::int64_t first_position) {
  const bool has = bias && !bias->empty() && in_blocks(dtype_.keys);
  bias_ = has ? std::move(bias) : nullptr;
  first_position_ = first_position;
}

const float* RowStore::bias(std::int64_t layer) const {
  return bias_ ? bias_->data() + row_layer(layer) * kv_heads_ * 3 * head_dim_ : nullptr;
}

void RowStore::use_channels(const RowStore& other, std::int64_t first_position) {
  channels_ = other.channels_;
  channels_chosen_ = true;
  set_bias(other.bias_, first_position);
}

bool RowStore::has_channels_of(const RowStore& other) const {
  if (channels_ != other.channels_ || (bias_ == nullptr) != (other.bias_ == nullptr)) return false;
  return !bias_ || (first_position_ == other.first_position_ && *bias_ == *other.bias_);
}

void RowStore::forget_channels() {
  if (channels_chosen_) return;
  for (std::int64_t layer = 0; layer < std::ssize(sizes_); ++layer) {
    if (size(layer) == 0 && has_rows(layer) && !channels_.empty())
      std::fill_n(channels(layer), kv_heads_ * head_dim_, 1.0F);
  }
}

void RowStore::choose_channels_by(std::int64_t layer, const TensorView& keys) {
  constexpr std::int64_t most = 1024;  // tokens that are enough
  const std::int64_t tokens = std::min(keys.tokens, most);
  parallel_for_alone(kv_heads_, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> first(static_cast<std::size_t>(tokens * head_dim_));
    for (std::int64_t head = begin; head < end; ++head) {
      for (std::int64_t t = 0; t < tokens; ++t)
        to_float(keys.at(t, head), keys.dtype, head_dim_, first.data() + t * head_dim_);
      if (first_not_finite(first.data(), tokens * head_dim_) >= 0) continue;  // told below
      const KeyView half = view(layer, head, Half::keys);
      for (std::int64_t t = 0; half.bias != nullptr && t < tokens; ++t) {
        const float* bias = bias_at(half, t);
        for (std::int64_t i = 0; i < head_dim_; ++i)
          first[static_cast<std::size_t>(t * head_dim_ + i)] -= bias[i];
      }
      choose_channels(first.data(), tokens, head_dim_, channels(layer) + head * head_dim_);
    }
  });
}

void RowStore::append(std::int64_t layer, const TensorView& keys, const TensorView& values) {
  if (layer < 0 || layer >= static_cast<std::int64_t>(sizes_.size())) {
    throw InvalidArgument(
        fmt::format("layer {} of a {} with {} layers", layer, owner_, sizes_.size()));
  }
  if (!has_rows(layer)) {
    throw InvalidArgument(fmt::format(
        "layer {} of a {} has no rows of its own: it {}; give no K and V for it", layer, owner_,
        row_layer(layer) == layer ? std::string("keeps a recurrent state")
                                  : fmt::format("attends the rows of layer {}", row_layer(layer))));
  }
  check_tensor(keys, "keys", keys.tokens, kv_heads_, head_dim_);
  check_tensor(values, "values", keys.tokens, kv_heads_, head_dim_);
  const std::int64_t tokens = keys.tokens;
  const std::int64_t start = size(layer);
  if (tokens > capacity_ - start) {
    throw InvalidArgument(fmt::format(
        "layer {} holds {} tokens and gets {} more; this {} was made with room for {}: give it a "
        "larger capacity",
        layer, start, tokens, owner_, capacity_));
  }
  reach_fault("store.append");
  choose_pages(start + tokens);
  if (start == 0 && !channels_.empty() && !channels_chosen_) choose_channels_by(layer, keys);
  // Alone: a caller may hold a device's lock.
  parallel_for_alone(kv_heads_ * tokens, append_grain, [&](std::int64_t begin, std::int64_t end) {
    thread_local std::vector<float> scratch;  // appending one token must not allocate
    scratch.resize(static_cast<std::size_t>(head_dim_));
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t head = i / tokens;
      const std::int64_t token = i % tokens;
      for (const auto* tensor : {&keys, &values}) {
        const KeyView half = view(layer, head, tensor == &keys ? Half::keys : Half::values);
        const std::int64_t bad =
            store_half(tensor->at(token, head), tensor->dtype, half, start + token, scratch.data());
        if (bad >= 0) {
          throw InvalidArgument(
              fmt::format("{} of layer {}, KV head {}, position {} holds {} at element {}; values "
                          "must be finite "
                          "in {}",
                          tensor == &keys ? "K" : "V", layer, head, start + token,
                          scratch[static_cast<std::size_t>(bad)], bad, name_of(half.dtype)));
        }
      }
    }
  });
  set_size(layer, start + tokens);
}

void RowStore::choose_pages(std::int64_t tokens) {
  if (huge_pages_ || tokens * std::max(half_bytes_[0], half_bytes_[1]) < huge_page) return;
  region_.use_huge_pages();
  huge_pages_ = true;
}

Region& RowStore::whole_region() {
  choose_pages(capacity_);
  return region_;
}

RowStore::Arrays RowStore::arrays(std::int64_t layer, std::int64_t kv_head) const {
  return {array(layer, kv_head, Half::keys), array(layer, kv_head, Half::values)};
}

void RowStore::extend(std::int64_t layer, std::int64_t tokens) {
  set_size(layer, size(layer) + tokens);
}

void RowStore::shrink(std::int64_t layer, std::int64_t tokens) { set_size(layer, tokens); }

void RowStore::copy_from(const RowStore& other) {
  const auto layers = static_cast<std::int64_t>(sizes_.size());
  for (std::int64_t layer = 0; layer < layers; ++layer) choose_pages(other.size(layer));
  const auto copy = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t layer = i / (kv_heads_ * 2);
      if (!has_rows(layer)) continue;
      const std::int64_t head = i / 2 % kv_heads_;
      const Half half = i % 2 == 0 ? Half::keys : Half::values;
      const std::byte* from = other.array(layer, head, half);
      std::byte* to = array(layer, head, half);
      parallel_for(other.size(layer) * half_bytes_[i % 2], copy_grain,
                   [&](std::int64_t first, std::int64_t last) {
                     std::copy(from + first, from + last, to + first);
                   });
    }
  };
  parallel_for_alone(layers * kv_heads_ * 2, 1, copy);  // a caller may hold a device's lock
  channels_ = other.channels_;
  channels_chosen_ = channels_chosen_ || other.channels_chosen_;  // a file's store does not say so
  bias_ = other.bias_;
  first_position_ = other.first_position_;
  for (std::int64_t layer = 0; layer < layers; ++layer) set_size(layer, other.size(layer));
}

std::int64_t RowStore::bytes() const {
  std::int64_t tokens = 0;
  for (std::int64_t layer = 0; layer < std::ssize(sizes_); ++layer)
    tokens += has_rows(layer) ? size(layer) : 0;
  return tokens * kv_heads_ * (half_bytes_[0] + half_bytes_[1]);
}

RowsView RowStore::rows(std::int64_t layer, std::int64_t kv_head) const {
  return {view(layer, kv_head, Half::keys), view(layer, kv_head, Half::values)};
}

}  // namespace topkv
