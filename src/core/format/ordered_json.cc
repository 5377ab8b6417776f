#include "src/core/format/ordered_json.h"

#include <nlohmann/json.hpp>

#include "src/core/format/json_builder.h"
#include "src/core/text/printable.h"

namespace topkv {

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what) {
  return build_json<nlohmann::ordered_json>(text, path_text(what), JsonFloats::nearest,
                                            max_ordered_keys);
}

}  // namespace topkv
