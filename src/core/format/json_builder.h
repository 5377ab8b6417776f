// Builds JSON values from text within the limits of parse_json, with or without the order of keys.
//
// Json: nlohmann::json, or nlohmann::ordered_json, whose objects look through all of their keys for
// each and therefore need a limit.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/core/format/json_file.h"
#include "src/core/format/serde_number.h"
#include "topkv/error.h"

namespace topkv {

/// Builds the value, within limits. (The parser's own builder, given a callback, goes over all of
/// an array or object again whenever an object in it ends.) nlohmann::json parses without
/// recursion; depth is limited for those who walk the result.
template <class Json>
class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  using typename nlohmann::json_sax<Json>::binary_t;
  using typename nlohmann::json_sax<Json>::number_float_t;
  using typename nlohmann::json_sax<Json>::number_integer_t;
  using typename nlohmann::json_sax<Json>::number_unsigned_t;
  using typename nlohmann::json_sax<Json>::string_t;

  /// max_keys: of an object.
  JsonBuilder(std::string file, JsonFloats floats, std::size_t max_keys)
      : file_(std::move(file)), floats_(floats), max_keys_(max_keys) {}

  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }  // empty: none

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    return add(floats_ == JsonFloats::serde ? serde_number(text, value) : value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }  // text has none

  bool start_object(std::size_t /*size*/) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*size*/) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool key(string_t& key) override {
    auto& object = open_.back()->template get_ref<typename Json::object_t&>();
    const auto [entry, is_new] = object.emplace(key, nullptr);
    if (!is_new) fail(fmt::format("the key {} twice in one object", shown(key)));
    if (object.size() > max_keys_) fail(fmt::format("an object of more than {} keys", max_keys_));
    value_of_key_ = &entry->second;
    return true;
  }

  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const typename Json::exception& error) override {
    error_ = error.what();
    constexpr int out_of_range = 406;
    if (error.id == out_of_range) error_ += "; expected a number that 64 bits hold";
    return false;
  }

 private:
  static constexpr std::size_t max_depth = 64;
  static constexpr std::int64_t max_values = std::int64_t{1} << 23;

  [[noreturn]] void fail(const std::string& found) const {
    throw FileError(fmt::format("{}: has {}; topkv does not read such JSON", file_, found));
  }

  /// Where the value went.
  Json* put(Json value) {
    if (++values_ > max_values) fail(fmt::format("more than {} values", max_values));
    if (open_.empty()) return &(root_ = std::move(value));
    Json& into = *open_.back();
    if (into.is_array()) {
      into.push_back(std::move(value));
      return &into.back();
    }
    return &(*value_of_key_ = std::move(value));
  }

  bool add(Json value) {
    put(std::move(value));
    return true;
  }

  bool open(Json container) {
    if (open_.size() >= max_depth) {
      fail(fmt::format("arrays and objects more than {} deep", max_depth));
    }
    open_.push_back(put(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string file_;
  JsonFloats floats_;
  std::size_t max_keys_;
  std::string error_;
  Json root_;
  std::vector<Json*> open_;  // each the last in the one before, which so stays where it is
  Json* value_of_key_ = nullptr;
  std::int64_t values_ = 0;
};

/// (json_file.cc) Throws FileError for a text that is too long for the parser.
void check_json_text(std::string_view text, const std::string& file);
/// (json_file.cc) Throws FileError for a text that is not JSON. error: JsonBuilder's.
[[noreturn]] void refuse_json(const std::string& error, const std::string& file);

/// Parses as parse_json does. file: what messages begin with. Throws FileError, also for an object
/// of more than max_keys keys.
template <class Json>
Json build_json(std::string_view text, const std::string& file, JsonFloats floats,
                std::size_t max_keys = std::numeric_limits<std::size_t>::max()) {
  check_json_text(text, file);
  JsonBuilder<Json> builder(file, floats, max_keys);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) refuse_json(builder.error(), file);
  return builder.take();
}

}  // namespace topkv
