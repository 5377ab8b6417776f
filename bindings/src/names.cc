#include "bindings/src/names.h"

#include <fmt/format.h>

#include "topkv/error.h"

namespace topkv::python {

SelectBy parse_select_by(const std::string& name) {
  if (name == "query_head") return SelectBy::query_head;
  if (name == "group") return SelectBy::group;
  throw InvalidArgument(fmt::format("select_by is '{}'; expected 'query_head' or 'group'", name));
}

}  // namespace topkv::python
