#include "src/store/row_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
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

/// One half row, the only one of its view: widened, checked, rounded. Gives the index of the first
/// value that cannot be stored, or -1.
std::int64_t store_half(const std::byte* in, DType in_dtype, const KeyView& row, float* scratch) {
  to_float(in, in_dtype, row.dim, scratch);
  std::int64_t bad = first_not_finite(scratch, row.dim);
  if (bad >= 0) return bad;
  encode(scratch, row.dim, row.dtype, row.channels, const_cast<std::byte*>(row.data),
         bias_at(row, 0));
  if (row.dtype == DType::f32) return -1;
  decode(row, 0, scratch);  // values beyond the type's largest became infinite, or no number
  return first_not_finite(scratch, row.dim);
}

/// The rows that there is memory for, of a layer that keeps its last rows: twice what slide()
/// keeps, so that a row is moved once at most, on average, and those of two steps under way.
std::int64_t last_rows(std::int64_t window, std::int64_t step, std::int64_t capacity) {
  const std::int64_t windows = window > capacity / 4 ? capacity : 4 * window;
  return step > (capacity - windows) / 2 ? capacity : windows + 2 * step;
}

}  // namespace

std::int64_t RowStore::bytes_while_read(const AttentionShape& shape, KvDType dtype,
                                        std::int64_t tokens, std::int64_t step) {
  AttentionShape reading = shape;
  for (std::int64_t& window : reading.sliding_window)
    if (window > 0) window = last_rows(window, step, tokens);
  return reading.context_bytes(dtype, tokens);
}

std::int64_t RowStore::bytes_per_token(const AttentionShape& shape, KvDType dtype) {
  std::int64_t bytes = 0;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    if (!shape.has_rows(layer)) continue;
    checked_product(shape.head_dim_of(layer), 8);  // more than an element takes
    const std::int64_t of_layer =
        checked_product(shape.kv_heads_of(layer), shape.row_bytes_of(layer, dtype));
    if (__builtin_add_overflow(bytes, of_layer, &bytes))
      throw InvalidArgument("the rows of a token are beyond 64 bits of bytes");
  }
  if (shape.indexer) {
    const std::int64_t keys = checked_product(shape.index_key_layers(), shape.indexer->key_bytes());
    const std::int64_t tokens = shape.indexer->tokens_per_key;
    if (__builtin_add_overflow(bytes, keys / tokens + (keys % tokens > 0 ? 1 : 0), &bytes))
      throw InvalidArgument("the rows and index keys of a token are beyond 64 bits of bytes");
  }
  return bytes;
}

RowStore::RowStore(const AttentionShape& shape, KvDType dtype, std::int64_t capacity,
                   std::string owner, SlidingRows sliding)
    : dtype_(dtype),
      capacity_(capacity),
      owner_(std::move(owner)),
      sliding_(sliding),
      channels_per_layer_(shape.widest_kv()),
      keys_are_values_(shape.keys_are_values),
      index_keys_(shape, std::max<std::int64_t>(capacity, 0)),
      chunk_len_(shape.chunk_len),
      sizes_(static_cast<std::size_t>(shape.layers)) {
  if (capacity < 0) {
    throw InvalidArgument(
        fmt::format("{}: room for {} tokens; it must not be negative", owner_, capacity));
  }
  shape.check_rows(dtype);
  checked_product(bytes_per_token(shape, dtype), capacity);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    row_layers_.push_back(shape.row_layer_of(layer));
    const std::int64_t dim = shape.head_dim_of(layer);
    arrays_.push_back({.window = shape.has_rows(layer) ? shape.window_of(layer) : -1,
                       .kv_heads = shape.kv_heads_of(layer),
                       .head_dim = dim,
                       .half_bytes = {vector_bytes(dtype.keys, dim),
                                      keys_are_values_ ? 0 : vector_bytes(dtype.values, dim)}});
  }
  if (has_channels(shape, dtype))
    channels_.assign(static_cast<std::size_t>(shape.layers * channels_per_layer_), 1.0F);
}

RowStore::RowStore(const AttentionShape& shape, KvDType dtype, std::int64_t capacity,
                   std::int64_t budget, std::string owner, SlidingRows sliding)
    : RowStore(shape, dtype, capacity, std::move(owner), sliding) {
  count_rows({});
  reserve_memory(budget);
}

RowStore::RowStore(const AttentionShape& shape, KvDType dtype, std::int64_t tokens,
                   const std::vector<std::int64_t>& first_rows, std::int64_t budget,
                   std::string owner)
    : RowStore(shape, dtype, tokens, std::move(owner), SlidingRows::all) {
  count_rows(first_rows);
  reserve_memory(budget);
}

