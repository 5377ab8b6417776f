#include "src/serve/run/served_names.h"

#include <algorithm>

#include "src/serve/request/request.h"

namespace topkv::serve {

std::string ServedNames::with_context(std::string_view context) const {
  return names_.front() + ":" + std::string(context);
}

std::optional<NamedModel> ServedNames::find(std::string_view name) const {
  if (std::ranges::find(names_, name) != names_.end()) return NamedModel{};
  const std::size_t colon = name.rfind(':');  // no context has one in its name
  if (colon == name.npos || std::ranges::find(names_, name.substr(0, colon)) == names_.end())
    return {};
  const std::string_view context = name.substr(colon + 1);
  if (!is_context_name(context)) return {};
  return NamedModel{.context = std::string(context)};
}

bool is_alias(std::string_view name) {
  return !name.empty() && name.size() <= 256 && std::ranges::all_of(name, [](char c) {
    return c > ' ' && c <= '~' && c != '"' && c != '\\';
  });
}

}  // namespace topkv::serve
