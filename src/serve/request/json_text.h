// JSON as it is sent: on one line, its keys in order.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace topkv::serve {

/// Bytes of texts that are not UTF-8 become U+FFFD.
inline std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace topkv::serve