RowStore::RowStore(const AttentionShape& shape, KvDType dtype, std::int64_t tokens,
                   const std::vector<std::int64_t>& first_rows, const std::byte* arrays,
                   std::shared_ptr<void> owner)
    : RowStore(shape, dtype, tokens, "context", SlidingRows::all) {
  count_rows(first_rows);
  for (LayerArrays& of : arrays_) set_rows(of, of.rows, small_page);
  lay_out(arrays_, 0, const_cast<std::byte*>(arrays));  // the store is full: nothing is written
  lender_ = std::move(owner);
  huge_pages_ = true;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) set_size(layer, tokens);
}

void RowStore::count_rows(const std::vector<std::int64_t>& first_rows) {
  for (std::int64_t layer = 0; layer < std::ssize(arrays_); ++layer) {
    if (!has_rows(layer)) continue;
    LayerArrays& of = arrays_[static_cast<std::size_t>(layer)];
    if (!first_rows.empty()) of.first = first_rows[static_cast<std::size_t>(layer)];
    set_rows(of, keeps_last(layer) ? last_rows(of.window, 0, capacity_) : capacity_ - of.first,
             huge_page);
  }
}

void RowStore::set_rows(LayerArrays& arrays, std::int64_t rows, std::int64_t largest_page) const {
  arrays.rows = rows;
  for (const int half : {0, 1}) {
    const std::int64_t bytes = checked_product(arrays.half_bytes[half], rows);
    arrays.bytes[half] = round_up(bytes, bytes >= largest_page ? largest_page : small_page);
  }
}

void RowStore::reserve_memory(std::int64_t budget) {
  budget_ = budget;
  check_memory(arrays_, "ask for fewer tokens");
  for (const std::size_t region : {0, 1}) {
    regions_[region] = Region(lay_out(arrays_, region, nullptr));
    lay_out(arrays_, region, regions_[region].data());
  }
  index_keys_.reserve();
}

void RowStore::check_memory(const std::vector<LayerArrays>& arrays,
                            std::string_view otherwise) const {
  std::int64_t wanted = index_keys_.capacity_bytes();
  for (const LayerArrays& of : arrays) wanted += of.rows * of.row_bytes();
  if (budget_ == 0) wanted -= bytes();  // rows that are there have their memory
  const std::int64_t available = budget_ > 0 ? budget_ : available_host_memory();
  if (wanted <= available) return;
  throw OutOfMemory(
      fmt::format("host memory for the KV rows of {} tokens ({})", capacity_, owner_), wanted,
      available,
      fmt::format("{} or {}", budget_ > 0 ? "raise the memory budget" : "free memory", otherwise));
}

std::int64_t RowStore::lay_out(std::vector<LayerArrays>& arrays, std::size_t region,
                               std::byte* data) const {
  std::int64_t bytes = 0;
  for (std::int64_t layer = 0; layer < std::ssize(arrays); ++layer) {
    if (!is_in(region, layer)) continue;
    LayerArrays& of = arrays[static_cast<std::size_t>(layer)];
    of.data = data == nullptr ? nullptr : data + bytes;
    if (__builtin_add_overflow(bytes, checked_product(of.kv_heads, of.bytes[0] + of.bytes[1]),
                               &bytes))
      throw InvalidArgument("the rows are beyond 64 bits of bytes");
  }
  return bytes;
}

std::byte* RowStore::row(const LayerArrays& arrays, std::int64_t kv_head, Half half,
                         std::int64_t position) const {
  const bool keys = half == Half::keys;
  const std::int64_t array =
      kv_head * (arrays.bytes[0] + arrays.bytes[1]) + (keys ? 0 : arrays.bytes[0]);
  const std::int64_t rows = (position - arrays.first) * arrays.half_bytes[keys ? 0 : 1];
  // As a number: the row of position 0 may lie before the memory.
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(arrays.data) +
                                      static_cast<std::uintptr_t>(array + rows));
}

KeyView RowStore::view(std::int64_t layer, std::int64_t kv_head, Half half) const {
  const bool keys = half == Half::keys || keys_are_values_;
  if (keys) half = Half::keys;
  const LayerArrays& of = arrays_of(layer);
  const std::int64_t dim = of.head_dim;
  const float* channels =
      keys && !channels_.empty() ? this->channels(layer) + kv_head * dim : nullptr;
  return {row(of, kv_head, half, 0),
          keys ? dtype_.keys : dtype_.values,
          size(layer),
          dim,
          of.half_bytes[keys ? 0 : 1],
          channels,
          keys && bias_ ? bias(layer) + kv_head * 3 * dim : nullptr,
          first_position_,
          chunk_len_};
}

