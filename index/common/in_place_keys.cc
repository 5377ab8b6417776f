#include "index/common/in_place_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/core/math/convert.h"
#include "src/core/math/dot.h"
#include "src/core/math/row_format.h"
#include "topkv/error.h"

namespace topkv {

void widen_key(const KeyView& keys, std::int64_t position, float* out) {
  decode(keys, position, out);
  const std::int64_t bad = first_not_finite(out, keys.dim);
  if (bad >= 0) {
    throw InvalidArgument(fmt::format(
        "index: the key at position {} is not finite: element {} is {}", position, bad, out[bad]));
  }
}

float squared_distance(const KeyView& keys, std::int64_t a, std::int64_t b) {
  const float square =
      dot_stored(keys, a, a) + dot_stored(keys, b, b) - 2.0F * dot_stored(keys, a, b);
  return std::isnan(square) ? std::numeric_limits<float>::infinity() : std::max(square, 0.0F);
}

void check_groups(std::string_view index, const QueryBlock& queries) {
  const std::int64_t group = queries.group;
  bool whole = group > 0 && queries.tokens > 0 && queries.count % group == 0 &&
               queries.count / group % queries.tokens == 0;
  for (std::int64_t q = 0; whole && q < queries.count; ++q) {
    const PositionRange& first = queries.allowed[static_cast<std::size_t>(q / group * group)];
    const PositionRange& own = queries.allowed[static_cast<std::size_t>(q)];
    whole = own.begin == first.begin && own.end == first.end;
  }
  if (whole) return;
  throw InvalidArgument(
      fmt::format("{}: {} queries in groups of {} and questions of {} tokens; expected whole "
                  "questions of whole groups, each of these with one range of positions",
                  index, queries.count, group, queries.tokens));
}

void InPlaceKeys::append(const KeyView& keys) {
  if (keys.count < 0) {
    throw InvalidArgument(fmt::format("index.add got a view of {} keys", keys.count));
  }
  if (keys.count == 0) return;
  if (keys.data == nullptr || keys.dim <= 0 ||
      keys.dim > std::numeric_limits<std::int32_t>::max() ||
      keys.stride_bytes < vector_bytes(keys.dtype, keys.dim) ||
      keys.count > std::numeric_limits<std::int64_t>::max() / keys.stride_bytes) {
    throw InvalidArgument(fmt::format(
        "index.add got {} keys of dim {} that are {} bytes apart, at {}; a key of {} "
        "needs at least {} bytes and a non-null address, all of them less than 2^63 bytes",
        keys.count, keys.dim, keys.stride_bytes, static_cast<const void*>(keys.data),
        name_of(keys.dtype),
        vector_bytes(keys.dtype, std::clamp<std::int64_t>(
                                     keys.dim, 0, std::numeric_limits<std::int32_t>::max()))));
  }
  if (view_.count == 0) {
    view_ = keys;
    return;
  }
  if (keys.channels != view_.channels || keys.bias != view_.bias) {
    throw InvalidArgument(
        "index.add got keys with other channel scales or another bias than the keys of the index");
  }
  if (keys.dim != view_.dim || keys.dtype != view_.dtype ||
      (keys.count > 1 && keys.stride_bytes != view_.stride_bytes)) {
    throw InvalidArgument(fmt::format(
        "index.add got keys of dim {}, {}, {} bytes apart; the index holds dim {}, {}, {} bytes "
        "apart",
        keys.dim, name_of(keys.dtype), keys.stride_bytes, view_.dim, name_of(view_.dtype),
        view_.stride_bytes));
  }
  if (keys.data != view_.key(view_.count)) {
    throw InvalidArgument(
        fmt::format("index.add got keys that do not continue the {} it holds: they begin {} bytes "
                    "away from the end of these; add the keys of one array, in order",
                    view_.count, keys.data - view_.key(view_.count)));
  }
  view_.count += keys.count;
}

void InPlaceKeys::check_search(std::string_view index, bool built, const QueryBlock& queries,
                               std::int64_t k) const {
  if (!built) {
    throw InvalidArgument(fmt::format("{}: searched before build; call build first", index));
  }
  if (k <= 0) throw InvalidArgument(fmt::format("{}: k is {}; it must be at least 1", index, k));
  if (queries.count < 0 || static_cast<std::int64_t>(queries.allowed.size()) != queries.count) {
    throw InvalidArgument(fmt::format("{}: {} queries with {} allowed ranges; each query needs one",
                                      index, queries.count, queries.allowed.size()));
  }
  if (view_.count > 0 && queries.count > 0 && queries.dim != view_.dim) {
    throw InvalidArgument(
        fmt::format("{}: queries of dim {}; the keys have {}", index, queries.dim, view_.dim));
  }
  if (queries.count == 0 || queries.dim <= 0) return;
  const std::int64_t bad = first_not_finite(queries.data, queries.count * queries.dim);
  if (bad >= 0) {
    throw InvalidArgument(fmt::format("{}: query {} is not finite: element {} is {}", index,
                                      bad / queries.dim, bad % queries.dim, queries.data[bad]));
  }
}

PositionRange InPlaceKeys::clamp(PositionRange range) const {
  range.begin = std::clamp<std::int64_t>(range.begin, 0, view_.count);
  range.end = std::clamp<std::int64_t>(range.end, range.begin, view_.count);
  return range;
}

}  // namespace topkv
