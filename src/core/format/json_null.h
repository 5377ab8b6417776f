// Numbers that may be none, in JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

namespace topkv {

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

template <class T>
std::optional<T> or_none(const nlohmann::ordered_json& value) {
  return value.is_null() ? std::optional<T>() : std::optional<T>(value.get<T>());
}

}  // namespace topkv