float* RowStore::channels(std::int64_t layer) const {
  if (channels_.empty()) return nullptr;
  return const_cast<float*>(channels_.data()) + row_layer(layer) * channels_per_layer_;
}

void RowStore::set_bias(std::shared_ptr<const std::vector<float>> bias,
                        std::int64_t first_position) {
  const bool has = bias && !bias->empty() && in_blocks(dtype_.keys) && !keys_are_values_;
  bias_ = has ? std::move(bias) : nullptr;
  first_position_ = first_position;
}

const float* RowStore::bias(std::int64_t layer) const {
  return bias_ ? bias_->data() + row_layer(layer) * 3 * channels_per_layer_ : nullptr;
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
      std::fill_n(channels(layer), channels_per_layer_, 1.0F);
  }
}

void RowStore::choose_channels_by(std::int64_t layer, const TensorView& keys) {
  constexpr std::int64_t most = 1024;  // tokens that are enough
  const std::int64_t tokens = std::min(keys.tokens, most);
  const std::int64_t dim = keys.head_dim;
  parallel_for_alone(keys.heads, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> first(static_cast<std::size_t>(tokens * dim));
    for (std::int64_t head = begin; head < end; ++head) {
      for (std::int64_t t = 0; t < tokens; ++t)
        to_float(keys.at(t, head), keys.dtype, dim, first.data() + t * dim);
      if (first_not_finite(first.data(), tokens * dim) >= 0) continue;  // told below
      const KeyView half = view(layer, head, Half::keys);
      for (std::int64_t t = 0; half.bias != nullptr && t < tokens; ++t) {
        const float* bias = bias_at(half, t);
        for (std::int64_t i = 0; i < dim; ++i)
          first[static_cast<std::size_t>(t * dim + i)] -= bias[i];
      }
      choose_channels(first.data(), tokens, dim, channels(layer) + head * dim);
    }
  });
}

void RowStore::check_room(std::int64_t layer, std::int64_t tokens) const {
  const std::int64_t start = size(layer);
  if (tokens <= capacity_ - start) return;
  throw InvalidArgument(fmt::format(
      "layer {} holds {} tokens and gets {} more; this {} was made with room for {}: give it a "
      "larger capacity",
      layer, start, tokens, owner_, capacity_));
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
  const LayerArrays& of = arrays_of(layer);
  check_tensor(keys, "keys", keys.tokens, of.kv_heads, of.head_dim);
  if (!keys_are_values_) {
    check_tensor(values, "values", keys.tokens, of.kv_heads, of.head_dim);
  } else if (values.data != nullptr) {
    throw InvalidArgument(fmt::format(
        "values are given for layer {}, and the value of a token is its key here; give null values",
        layer));
  }
  const std::int64_t tokens = keys.tokens;
  const std::int64_t start = size(layer);
  check_room(layer, tokens);
  reach_fault("store.append");
  choose_pages(start + tokens);
  if (start == 0 && chooses_channels()) choose_channels_by(layer, keys);
  if (!has_memory_to(layer, start + tokens)) slide(layer);
  if (!has_memory_to(layer, start + tokens)) return append_last(layer, keys, values);
  round_rows(layer, keys, values, start, {0, tokens}, true);
  set_size(layer, start + tokens);
}

void RowStore::append_last(std::int64_t layer, const TensorView& keys, const TensorView& values) {
  LayerArrays& of = arrays_[static_cast<std::size_t>(layer)];
  const std::int64_t start = size(layer);
  const std::int64_t first = of.first;
  const std::int64_t from = keys.tokens - 2 * of.window;  // the first token whose row is kept
  round_rows(layer, keys, values, start, {0, from}, false);
  of.first = start + from - rows_to_slide(layer);  // behind the rows that are there
  try {
    round_rows(layer, keys, values, start, {from, keys.tokens}, true);
  } catch (...) {
    of.first = first;
    throw;
  }
  set_size(layer, start + keys.tokens);
  slide(layer);
}

