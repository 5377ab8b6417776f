#include "src/store/index_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/core/math/convert.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t keys_rounded_alone = 512;  // keys that a thread rounds at a time
constexpr std::int64_t key_bytes_copied_alone =
    8 * huge_page;  // bytes that a thread copies at a time

std::int64_t padded_to_pages(std::int64_t bytes) {
  return (bytes + small_page - 1) / small_page * small_page;
}

}  // namespace

IndexKeys::IndexKeys(const AttentionShape& shape, std::int64_t capacity) {
  if (shape.index_key_layers() == 0) return;
  indexer_ = *shape.indexer;
  // Of a group that began before the first token, the key is here, too.
  room_ = capacity / indexer_.tokens_per_key + (indexer_.tokens_per_key > 1 ? 1 : 0);
  if (room_ > most_keys) {
    throw Unsupported(
        fmt::format("index keys of {} tokens, one for {} tokens, are more than the {} that choices "
                    "can number; ask for fewer tokens",
                    capacity, indexer_.tokens_per_key, most_keys));
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    places_.push_back(shape.has_index_keys(layer) ? arrays_++ : -1);
  layer_bytes_ = padded_to_pages(room_ * indexer_.key_bytes());  // below 2^31 * 2^22
  if (std::int64_t all = 0; __builtin_mul_overflow(layer_bytes_, arrays_, &all))
    throw InvalidArgument(fmt::format(
        "index keys of {} layers are beyond 64 bits of bytes: {} each", arrays_, layer_bytes_));
}

std::int64_t IndexKeys::capacity_bytes() const { return arrays_ * room_ * indexer_.key_bytes(); }

void IndexKeys::reserve() {
  if (arrays_ == 0) return;
  region_ = Region(arrays_ * layer_bytes_);
  data_ = region_.data();
}

void IndexKeys::borrow(const std::byte* arrays, std::int64_t tokens, std::shared_ptr<void> owner) {
  layer_bytes_ = padded_to_pages(count(tokens) * indexer_.key_bytes());
  data_ = const_cast<std::byte*>(arrays);  // the store is full: nothing is written
  lender_ = std::move(owner);
}

void IndexKeys::write(std::int64_t layer, std::int64_t tokens, std::int64_t more,
                      const float* keys) {
  const std::int64_t start = count(tokens);
  const std::int64_t added = count(tokens + more) - start;
  const std::int64_t dim = indexer_.dim;
  const std::int64_t bytes = indexer_.key_bytes();
  if (!huge_pages_ && (start + added) * bytes >= huge_page) {
    region_.use_huge_pages();
    huge_pages_ = true;
  }
  // Alone: a caller may hold a device's lock.
  parallel_for_alone(added, keys_rounded_alone, [&](std::int64_t begin, std::int64_t end) {
    thread_local std::vector<float> rounded;  // writing one key must not allocate
    rounded.resize(static_cast<std::size_t>(dim));
    for (std::int64_t i = begin; i < end; ++i) {
      const float* const from = keys + i * dim;
      std::byte* const to = data(layer) + (start + i) * bytes;
      std::int64_t bad = first_not_finite(from, dim);
      if (bad < 0) {
        from_float(from, dim, indexer_.dtype, to);
        to_float(to, indexer_.dtype, dim, rounded.data());
        bad = first_not_finite(rounded.data(), dim);
      }
      if (bad < 0) continue;
      throw InvalidArgument(fmt::format(
          "index key {} of layer {} holds {} at element {}; values must be finite in "
          "{}",
          indexer_.keys(first_) + start + i, layer, from[bad], bad, name_of(indexer_.dtype)));
    }
  });
}

KeyView IndexKeys::keys(std::int64_t layer, std::int64_t tokens) const {
  if (!has(layer)) return {};
  KeyView view;
  view.data = data(layer);
  view.dtype = indexer_.dtype;
  view.count = count(tokens);
  view.dim = indexer_.dim;
  view.stride_bytes = indexer_.key_bytes();
  return view;
}

void IndexKeys::copy_from(const IndexKeys& other, std::int64_t layer, std::int64_t tokens) {
  if (!has(layer)) return;
  const std::byte* const from = other.data(layer);
  std::byte* const to = data(layer);
  parallel_for_alone(other.bytes(layer, tokens),
                     key_bytes_copied_alone,  // a caller may hold a device's lock
                     [&](std::int64_t begin, std::int64_t end) {
                       std::copy(from + begin, from + end, to + begin);
                     });
}

}  // namespace topkv
