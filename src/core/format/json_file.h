// JSON from files that nobody vouches for: parsed within limits, then read key by key with checks
// whose errors name the file, the key, what was found and what was expected.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace topkv {

/// Longest JSON text that is parsed; the limit that the safetensors format sets for its header.
inline constexpr std::int64_t max_json_bytes = 100'000'000;

/// What becomes of numbers with a point or an exponent.
enum class JsonFloats : std::uint8_t {
  nearest,  ///< the nearest double
  serde,    ///< what serde_json makes of them; see serde_number
};

/// Parses strict JSON (UTF-8, no comments, no NaN). Throws FileError that begins with `file` when
/// the text is malformed or too long, is nested more than 64 deep (so that code which recurses over
/// the result is safe), has more than 2^23 values, or gives a key twice in one object.
nlohmann::json parse_json(std::string_view text, const std::filesystem::path& file,
                          JsonFloats floats = JsonFloats::nearest);

/// Reads and parses a whole file.
nlohmann::json read_json_file(const std::filesystem::path& file,
                              JsonFloats floats = JsonFloats::nearest);

/// Reads and parses a whole file that Python may have written, which knows numbers that JSON does
/// not: Infinity, -Infinity and NaN become objects {"__float__": "Infinity"}, as transformers 5
/// writes them.
nlohmann::json read_python_json_file(const std::filesystem::path& file);

/// A value or name from a file, fit for an error message: JSON on one line, ASCII, cut when long.
std::string shown(const nlohmann::json& value);

/// The same of bytes that may not be UTF-8.
std::string shown_bytes(std::string_view bytes);

/// One object of a JSON file. Refers to the value, which must outlive it.
class JsonObject {
 public:
  /// where: the keys that lead to this object, each with a dot behind it ("rope_scaling.").
  /// Throws FileError when the value is not an object.
  JsonObject(const nlohmann::json& value, const std::filesystem::path& file,
             std::string where = "");

  /// The value of a key, null pointer when the key is missing or null.
  const nlohmann::json* find(std::string_view key) const;
  bool contains(std::string_view key) const;

  // Each returns `missing` when there is no such key, and throws FileError when the key has
  // another type (null included) or is out of the range [low, high], or when there is neither the
  // key nor a value for it.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> missing = {}) const;
  double number(std::string_view key, double low, double high,
                std::optional<double> missing = {}) const;
  bool flag(std::string_view key, std::optional<bool> missing = {}) const;
  std::string text(std::string_view key, std::optional<std::string> missing = {}) const;

  /// Throws FileError: "file: where.key is <found>; expected <expected>".
  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;
  /// Throws Unsupported: "file: where.key is <found>, …; topkv runs <supported>".
  [[noreturn]] void unsupported(std::string_view key, std::string_view supported) const;

 private:
  std::string found(std::string_view key) const;

  const nlohmann::json* value_;
  std::string file_;
  std::string where_;
};

}  // namespace topkv