void RowStore::round_rows(std::int64_t layer, const TensorView& keys, const TensorView& values,
                          std::int64_t start, PositionRange range, bool kept) {
  const LayerArrays& of = arrays_of(layer);
  // Alone: a caller may hold a device's lock.
  parallel_for_alone(
      of.kv_heads * range.size(), append_grain, [&](std::int64_t begin, std::int64_t end) {
        thread_local std::vector<float> scratch;  // appending one token must not allocate
        thread_local std::vector<std::byte> unkept;
        scratch.resize(static_cast<std::size_t>(of.head_dim));
        if (!kept)
          unkept.resize(static_cast<std::size_t>(std::max(of.half_bytes[0], of.half_bytes[1])));
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t head = i / range.size();
          const std::int64_t token = range.begin + i % range.size();
          for (const Half which : {Half::keys, Half::values}) {  // of one view, perhaps
            if (which == Half::values && keys_are_values_) continue;
            const TensorView& tensor = which == Half::keys ? keys : values;
            const KeyView half = view(layer, head, which);
            KeyView row = half.part({start + token, start + token + 1});
            if (!kept) row.data = unkept.data();
            const std::int64_t bad =
                store_half(tensor.at(token, head), tensor.dtype, row, scratch.data());
            if (bad >= 0) {
              throw InvalidArgument(fmt::format(
                  "{} of layer {}, KV head {}, position {} holds {} at element {}; values "
                  "must be finite "
                  "in {}",
                  which == Half::keys ? "K" : "V", layer, head, start + token,
                  scratch[static_cast<std::size_t>(bad)], bad, name_of(half.dtype)));
            }
          }
        }
      });
}

void RowStore::choose_pages(std::int64_t tokens) {
  if (huge_pages_) return;
  const auto is_short = [&](const LayerArrays& of) {
    return tokens * std::max(of.half_bytes[0], of.half_bytes[1]) < huge_page;
  };
  if (std::ranges::all_of(arrays_, is_short)) return;
  regions_[0].use_huge_pages();
  huge_pages_ = true;
}

void RowStore::lock_pages(
    const std::function<std::shared_ptr<void>(std::byte*, std::int64_t)>& lock) {
  use_huge_pages();
  for (const std::size_t region : {0, 1}) {
    const Region& of = regions_[region];
    if (of.bytes() > 0 && locks_[region] == nullptr) locks_[region] = lock(of.data(), of.bytes());
  }
}

RowStore::Arrays RowStore::arrays(std::int64_t layer, std::int64_t kv_head,
                                  std::int64_t position) const {
  const LayerArrays& of = arrays_of(layer);
  return {row(of, kv_head, Half::keys, position), row(of, kv_head, Half::values, position)};
}

void RowStore::extend(std::int64_t layer, std::int64_t tokens) {
  set_size(layer, size(layer) + tokens);
}

void RowStore::shrink(std::int64_t layer, std::int64_t tokens) {
  set_size(layer, tokens);
  LayerArrays& of = arrays_[static_cast<std::size_t>(layer)];
  if (of.first > tokens) of.first = 0;  // tokens is 0
}

bool RowStore::can_go_back(std::int64_t layer, std::int64_t tokens) const {
  const LayerArrays& of = arrays_of(layer);
  return tokens == 0 || of.first <= std::max<std::int64_t>(0, tokens - of.window);
}

bool RowStore::has_memory_to(std::int64_t end) const {
  for (std::int64_t layer = 0; layer < std::ssize(arrays_); ++layer)
    if (!has_memory_to(layer, end)) return false;
  return true;
}

bool RowStore::has_memory_to(std::int64_t layer, std::int64_t end) const {
  const LayerArrays& of = arrays_[static_cast<std::size_t>(layer)];
  return !keeps_last(layer) || end <= of.first + of.rows;
}

std::int64_t RowStore::rows_to_slide(std::int64_t layer) const {
  const LayerArrays& of = arrays_[static_cast<std::size_t>(layer)];
  return std::min(size(layer) - of.first, 2 * of.window);
}

void RowStore::slide() {
  for (std::int64_t layer = 0; layer < std::ssize(arrays_); ++layer)
    if (keeps_last(layer)) slide(layer);
}

void RowStore::slide(std::int64_t layer) {
  LayerArrays& of = arrays_[static_cast<std::size_t>(layer)];
  const std::int64_t rows = rows_to_slide(layer);
  const std::int64_t first = size(layer) - rows;
  if (first == of.first) return;
  // On this thread: a parallel loop that is stopped would leave the rows of some heads moved.
  for (std::int64_t i = 0; i < of.kv_heads * 2; ++i) {
    const Half half = i % 2 == 0 ? Half::keys : Half::values;
    std::memmove(row(of, i / 2, half, of.first), row(of, i / 2, half, first),
                 static_cast<std::size_t>(rows * of.half_bytes[i % 2]));
  }
  of.first = first;
}

