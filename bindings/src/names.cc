#include "bindings/src/names.h"

#include <fmt/format.h>

#include <algorithm>

#include "topkv/error.h"

namespace topkv::python {

PrefillAttention prefill_attention(const std::string& mode, std::int64_t window, std::int64_t sinks,
                                   std::int64_t keys, std::optional<std::int64_t> least,
                                   double mass, bool measure) {
  PrefillAttention attention{.mode = parse_prefill(mode),
                             .window = window,
                             .sinks = sinks,
                             .keys = keys,
                             .mass = mass,
                             .measure = measure};
  attention.least_keys = least.value_or(std::min(attention.least_keys, keys));
  return attention;
}

SelectBy parse_select_by(const std::string& name) {
  if (name == "query_head") return SelectBy::query_head;
  if (name == "group") return SelectBy::group;
  throw InvalidArgument(fmt::format("select_by is '{}'; expected 'query_head' or 'group'", name));
}

}  // namespace topkv::python
