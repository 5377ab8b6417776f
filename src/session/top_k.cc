#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "src/core/text/printable.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {

TopK TopK::parse(std::string_view text) {
  const auto number = [&](std::string_view digits) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 1) {
      throw InvalidArgument(fmt::format(
          "k '{}' is not understood; expected a number from 1 (64), one per layer (64,32,…), or a "
          "sum over the layers (uniform:512, linear:512)",
          printable_beginning(text)));
    }
    return value;
  };
  for (const auto& [prefix, schedule] :
       {std::pair{std::string_view("uniform:"), Schedule::uniform_sum},
        std::pair{std::string_view("linear:"), Schedule::linear_sum}}) {
    if (text.starts_with(prefix)) return {schedule, number(text.substr(prefix.size())), {}};
  }
  std::vector<std::int64_t> list;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    list.push_back(number(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return list.size() == 1 ? same(list[0]) : per_layer(std::move(list));
}

std::vector<std::int64_t> TopK::resolve(std::int64_t layers) const {
  const auto n = static_cast<std::size_t>(layers);
  if (schedule == Schedule::list) {
    if (list.size() != n) {
      throw InvalidArgument(
          fmt::format("k is given for {} layers; the model has {}", list.size(), layers));
    }
    for (const std::int64_t k : list) {
      if (k < 1)
        throw InvalidArgument(fmt::format("k is {} in one layer; it must be at least 1", k));
    }
    return list;
  }
  if (value < 1) throw InvalidArgument(fmt::format("k is {}; it must be at least 1", value));
  if (schedule == Schedule::same) return std::vector<std::int64_t>(n, value);
  if (value < layers) {
    throw InvalidArgument(
        fmt::format("a sum of {} rows gives none to some of the {} layers; raise it to {}", value,
                    layers, layers));
  }
  // One row each, and the rest by weight; rounding down leaves some over for the last layers.
  std::vector<std::int64_t> ks(n, 1);
  const std::int64_t rest = value - layers;
  const bool linear = schedule == Schedule::linear_sum;
  const std::int64_t weights = linear ? layers * (layers + 1) / 2 : layers;
  std::int64_t left = rest;
  for (std::size_t l = 0; l < n; ++l) {
    const std::int64_t weight = linear ? static_cast<std::int64_t>(l) + 1 : 1;
    // rest * weight / weights, whose product may overflow
    const std::int64_t share = rest / weights * weight + rest % weights * weight / weights;
    ks[l] += share;
    left -= share;
  }
  for (std::size_t l = n; left > 0; --left) {
    l = l == 0 ? n - 1 : l - 1;
    ++ks[l];
  }
  return ks;
}

}  // namespace topkv