void RowStore::make_room_for_steps(std::int64_t tokens) {
  std::vector<LayerArrays> changed = arrays_;
  bool more = false;
  for (std::int64_t layer = 0; layer < std::ssize(arrays_); ++layer) {
    if (!keeps_last(layer)) continue;
    LayerArrays& of = changed[static_cast<std::size_t>(layer)];
    const std::int64_t rows = last_rows(of.window, tokens, capacity_);
    if (rows <= of.rows) continue;
    more = true;
    set_rows(of, rows, huge_page);
  }
  if (!more) return;
  check_memory(changed, "read fewer tokens at a time");
  move_last(std::move(changed));
}

void RowStore::freeze() {
  forget_channels();
  std::vector<LayerArrays> changed = arrays_;
  bool less = false;
  for (std::int64_t layer = 0; layer < std::ssize(arrays_); ++layer) {
    if (!keeps_last(layer)) continue;
    LayerArrays& of = changed[static_cast<std::size_t>(layer)];
    const std::int64_t rows = std::min(size(layer), of.window);
    less = less || rows < of.rows;
    of.first = size(layer) - rows;
    set_rows(of, rows, huge_page);
  }
  if (less) move_last(std::move(changed));
}

void RowStore::move_last(std::vector<LayerArrays> moved) {
  Region region(lay_out(moved, 1, nullptr));
  lay_out(moved, 1, region.data());
  if (region.bytes() > huge_page) region.use_huge_pages();
  for (std::int64_t layer = 0; layer < std::ssize(arrays_); ++layer) {
    const auto l = static_cast<std::size_t>(layer);
    if (keeps_last(layer)) copy_rows(arrays_[l], moved[l], {moved[l].first, size(layer)});
  }
  for (std::int64_t layer = 0; layer < std::ssize(arrays_); ++layer) {
    const auto l = static_cast<std::size_t>(layer);
    if (keeps_last(layer)) arrays_[l] = moved[l];  // arrays of other layers may be in use
  }
  locks_[1].reset();
  regions_[1] = std::move(region);
}

void RowStore::copy_rows(const LayerArrays& from, const LayerArrays& to,
                         PositionRange range) const {
  const auto copy = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Half half = i % 2 == 0 ? Half::keys : Half::values;
      const std::byte* const of = row(from, i / 2, half, range.begin);
      std::byte* const there = row(to, i / 2, half, range.begin);
      parallel_for(range.size() * from.half_bytes[i % 2], copy_grain,
                   [&](std::int64_t first, std::int64_t last) {
                     std::copy(of + first, of + last, there + first);
                   });
    }
  };
  parallel_for_alone(from.kv_heads * 2, 1, copy);  // a caller may hold a device's lock
}

void RowStore::copy_from(const RowStore& other) {
  const auto layers = std::ssize(sizes_);
  for (std::int64_t layer = 0; layer < layers; ++layer) choose_pages(other.size(layer));
  std::vector<LayerArrays> copied = arrays_;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (!has_rows(layer)) continue;
    LayerArrays& of = copied[static_cast<std::size_t>(layer)];
    const std::int64_t size = other.size(layer);
    of.first = other.first_row(layer);
    if (size - of.first > of.rows) of.first = size - std::min(size, 2 * of.window);
    copy_rows(other.arrays_of(layer), of, {of.first, size});
  }
  channels_ = other.channels_;
  arrays_ = std::move(copied);
  channels_chosen_ = channels_chosen_ || other.channels_chosen_;  // a file's store does not say so
  bias_ = other.bias_;
  first_position_ = other.first_position_;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    index_keys_.copy_from(other.index_keys_, layer, other.size(layer));
  for (std::int64_t layer = 0; layer < layers; ++layer) set_size(layer, other.size(layer));
}

std::int64_t RowStore::bytes() const {
  std::int64_t bytes = 0;
  for (std::int64_t layer = 0; layer < std::ssize(sizes_); ++layer) {
    if (has_rows(layer)) bytes += (size(layer) - first_row(layer)) * arrays_of(layer).row_bytes();
    bytes += index_keys_.bytes(layer, size(layer));
  }
  return bytes;
}

RowsView RowStore::rows(std::int64_t layer, std::int64_t kv_head) const {
  return {view(layer, kv_head, Half::keys), view(layer, kv_head, Half::values)};
}

}  // namespace topkv
